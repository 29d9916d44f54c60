//! Elements of 8 and 16 bits with fractions, which are combined as singles.

use super::number::Number;
use crate::element::format::{E4M3, E5M2, HALF, brain_to_single, single_to_brain};

macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident($code:ty), $widen:expr, $narrow:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(crate) struct $name($code);

        impl Number for $name {
            type Value = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.0)
            }
            #[inline(always)]
            fn narrow(value: f32) -> $name {
                $name($narrow(value))
            }
        }
    };
}

narrow!(
    /// IEEE half precision.
    Half(u16), |code| HALF.decode(u32::from(code)), |value| HALF.encode(value) as u16
);
narrow!(
    /// bfloat16.
    Brain(u16), brain_to_single, single_to_brain
);
narrow!(
    /// OCP E4M3.
    E4m3(u8), |code| E4M3.decode(u32::from(code)), |value| E4M3.encode(value) as u8
);
narrow!(
    /// OCP E5M2.
    E5m2(u8), |code| E5M2.decode(u32::from(code)), |value| E5M2.encode(value) as u8
);

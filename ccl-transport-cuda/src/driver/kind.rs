//! What kind of memory a pointer points to.

use super::Driver;
use crate::sys::{
    CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, is_readable,
};
use ccl_core::Result;
use std::fmt;

/// What kind of memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ordinary memory, which the driver does not know.
    Host,
    /// Host memory that devices reach: allocated by the driver, or registered with it.
    Pinned,
    /// Memory of the device of this number.
    Device(u32),
    /// Memory that the driver moves to whoever touches it.
    Managed,
    /// Nothing: the driver does not know it, and the CPU cannot read it. Freed device memory looks so.
    Nothing,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Host => f.write_str("ordinary host memory"),
            Kind::Pinned => f.write_str("pinned host memory"),
            Kind::Device(ordinal) => write!(f, "memory of device {ordinal}"),
            Kind::Managed => f.write_str("managed memory"),
            Kind::Nothing => f.write_str("no memory: freed, or never allocated"),
        }
    }
}

impl Driver {
    /// The kind of the memory at an address.
    pub fn kind(self, address: usize) -> Result<Kind> {
        Ok(match self.known(address)? {
            // Nobody has device memory, so a call on host memory need not ask the kernel.
            Known::Unused => Kind::Host,
            Known::Not if is_readable(address) => Kind::Host,
            Known::Not => Kind::Nothing,
            Known::As { is_managed: true, .. } => Kind::Managed,
            Known::As { memory: CU_MEMORYTYPE_DEVICE, ordinal, .. } => Kind::Device(ordinal),
            Known::As { memory: CU_MEMORYTYPE_HOST, .. } => Kind::Pinned,
            Known::As { .. } => Kind::Host,
        })
    }
}

/// What the driver says of a pointer.
pub(crate) enum Known {
    /// The program has not used it, so no pointer is its.
    Unused,
    /// It does not know the pointer.
    Not,
    As {
        memory: u32,
        is_managed: bool,
        ordinal: u32,
    },
}

/// The attributes that [`Known::As`] holds, in its order.
pub(crate) const ASKED: [i32; 3] =
    [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];

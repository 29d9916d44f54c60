//! The operators, on any values that can do them.

use super::number::{Bits, Value};

/// A reduction operator on values of type `V`.
pub(super) trait Op<V>: 'static {
    /// Whether it asks which value is less.
    const COMPARES: bool = false;

    fn combine(a: V, b: V) -> V;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct ExclusiveOr;

impl<V: Value> Op<V> for Sum {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.add(b)
    }
}

impl<V: Value> Op<V> for Prod {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.multiply(b)
    }
}

impl<V: Value> Op<V> for Min {
    const COMPARES: bool = true;
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.least(b)
    }
}

impl<V: Value> Op<V> for Max {
    const COMPARES: bool = true;
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.most(b)
    }
}

impl<V: Bits> Op<V> for And {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.and(b)
    }
}

impl<V: Bits> Op<V> for Or {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.or(b)
    }
}

impl<V: Bits> Op<V> for ExclusiveOr {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.exclusive_or(b)
    }
}

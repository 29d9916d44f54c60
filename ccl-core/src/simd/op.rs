//! The operators, on any values that can do them.

use super::number::{Integer, Value};

/// A reduction operator on values of type `V`.
pub(super) trait Op<V>: 'static {
    /// Whether contributions may be scaled, as means and `PreMulSum` want it: other kernels do without that path.
    const SCALES: bool = false;

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
    const SCALES: bool = true;

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

impl<V: Integer> Op<V> for Min {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.least(b)
    }
}

impl<V: Integer> Op<V> for Max {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.most(b)
    }
}

impl<V: Integer> Op<V> for And {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.and(b)
    }
}

impl<V: Integer> Op<V> for Or {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.or(b)
    }
}

impl<V: Integer> Op<V> for ExclusiveOr {
    #[inline(always)]
    fn combine(a: V, b: V) -> V {
        a.exclusive_or(b)
    }
}

//! The operators, on any values that can do them.

use super::number::{Integer, Value};

/// A reduction operator on values of type `V`.
pub(crate) trait Op<V>: 'static {
    /// Whether contributions may be scaled, as means and `PreMulSum` want it: other kernels do without that path.
    const SCALES: bool = false;

    fn combine(a: V, b: V) -> V;
}

pub(crate) struct Sum;
pub(crate) struct Prod;
pub(crate) struct Min;
pub(crate) struct Max;
pub(crate) struct And;
pub(crate) struct Or;
pub(crate) struct ExclusiveOr;

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

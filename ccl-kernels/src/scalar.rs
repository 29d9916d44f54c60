//! The scalar twin: one element at a time. What every other kernel is compared with.

use super::number::{Number, Value};
use super::op::Op;
use super::reducer::Job;

/// Combines all sources of `job`, element by element, and writes every sink.
///
/// `W` is for the other kernels: here a block is one element.
///
/// # Safety
/// The job's pieces are all of one length, a multiple of the element's size.
pub(crate) unsafe fn reduce<N: Number, O: Op<N::Value>, const W: usize>(job: &Job<'_>) {
    let factor = job.factor::<N::Value, O>();
    let elements = job.bytes / size_of::<N>();
    for i in 0..elements {
        // SAFETY: element `i` lies inside the pieces; all sources are read before a sink is written, so
        // that a sink may be a source.
        unsafe {
            let mut sum: Option<N::Value> = None;
            for source in job.sources {
                let value = source.piece.as_ptr().cast::<N>().add(i).read_unaligned().widen();
                let value = match factor {
                    Some(factor) if source.scaled => value.multiply(factor),
                    _ => value,
                };
                sum = Some(sum.map_or(value, |s| O::combine(s, value)));
            }
            if let Some(sum) = sum {
                for sink in job.sinks {
                    sink.as_mut_ptr().cast::<N>().add(i).write_unaligned(N::narrow(sum));
                }
            }
        }
    }
}

/// Combines two short sources into one sink, one element after the other.
///
/// # Safety
/// The addresses are good for `bytes` bytes; of an element that is not whole nothing is touched.
pub(crate) unsafe fn pair<N: Number, O: Op<N::Value>, const W: usize>(
    first: *const u8,
    second: *const u8,
    sink: *mut u8,
    bytes: usize,
) {
    let (first, second, sink) = (first.cast::<N>(), second.cast::<N>(), sink.cast::<N>());
    for i in 0..bytes / size_of::<N>() {
        // SAFETY: element `i` lies inside all of them; both sources are read before the sink is written, so that it may
        // be one of them.
        unsafe {
            let (a, b) = (first.add(i).read_unaligned(), second.add(i).read_unaligned());
            sink.add(i).write_unaligned(N::narrow(O::combine(a.widen(), b.widen())));
        }
    }
}

//! A data type with an operator, bound to a kernel.

use super::copy::copy;
#[cfg(target_arch = "x86_64")]
use super::number::HalfF16c;
use super::number::{Brain, E4m3, E5m2, Half, Max, Min, Op, Prod, Sum};
use super::{Level, Piece, PieceMut};
use crate::element::{DataType, ReduceOp};
use crate::error::{Error, Result};

/// What a move reads.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The bytes.
    pub piece: Piece,
    /// Whether this is a contribution as its owner gave it, to be scaled where the operator says so.
    pub scaled: bool,
}

/// How the pieces of one call are combined.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    kernel: Kernel,
    dtype: DataType,
    /// What scaled sources are multiplied by, where that is not 1.
    factor: Option<f64>,
    /// What the finished output is divided by, where that is not 1.
    divisor: u32,
}

/// One call of a kernel. All pieces are `bytes` long.
pub(super) struct Job<'a> {
    pub(super) sources: &'a [Source],
    pub(super) sinks: &'a [PieceMut],
    pub(super) bytes: usize,
    /// What scaled sources are multiplied by.
    pub(super) factor: Option<f64>,
}

/// # Safety
/// The job's pieces are all of one length, a multiple of the element's size, and the CPU has the
/// instructions of the kernel's level.
type Kernel = unsafe fn(&Job<'_>);

impl Reducer {
    /// The reducer for a collective of `ranks` members, with the fastest kernel of this CPU.
    pub fn new(dtype: DataType, op: ReduceOp, ranks: u32) -> Result<Reducer> {
        Reducer::at(Level::best(), dtype, op, ranks)
    }

    /// The same with the kernels of one level, which the CPU must have.
    pub fn at(level: Level, dtype: DataType, op: ReduceOp, ranks: u32) -> Result<Reducer> {
        if !level.is_available() {
            let names: Vec<_> = Level::ALL.iter().filter(|l| l.is_available()).map(|l| l.name()).collect();
            return Err(Error::unsupported(
                format!("this CPU has no {level} instructions"),
                format!("it has the kernel levels {}", names.join(", ")),
            ));
        }
        if ranks == 0 {
            return Err(Error::invalid("a reduction over 0 ranks", "at least 1"));
        }
        let mean = op == ReduceOp::Avg && ranks > 1;
        Ok(Reducer {
            kernel: kernel(level, dtype, op),
            dtype,
            factor: (mean && dtype.is_float()).then(|| 1.0 / ranks as f64),
            divisor: if mean && !dtype.is_float() { ranks } else { 1 },
        })
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Combines `sources` in their order and writes the result into all of `sinks`.
    ///
    /// Panics where the pieces are not of one length in whole elements, or there is no source.
    #[inline]
    pub fn apply(&self, sources: &[Source], sinks: &[PieceMut]) {
        let bytes = sources[0].piece.len();
        assert!(
            sources.iter().all(|s| s.piece.len() == bytes) && sinks.iter().all(|s| s.len() == bytes),
            "the pieces of a move differ in length"
        );
        if let [one] = sources
            && !(one.scaled && self.factor.is_some())
        {
            return copy(one.piece, sinks);
        }
        assert!(bytes & (self.dtype.size() - 1) == 0, "a piece of a fraction of an element");
        let job = Job { sources, sinks, bytes, factor: self.factor };
        // SAFETY: lengths were checked here, the CPU when the kernel was chosen.
        unsafe { (self.kernel)(&job) }
    }

    /// Turns the sums in a finished output into the result: integer means are divided here, everything
    /// else is left as it is. Once per call.
    #[inline]
    pub fn finish(&self, output: PieceMut) {
        if self.divisor != 1 {
            self.divide(output);
        }
    }

    #[cold]
    fn divide(&self, output: PieceMut) {
        match self.dtype {
            DataType::I8 => each(output, |x: i8| (x as i64 / self.divisor as i64) as i8),
            DataType::U8 => each(output, |x: u8| (x as u32 / self.divisor) as u8),
            DataType::I16 => each(output, |x: i16| (x as i64 / self.divisor as i64) as i16),
            DataType::U16 => each(output, |x: u16| (x as u32 / self.divisor) as u16),
            DataType::I32 => each(output, |x: i32| (x as i64 / self.divisor as i64) as i32),
            DataType::U32 => each(output, |x: u32| x / self.divisor),
            DataType::I64 => each(output, |x: i64| x / self.divisor as i64),
            DataType::U64 => each(output, |x: u64| x / self.divisor as u64),
            DataType::F16
            | DataType::BF16
            | DataType::F32
            | DataType::F64
            | DataType::F8E4M3
            | DataType::F8E5M2 => {}
        }
    }
}

/// Replaces every element.
fn each<T: Copy>(output: PieceMut, f: impl Fn(T) -> T) {
    for i in 0..output.len() / size_of::<T>() {
        // SAFETY: element `i` lies inside the piece, which nobody else touches.
        unsafe {
            let at = output.as_mut_ptr().cast::<T>().add(i);
            at.write_unaligned(f(at.read_unaligned()));
        }
    }
}

fn kernel(level: Level, dtype: DataType, op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => same_for_signed::<Sum>(level, dtype),
        ReduceOp::Prod => same_for_signed::<Prod>(level, dtype),
        ReduceOp::Min => any::<Min>(level, dtype),
        ReduceOp::Max => any::<Max>(level, dtype),
    }
}

/// Wrapping sums and products have the same bits signed and unsigned.
fn same_for_signed<O: Op>(level: Level, dtype: DataType) -> Kernel {
    match dtype {
        DataType::I8 => any::<O>(level, DataType::U8),
        DataType::I16 => any::<O>(level, DataType::U16),
        DataType::I32 => any::<O>(level, DataType::U32),
        DataType::I64 => any::<O>(level, DataType::U64),
        other => any::<O>(level, other),
    }
}

/// The kernel for each type, with the values of a block: as many as the compiler was measured to do best with.
macro_rules! by_type {
    ($dtype:expr, $kernel:path, $half:ty, $op:ty) => {{
        use $kernel as kernel;
        match $dtype {
            DataType::I8 => kernel::<i8, $op, 64>,
            DataType::U8 => kernel::<u8, $op, 64>,
            DataType::I16 => kernel::<i16, $op, 32>,
            DataType::U16 => kernel::<u16, $op, 32>,
            DataType::I32 => kernel::<i32, $op, 32>,
            DataType::U32 => kernel::<u32, $op, 32>,
            DataType::I64 => kernel::<i64, $op, 16>,
            DataType::U64 => kernel::<u64, $op, 16>,
            DataType::F16 => kernel::<$half, $op, 16>,
            DataType::BF16 => kernel::<Brain, $op, 16>,
            DataType::F32 => kernel::<f32, $op, 16>,
            DataType::F64 => kernel::<f64, $op, 8>,
            DataType::F8E4M3 => kernel::<E4m3, $op, 16>,
            DataType::F8E5M2 => kernel::<E5m2, $op, 16>,
        }
    }};
}

fn any<O: Op>(level: Level, dtype: DataType) -> Kernel {
    match level {
        Level::Scalar => by_type!(dtype, super::scalar::reduce, Half, O),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => by_type!(dtype, super::wide::neon, Half, O),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => by_type!(dtype, super::wide::avx2, HalfF16c, O),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => by_type!(dtype, super::wide::avx512, HalfF16c, O),
        #[allow(unreachable_patterns)] // Levels of other processors, which are never available here.
        _ => by_type!(dtype, super::scalar::reduce, Half, O),
    }
}

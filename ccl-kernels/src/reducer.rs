//! A data type with an operator, bound to a kernel.

use super::copy::copy;
use super::narrow::{Brain, E4m3, E5m2, Half};
use super::number::Value;
use super::op::{And, ExclusiveOr, Max, Min, Op, Or, Prod, Sum};
use super::ordered::Ordered;
#[cfg(target_arch = "x86_64")]
use super::packed::{Brains, Halves};
#[cfg(target_arch = "x86_64")]
use super::register::{Ymm, Zmm};
use super::{DataType, Direction, Error, Factor, Level, Piece, PieceMut, ReduceOp, Result, long};

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
    /// For two sources and one sink of at most `short` bytes.
    pair: Pair,
    short: usize,
    dtype: DataType,
    /// What scaled sources are multiplied by.
    factor: Option<Factor>,
    /// What the finished output is divided by, where that is not 1.
    divisor: u32,
}

/// One call of a kernel. All pieces are `bytes` long.
pub(crate) struct Job<'a> {
    pub(crate) sources: &'a [Source],
    pub(crate) sinks: &'a [PieceMut],
    pub(crate) bytes: usize,
    /// What scaled sources are multiplied by: the bits of a value.
    pub(crate) factor: Option<u64>,
    /// Whether sinks are written as they want it; else into the caches.
    pub(crate) streams: bool,
}

impl Job<'_> {
    /// The factor as a value, where the operator has one.
    #[inline(always)]
    pub(crate) fn factor<V: Value, O: Op<V>>(&self) -> Option<V> {
        if O::SCALES { self.factor.map(V::from_bits) } else { None }
    }
}

/// # Safety
/// The job's pieces are all of one length, a multiple of the element's size, and the CPU has the
/// instructions of the kernel's level.
type Kernel = unsafe fn(&Job<'_>);

/// The same for two sources, in their order, and one sink, all of so many bytes, where nothing is scaled.
///
/// # Safety
/// The addresses are good for that many bytes; of an element that is not whole nothing is touched. The sink is one of the sources or apart from them.
type Pair = unsafe fn(*const u8, *const u8, *mut u8, usize);

/// Up to so many bytes two sources are combined one element after the other: all else takes longer to begin. Narrow floats
/// have a limit of their own, since each is widened by itself then.
const SHORT: usize = 64;
const SHORT_OF_NARROW: usize = 8;

impl Reducer {
    /// The reducer for a collective of `ranks` members, with the fastest kernel of this CPU. Refuses an
    /// operator that does not [fit](ReduceOp::check) the type.
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
        op.check(dtype)?;
        let mean = op == ReduceOp::Avg && ranks > 1;
        let factor = match op {
            ReduceOp::PreMulSum(factor) => Some(factor),
            _ => (mean && dtype.is_float()).then(|| Factor::rounded(dtype, 1.0 / f64::from(ranks))),
        };
        Ok(Reducer {
            kernel: kernel(level, dtype, op),
            pair: pair(dtype, op),
            short: if dtype.is_float() && dtype.size() <= 2 { SHORT_OF_NARROW } else { SHORT },
            dtype,
            factor,
            divisor: if mean && !dtype.is_float() { ranks } else { 1 },
        })
    }

    /// The type of the elements.
    #[inline]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Whether contributions are scaled where they are read.
    #[inline]
    pub fn scales(&self) -> bool {
        self.factor.is_some()
    }

    /// Combines `sources` in their order and writes the result into all of `sinks`.
    ///
    /// Panics where the pieces are not of one length in whole elements, or there is no source.
    #[inline]
    pub fn apply(&self, sources: &[Source], sinks: &[PieceMut], direction: Direction) {
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
        if bytes >= long::STRIDE && long::is_for(bytes, sinks, direction) {
            // SAFETY: checked above.
            return unsafe { long::combine(self, sources, sinks, direction) };
        }
        // SAFETY: checked above.
        unsafe { self.combine(sources, sinks, false) }
    }

    /// [`apply`](Reducer::apply) for one sink, an own source and a piece that came in; `is_first`: the own one is the first of the two.
    #[inline(always)]
    pub(crate) fn apply_pair(
        &self,
        own: Source,
        piece: Piece,
        is_first: bool,
        sink: PieceMut,
        direction: Direction,
    ) {
        let bytes = sink.len();
        if bytes > self.short || self.factor.is_some() || own.piece.len() != bytes || piece.len() != bytes {
            return self.apply_longer_pair(own, piece, is_first, sink, direction);
        }
        let (own, piece) = (own.piece.as_ptr(), piece.as_ptr());
        let (first, second) = if is_first { (own, piece) } else { (piece, own) };
        // SAFETY: all are so long; the kernel leaves a fraction of an element alone.
        unsafe { (self.pair)(first, second, sink.as_mut_ptr(), bytes) }
    }

    /// Apart, so that short pieces do not pay for the room.
    #[inline(never)]
    fn apply_longer_pair(
        &self,
        own: Source,
        piece: Piece,
        is_first: bool,
        sink: PieceMut,
        direction: Direction,
    ) {
        let theirs = Source { piece, scaled: false };
        let sources = if is_first { [own, theirs] } else { [theirs, own] };
        self.apply(&sources, &[sink], direction);
    }

    /// The kernel's part. What it writes past the caches, where it `streams`, comes after other stores in no order.
    ///
    /// # Safety
    /// There is a source; the pieces are of one length, in whole elements.
    #[inline]
    pub(crate) unsafe fn combine(&self, sources: &[Source], sinks: &[PieceMut], streams: bool) {
        let bytes = sources[0].piece.len();
        let factor = self.factor.as_ref().map(Factor::bits);
        let job = Job { sources, sinks, bytes, factor, streams };
        // SAFETY: the caller's promise; the CPU was checked when the kernel was chosen.
        unsafe { (self.kernel)(&job) }
    }

    /// Turns the sums in a finished output into the result: integer means are divided here, everything
    /// else is left as it is. Once per call.
    #[inline]
    pub fn finish(&self, output: PieceMut) {
        if self.divides() {
            self.divide(output);
        }
    }

    /// Whether [`finish`](Reducer::finish) does anything.
    #[inline]
    pub fn divides(&self) -> bool {
        self.divisor != 1
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

/// The kernel for sums and products of each type, with the values of a block: as many as the compiler was measured to do best with.
macro_rules! by_type {
    ($dtype:expr, $op:ty, $kernel:path, $narrow:ident $(, $register:ty)?) => {{
        use $kernel as kernel;
        match $dtype {
            DataType::I8 | DataType::U8 => kernel::<u8, $op, 32>,
            DataType::I16 | DataType::U16 => kernel::<u16, $op, 32>,
            DataType::I32 | DataType::U32 => kernel::<u32, $op, 16>,
            DataType::I64 | DataType::U64 => kernel::<u64, $op, 16>,
            DataType::F32 => kernel::<f32, $op, 16>,
            DataType::F64 => kernel::<f64, $op, 8>,
            narrow => $narrow!(narrow, $op, kernel $(, $register)?),
        }
    }};
}

/// The kernel for the least (sign 1) or the largest (sign -1) of each type; see [`Ordered`].
macro_rules! by_order {
    ($dtype:expr, $op:ty, $sign:literal, $kernel:path, $narrow:ident $(, $register:ty)?) => {{
        use $kernel as kernel;
        match $dtype {
            DataType::I8 => kernel::<i8, $op, 32>,
            DataType::U8 => kernel::<u8, $op, 32>,
            DataType::I16 => kernel::<i16, $op, 32>,
            DataType::U16 => kernel::<u16, $op, 32>,
            DataType::I32 => kernel::<i32, $op, 16>,
            DataType::U32 => kernel::<u32, $op, 16>,
            DataType::I64 => kernel::<i64, $op, 16>,
            DataType::U64 => kernel::<u64, $op, 16>,
            DataType::F16 => kernel::<Ordered<i16, 0x3ff, $sign>, $op, 32>,
            DataType::BF16 => kernel::<Ordered<i16, 0x7f, $sign>, $op, 32>,
            DataType::F32 => kernel::<Ordered<i32, 0x7f_ffff, $sign>, $op, 16>,
            DataType::F64 => kernel::<Ordered<i64, 0xf_ffff_ffff_ffff, $sign>, $op, 8>,
            DataType::F8E4M3 => kernel::<Ordered<i8, 1, $sign>, $op, 64>,
            DataType::F8E5M2 => kernel::<Ordered<i8, 3, $sign>, $op, 64>,
        }
    }};
}

/// The kernel for words of each size.
macro_rules! by_size {
    ($dtype:expr, $op:ty, $kernel:path, $narrow:ident $(, $register:ty)?) => {{
        use $kernel as kernel;
        match $dtype.size() {
            1 => kernel::<u8, $op, 32>,
            2 => kernel::<u16, $op, 32>,
            4 => kernel::<u32, $op, 16>,
            _ => kernel::<u64, $op, 16>,
        }
    }};
}

/// Sums and products of narrow floats where they are widened one at a time.
macro_rules! one_by_one {
    ($dtype:expr, $op:ty, $kernel:ident) => {
        match $dtype {
            DataType::F16 => $kernel::<Half, $op, 1>,
            DataType::BF16 => $kernel::<Brain, $op, 1>,
            DataType::F8E4M3 => $kernel::<E4m3, $op, 1>,
            _ => $kernel::<E5m2, $op, 1>,
        }
    };
}

/// Sums and products of narrow floats where they are widened a register at a time.
#[cfg(target_arch = "x86_64")]
macro_rules! by_register {
    ($dtype:expr, $op:ty, $kernel:ident, $register:ty) => {
        match $dtype {
            DataType::F16 => $kernel::<Halves<$register>, $op, 1>,
            DataType::BF16 => $kernel::<Brains<$register>, $op, 1>,
            DataType::F8E4M3 => $kernel::<E4m3, $op, 1>,
            _ => $kernel::<E5m2, $op, 1>,
        }
    };
}

/// One of these tables at a level.
macro_rules! at_level {
    ($level:expr, $table:ident!($($argument:tt)*)) => {
        match $level {
            Level::Scalar => $table!($($argument)*, super::scalar::reduce, one_by_one),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => $table!($($argument)*, super::pair::neon, one_by_one),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $table!($($argument)*, super::pair::avx2, by_register, Ymm),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => $table!($($argument)*, super::pair::avx512, by_register, Zmm),
            #[allow(unreachable_patterns)] // Levels of other processors, which are never available here.
            _ => $table!($($argument)*, super::scalar::reduce, one_by_one),
        }
    };
}

fn kernel(level: Level, dtype: DataType, op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => at_level!(level, by_type!(dtype, Sum)),
        ReduceOp::Prod => at_level!(level, by_type!(dtype, Prod)),
        ReduceOp::Min => at_level!(level, by_order!(dtype, Min, 1)),
        ReduceOp::Max => at_level!(level, by_order!(dtype, Max, -1)),
        ReduceOp::Band => at_level!(level, by_size!(dtype, And)),
        ReduceOp::Bor => at_level!(level, by_size!(dtype, Or)),
        ReduceOp::Bxor => at_level!(level, by_size!(dtype, ExclusiveOr)),
    }
}

fn pair(dtype: DataType, op: ReduceOp) -> Pair {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
            by_type!(dtype, Sum, super::scalar::pair, one_by_one)
        }
        ReduceOp::Prod => by_type!(dtype, Prod, super::scalar::pair, one_by_one),
        ReduceOp::Min => by_order!(dtype, Min, 1, super::scalar::pair, one_by_one),
        ReduceOp::Max => by_order!(dtype, Max, -1, super::scalar::pair, one_by_one),
        ReduceOp::Band => by_size!(dtype, And, super::scalar::pair, one_by_one),
        ReduceOp::Bor => by_size!(dtype, Or, super::scalar::pair, one_by_one),
        ReduceOp::Bxor => by_size!(dtype, ExclusiveOr, super::scalar::pair, one_by_one),
    }
}

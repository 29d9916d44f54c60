//! How fast the reduction kernels are, beside `memcpy` in the same run.
//!
//! ```text
//! cargo run --release -p ccl-kernels --example kernels            all tables
//! cargo run --release -p ccl-kernels --example kernels -- max f   only rows that have both texts
//! ```
//!
//! A figure is gigabytes of one buffer per second, the best of several rounds; `memcpy` is one buffer into another.
//! The last table is of arrays far larger than the caches: two threads at once, each with its own.
#![allow(clippy::print_stdout)]

use ccl_kernels::{Buffers, DataType, Direction, Level, PieceMut, ReduceOp, Reducer, Result, Source, Store};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SIZES: [usize; 4] = [8, 16 << 10, 1 << 20, 64 << 20];
const COPIES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 64 << 20];
/// As the engine cuts large calls.
const PIECE: usize = 64 << 10;
const ROUND: Duration = Duration::from_millis(2);
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.iter().all(|text| name.contains(text.as_str()));
    one_thread(&is_wanted)?;
    copies(&is_wanted)?;
    two_threads(&is_wanted)
}

/// Sums and the like of one thread, all types and levels; sums of more sources.
fn one_thread(is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    header(["8 B ns", "16 KiB", "1 MiB", "64 MiB"]);
    let mut memory = Memory::new(8, SIZES[SIZES.len() - 1]);
    let (from, into) = (&memory.sources[0], &mut memory.sink);
    let mut copied = SIZES.map(|size| {
        gigabytes(size, || black_box(&mut *into)[..size].copy_from_slice(black_box(&from[..size])))
    });
    copied[0] = SIZES[0] as f64 / copied[0];
    row("memcpy", copied);
    for dtype in DataType::ALL {
        let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Avg, ReduceOp::Bxor];
        for op in ops.into_iter().filter(|op| op.check(dtype).is_ok()) {
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                for count in if op == ReduceOp::Sum { &[2, 4, 8][..] } else { &[2] } {
                    let name = format!("{} {} of {count} {}", dtype.name(), op.name(), level.name());
                    if !is_wanted(&name) {
                        continue;
                    }
                    let reducer = Reducer::at(level, dtype, op, 2)?;
                    let mut speeds = SIZES.map(|size| {
                        let (sources, sinks) = memory.pieces(*count, 0, size, Store::Cached);
                        gigabytes(size, || {
                            reducer.apply(black_box(&sources), black_box(&sinks), Direction::Forwards)
                        })
                    });
                    speeds[0] = SIZES[0] as f64 / speeds[0];
                    row(&name, speeds);
                }
            }
        }
    }
    Ok(())
}

/// Copies of one thread.
fn copies(is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    header(["4 KiB", "64 KiB", "1 MiB", "64 MiB"]);
    let mut memory = Memory::new(1, COPIES[COPIES.len() - 1]);
    let (from, into) = (&memory.sources[0], &mut memory.sink);
    let libc = COPIES.map(|size| {
        gigabytes(size, || black_box(&mut *into)[..size].copy_from_slice(black_box(&from[..size])))
    });
    row("memcpy", libc);
    let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, 2)?;
    for (name, store) in [("copy cached", Store::Cached), ("copy streaming", Store::Streaming)] {
        if is_wanted(name) {
            let speeds = COPIES.map(|size| {
                let (sources, sinks) = memory.pieces(1, 0, size, store);
                gigabytes(size, || reducer.apply(black_box(&sources), black_box(&sinks), Direction::Forwards))
            });
            row(name, speeds);
        }
    }
    Ok(())
}

/// Each thread goes through its own arrays piece by piece, all at the same time.
fn two_threads(is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    header(["1 thread", "2", "", ""]);
    let longest = SIZES[SIZES.len() - 1];
    let reducer = Reducer::new(DataType::F32, ReduceOp::Sum, 2)?;
    let mut memories = [Memory::new(2, longest), Memory::new(2, longest)];
    for (work, count) in [("copy", 1), ("add", 2)] {
        for (kind, store) in [("cached", Store::Cached), ("streaming", Store::Streaming)] {
            let name = format!("{work} {kind}, {} MiB", longest >> 20);
            if !is_wanted(&name) {
                continue;
            }
            let speeds = [1, 2].map(|threads| {
                let rounds = (0..ROUNDS).map(|_| {
                    together(&mut memories[..threads], |memory| {
                        for at in (0..longest).step_by(PIECE) {
                            let (sources, sinks) = memory.pieces(count, at, PIECE, store);
                            reducer.apply(black_box(&sources), black_box(&sinks), Direction::Forwards);
                        }
                    })
                });
                (threads * longest) as f64 / rounds.fold(f64::INFINITY, f64::min)
            });
            row(&name, speeds);
        }
    }
    Ok(())
}

/// Nanoseconds from the first start to the last end of the threads, each on its memory. They take the times
/// themselves: with as many of them as cores, a thread that only watches may see the start late.
fn together(memories: &mut [Memory], work: impl Fn(&mut Memory) + Sync) -> f64 {
    let barrier = Barrier::new(memories.len());
    let (barrier, work) = (&barrier, &work);
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let run = |memory| {
            move || {
                barrier.wait();
                let start = Instant::now();
                work(memory);
                (start, Instant::now())
            }
        };
        let threads: Vec<_> = memories.iter_mut().map(|memory| scope.spawn(run(memory))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that does not panic")).collect()
    });
    let start = times.iter().map(|time| time.0).min().expect("a thread");
    let end = times.iter().map(|time| time.1).max().expect("a thread");
    (end - start).as_nanos() as f64
}

/// What a thread works on.
struct Memory {
    sources: Vec<Vec<u8>>,
    sink: Vec<u8>,
}

impl Memory {
    /// Normal numbers around one in every type, and so are their sums and products.
    fn new(sources: usize, bytes: usize) -> Memory {
        Memory { sources: vec![vec![0x3f; bytes]; sources], sink: vec![0x3f; bytes] }
    }

    /// The first `count` sources and the sink, `len` bytes from `at` on.
    fn pieces(&mut self, count: usize, at: usize, len: usize, store: Store) -> (Vec<Source>, [PieceMut; 1]) {
        let piece = |source: &Vec<u8>| Buffers::new(&source[at..at + len], &mut []).input();
        let sources =
            self.sources[..count].iter().map(|source| Source { piece: piece(source), scaled: true });
        let sink = Buffers::new(&[], &mut self.sink[at..at + len]).output();
        (sources.collect(), [sink.stored(store)])
    }
}

fn header(columns: [&str; 4]) {
    print!("\n{:<24}", "");
    columns.iter().for_each(|column| print!(" {column:>8}"));
    println!();
}

fn row<const N: usize>(name: &str, figures: [f64; N]) {
    print!("{name:<24}");
    figures.iter().for_each(|figure| print!(" {figure:>8.1}"));
    println!();
}

/// Gigabytes per second of `work` on `size` bytes: the best of several rounds, each of many runs.
fn gigabytes(size: usize, mut work: impl FnMut()) -> f64 {
    let mut time = |runs: u32| {
        let start = Instant::now();
        (0..runs).for_each(|_| work());
        start.elapsed()
    };
    let mut runs = 1;
    while time(runs) < ROUND {
        runs *= 2;
    }
    let rounds = (0..ROUNDS).map(|_| time(runs).as_nanos() as f64 / runs as f64);
    size as f64 / rounds.fold(f64::INFINITY, f64::min)
}

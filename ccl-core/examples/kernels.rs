//! How fast the reduction kernels are, beside `memcpy` in the same run.
//!
//! ```text
//! cargo run --release -p ccl-core --example kernels            the table
//! cargo run --release -p ccl-core --example kernels -- max f   only rows that have both texts
//! ```
//!
//! Two sources go into one sink. A figure is gigabytes of one buffer per second, the best of several rounds;
//! `memcpy` is one buffer into another.
#![allow(clippy::print_stdout)]

use ccl_core::simd::{Buffers, Level, Piece, PieceMut, Reducer, Source};
use ccl_core::{DataType, ReduceOp, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SIZES: [usize; 4] = [8, 16 << 10, 1 << 20, 64 << 20];
const ROUND: Duration = Duration::from_millis(2);
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let longest = SIZES[SIZES.len() - 1];
    // Normal numbers around one in every type, and so are their sums and products.
    let [a, b, mut c] = [(); 3].map(|()| vec![0x3fu8; longest]);
    println!("{:<10} {:<5} {:<7} {:>8} {:>8} {:>8} {:>8}", "", "", "", "8 B ns", "16 KiB", "1 MiB", "64 MiB");
    let copied = SIZES
        .map(|size| best(|| black_box(&mut c)[..size].copy_from_slice(&black_box(&a)[..size])) / size as f64);
    row("memcpy", copied);
    for dtype in DataType::ALL {
        let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Avg, ReduceOp::Bxor];
        for op in ops.into_iter().filter(|op| op.check(dtype).is_ok()) {
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                let name = format!("{:<10} {:<5} {:<7}", dtype.name(), op.name(), level.name());
                if !wanted.iter().all(|text| name.contains(text.as_str())) {
                    continue;
                }
                let reducer = Reducer::at(level, dtype, op, 2)?;
                row(
                    &name,
                    SIZES.map(|size| {
                        let first = Buffers::new(&a[..size], &mut c[..size]);
                        let second = Buffers::new(&b[..size], &mut []);
                        let sources = [first.input(), second.input()].map(scaled);
                        let sinks: [PieceMut; 1] = [first.output()];
                        best(|| reducer.apply(black_box(&sources), black_box(&sinks))) / size as f64
                    }),
                );
            }
        }
    }
    Ok(())
}

fn scaled(piece: Piece) -> Source {
    Source { piece, scaled: true }
}

/// Prints nanoseconds per byte: as time for the first size, as speed for the others.
fn row(name: &str, per_byte: [f64; SIZES.len()]) {
    let [short, speeds @ ..] = per_byte;
    print!("{name:<24} {:>8.1}", short * SIZES[0] as f64);
    for per_byte in speeds {
        print!(" {:>8.1}", 1.0 / per_byte);
    }
    println!();
}

/// Nanoseconds that one run of `work` takes: the best of several rounds, each of many runs.
fn best(mut work: impl FnMut()) -> f64 {
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
    rounds.fold(f64::INFINITY, f64::min)
}

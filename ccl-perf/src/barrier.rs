//! The time of a barrier, and whether it holds everybody back until the last rank has come.

use crate::options::Options;
use crate::report::{Device, Row, Spread, Timing};
use crate::{Program, ranks};
use ccl::{Communicator, ReduceOp, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// How much later than the others one rank comes to a checked barrier.
const LATE: Duration = Duration::from_micros(200);

/// One line of the table: a mean barrier, and how many ranks left one too early.
pub(crate) fn measure(comm: &mut Communicator, options: &Options, devices: &[Device]) -> Result<Row> {
    let mut times = time(comm, options)?;
    ranks::combine(comm, options.average, &mut times)?;
    // Clocks of different hosts do not tell who came first.
    let one_clock = devices.iter().all(|device| device.hostname == devices[0].hostname);
    let nwrong = if options.check > 0 && one_clock {
        let early = (0..options.check).map(|turn| left_early(comm, turn)).sum::<Result<u64>>()?;
        Some(ranks::reduce(comm, early, ReduceOp::Sum)?)
    } else {
        None
    };
    Ok(Row {
        size: 0,
        count: 0,
        dtype: "none".into(),
        redop: "none".into(),
        root: -1,
        out_of_place: Timing { time: times[0], alg_bw: 0.0, bus_bw: 0.0, nwrong },
        in_place: None,
        out_of_place_per_iter: options.per_iteration.then(|| Spread::of(times[1..].to_vec())),
        in_place_per_iter: None,
        actual_iterations: options.iterations,
        experiment_name: Program::Barrier.name().into(),
        algorithm: "barrier".into(),
    })
}

/// Microseconds of a mean barrier, then of each iteration's where that was asked for.
fn time(comm: &mut Communicator, options: &Options) -> Result<Vec<f64>> {
    for _ in 0..=options.warmup {
        comm.barrier()?;
    }
    let mut times = vec![0.0];
    let start = Instant::now();
    let mut last = start;
    for _ in 0..options.iterations {
        for _ in 0..options.aggregate {
            comm.barrier()?;
        }
        if options.per_iteration {
            let now = Instant::now();
            times.push((now - last).as_secs_f64());
            last = now;
        }
    }
    times[0] = start.elapsed().as_secs_f64() / f64::from(options.iterations);
    let per_call = 1e6 / f64::from(options.aggregate);
    Ok(times.into_iter().map(|seconds| seconds * per_call).collect())
}

/// Whether this rank left a barrier before the last one, another with each turn, had come to it.
fn left_early(comm: &mut Communicator, turn: u32) -> Result<u64> {
    let late = turn % comm.size() == comm.rank();
    let start = Instant::now();
    while late && start.elapsed() < LATE {
        std::thread::yield_now();
    }
    let came = nanoseconds();
    comm.barrier()?;
    let left = nanoseconds();
    let last_came = ranks::reduce(comm, came, ReduceOp::Max)?;
    Ok(u64::from(left < last_came))
}

/// Since this host was started, for all its processes.
fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

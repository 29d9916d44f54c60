//! The measurement: every size, type, operator and root, out of place and in place.

use crate::buffers::{Layout, Pair};
use crate::data::{self, Inputs};
use crate::operator::Operator;
use crate::options::{Options, Place, Root};
use crate::report::{Average, OutOfBounds, Report, Row, RunConfig, Spread, Timing, now};
use crate::work::Work;
use crate::{Program, barrier, compare, progress::Progress, ranks, table};
use ccl::{Collective, Communicator, DataType, Error, Explanation, ReduceOp, Result};
use std::io::Write as _;
use std::time::Instant;

/// Runs the whole table on this rank; rank 0 prints it and returns the report.
/// The number is that of wrong elements on all ranks.
pub(crate) fn run(
    comm: &mut Communicator,
    program: Program,
    options: &Options,
) -> Result<(u64, Option<Report>)> {
    let start_time = now();
    let (speaks, nranks) = (comm.rank() == 0, comm.size());
    let devices = ranks::devices(comm, options.memory)?;
    if speaks {
        print(&table::preamble(program, options, &devices))?;
        print(&table::header(program, options))?;
    }
    let mut rows = Vec::new();
    match program.collective() {
        None => repeat(options.cycles, || {
            let row = barrier::measure(comm, options, &devices)?;
            if speaks {
                print(&table::barrier_row(&row, nranks, options.timestamps.then(now).as_deref()))?;
            }
            rows.push(row);
            Ok(())
        })?,
        Some(collective) => {
            let mut bench = Bench::new(comm, program, collective, options)?;
            repeat(options.cycles, || bench.cycle(&mut rows))?;
        }
    }
    let timings =
        || rows.iter().flat_map(|row: &Row| std::iter::once(&row.out_of_place).chain(&row.in_place));
    let mean =
        |value: fn(&Timing) -> f64| timings().map(value).sum::<f64>() / timings().count().max(1) as f64;
    let wrong = timings().filter_map(|t| t.nwrong).sum();
    if !speaks {
        return Ok((wrong, None));
    }
    let bandwidth = mean(|t| t.bus_bw);
    let average = if program.moves_data() { bandwidth } else { mean(|t| t.time) };
    print(&table::footer(program, wrong, average))?;
    let config = RunConfig {
        nthreads: options.threads,
        nranks,
        minimum_bytes: options.min,
        maximum_bytes: options.max,
        warmup_iters: options.warmup,
        iterations: options.iterations,
        aggregated_iterations: options.aggregate,
        validation: options.check,
        algorithm: options.algo.clone(),
        devices,
    };
    let report = Report {
        version: 2,
        start_time,
        args: std::env::args().collect(),
        rdmaccl_version: env!("CARGO_PKG_VERSION").into(),
        config,
        results: rows,
        out_of_bounds: OutOfBounds { count: wrong, okay: wrong == 0 },
        average_bus_bandwidth: Average { bandwidth },
        end_time: now(),
    };
    Ok((wrong, Some(report)))
}

/// So many times; 0: for ever.
fn repeat(times: u32, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    if times == 0 {
        loop {
            run()?;
        }
    }
    (0..times).try_for_each(|_| run())
}

struct Bench<'a> {
    comm: &'a mut Communicator,
    program: Program,
    collective: Collective,
    options: &'a Options,
    sizes: Vec<u64>,
    memory: Pair,
    progress: Progress,
    /// Counts the checked calls: no two of them have the same data.
    seed: u64,
}

/// What came of one size, out of place or in place.
struct Placement {
    timing: Timing,
    spread: Option<Spread>,
    /// What was chosen, where there was a choice.
    plan: Option<Explanation>,
}

impl<'a> Bench<'a> {
    fn new(
        comm: &'a mut Communicator,
        program: Program,
        collective: Collective,
        options: &'a Options,
    ) -> Result<Bench<'a>> {
        let sizes = options.sizes().map_err(|why| Error::invalid(why, "see --help"))?;
        let largest = sizes.last().copied().unwrap_or(0) as usize;
        let progress = Progress::new(comm.rank() == 0);
        let shared = options.local_register > 0;
        let memory = match options.memory {
            Place::Host => Pair::new(largest, options.unalign as usize, shared)?,
            Place::Device => Pair::on_device(largest, options.unalign as usize, comm)?,
        };
        Ok(Bench { memory, comm, program, collective, options, sizes, progress, seed: 0 })
    }

    fn cycle(&mut self, rows: &mut Vec<Row>) -> Result<()> {
        let sum = [Operator::Plain(ReduceOp::Sum)];
        let ops = if self.program.reduces() { &self.options.ops.0[..] } else { &sum };
        let roots = match self.options.root {
            _ if !self.program.rooted() => 0..1,
            Root::All => 0..self.comm.size(),
            Root::One(root) if root < self.comm.size() => root..root + 1,
            Root::One(root) => {
                let last = self.comm.size() - 1;
                return Err(Error::invalid(format!("-r {root}"), format!("the ranks are 0 to {last}")));
            }
        };
        for &dtype in &self.options.types.0 {
            for op in ops.iter().filter_map(|op| op.on(dtype, self.comm.rank()).ok()).collect::<Vec<_>>() {
                for root in roots.clone() {
                    for size in self.sizes.clone() {
                        let row = self.row(size, dtype, op, root)?;
                        rows.push(row);
                    }
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, size: u64, dtype: DataType, op: ReduceOp, root: u32) -> Result<Row> {
        let place = (self.comm.rank(), self.comm.size());
        let is_uneven = self.program == Program::AllToAllV;
        let work = Work::new(self.collective, is_uneven, place, size, dtype, op, root);
        let bytes = work.bytes();
        self.progress.show(&format!("{} {dtype}: out of place", crate::sizes::short(bytes)));
        let out_of_place = self.placement(&work, false)?;
        let in_place = match self.program.has_in_place() {
            true => {
                self.progress.show(&format!("{} {dtype}: in place", crate::sizes::short(bytes)));
                Some(self.placement(&work, true)?)
            }
            false => None,
        };
        self.progress.clear();

        let placements = [(false, Some(&out_of_place)), (true, in_place.as_ref())];
        let explanations: Vec<_> =
            placements.into_iter().filter_map(|(place, p)| Some((place, p?.plan.clone()?))).collect();
        let algorithm = match explanations.first() {
            Some((_, plan)) => plan.algorithm,
            None => work.only_algorithm().unwrap_or_default(),
        };
        let (in_place, in_place_per_iter) = in_place.map_or((None, None), |p| (Some(p.timing), p.spread));
        let row = Row {
            size: bytes,
            count: work.call().count as u64,
            dtype: dtype.name().into(),
            redop: if self.program.reduces() { op.name().into() } else { "none".into() },
            root: if self.program.rooted() { root.into() } else { -1 },
            out_of_place: out_of_place.timing,
            in_place,
            out_of_place_per_iter: out_of_place.spread,
            in_place_per_iter,
            actual_iterations: self.options.iterations,
            experiment_name: self.program.name().into(),
            algorithm: algorithm.into(),
        };
        if self.comm.rank() == 0 {
            let stamp = self.options.timestamps.then(now);
            print(&table::row(&row, stamp.as_deref()))?;
            if self.options.explain {
                for (is_in_place, plan) in &explanations {
                    let timing = if *is_in_place { row.in_place.as_ref() } else { Some(&row.out_of_place) };
                    print(&table::explanation(*is_in_place, plan, timing.map_or(f64::NAN, |t| t.time)))?;
                }
            }
        }
        if self.options.compare {
            for (is_in_place, _) in explanations {
                let text = compare::run(self.comm, &work, &mut self.memory, is_in_place)?;
                if self.comm.rank() == 0 {
                    print(&text)?;
                }
            }
        }
        Ok(row)
    }

    fn placement(&mut self, work: &Work, in_place: bool) -> Result<Placement> {
        self.comm.set_algorithm(self.options.algo.as_deref())?;
        let measured = self.time(work, in_place).and_then(|times| {
            let wrong = self.check(work, in_place)?;
            let plan = match work.only_algorithm() {
                None => Some(self.comm.explain(work.call(), in_place)?),
                Some(_) => None,
            };
            Ok((times, wrong, plan))
        });
        self.comm.set_algorithm(None)?;
        let (mut times, wrong, plan) = measured?;

        for time in &mut times {
            *time *= 1e6 / f64::from(self.options.aggregate);
        }
        ranks::combine(self.comm, self.options.average, &mut times)?;
        let checks = self.options.check > 0;
        let nwrong = if checks { Some(ranks::reduce(self.comm, wrong, ReduceOp::Sum)?) } else { None };
        let time = times[0];
        let alg_bw = if time > 0.0 { work.bytes() as f64 / time / 1e3 } else { 0.0 };
        let bus_bw = alg_bw * self.program.bus_factor(self.comm.size());
        let spread = self.options.per_iteration.then(|| Spread::of(times[1..].to_vec()));
        Ok(Placement { timing: Timing { time, alg_bw, bus_bw, nwrong }, spread, plan })
    }

    /// Seconds of a mean iteration, then of each of them where that was asked for.
    fn time(&mut self, work: &Work, in_place: bool) -> Result<Vec<f64>> {
        let layout = work.layout();
        self.write_input(work, &layout, in_place)?;
        for _ in 0..self.options.warmup {
            self.memory.run(self.comm, work, &layout, in_place)?;
        }
        let iterations = self.options.iterations;
        let mut times = Vec::with_capacity(1 + iterations as usize);
        times.push(0.0);
        self.comm.barrier()?;
        let start = Instant::now();
        let mut last = start;
        for _ in 0..iterations {
            for _ in 0..self.options.aggregate {
                self.memory.run(self.comm, work, &layout, in_place)?;
            }
            if self.options.per_iteration {
                let now = Instant::now();
                times.push((now - last).as_secs_f64());
                last = now;
            }
        }
        times[0] = start.elapsed().as_secs_f64() / f64::from(iterations);
        self.comm.barrier()?;
        Ok(times)
    }

    /// Wrong elements on this rank over all checked calls.
    fn check(&mut self, work: &Work, in_place: bool) -> Result<u64> {
        let layout = work.layout();
        let mut wrong = 0;
        for _ in 0..self.options.check {
            self.seed += 1;
            let inputs = self.write_input(work, &layout, in_place)?;
            self.memory.run(self.comm, work, &layout, in_place)?;
            wrong += work.wrong(self.memory.output(&layout, in_place)?, &inputs);
        }
        Ok(wrong)
    }

    fn write_input(&mut self, work: &Work, layout: &Layout, in_place: bool) -> Result<Inputs> {
        let inputs = work.inputs(self.seed);
        let buffer = self.memory.input(layout, in_place);
        if !buffer.is_empty() {
            data::fill(buffer, &inputs.of(self.comm.rank()), 0);
        }
        self.memory.written(layout)?;
        Ok(inputs)
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Error::system("write to standard output", e, "who reads it must stay"))
}

//! The measurement: every size, type, operator and root, out of place and in place.

use crate::buffers::{Layout, Pair};
use crate::data::{self, Inputs};
use crate::operator::Operator;
use crate::options::{Options, Root};
use crate::report::{Average, Device, OutOfBounds, Report, Row, RunConfig, Spread, Timing, now};
use crate::{progress::Progress, table};
use ccl::{Buffers, Call, Collective, Communicator, DataType, Error, Explanation, ReduceOp, Result};
use std::io::Write as _;
use std::time::Instant;

/// Runs the whole table on this rank; rank 0 prints it and returns the report.
/// The number is that of wrong elements on all ranks.
pub(crate) fn run(
    comm: &mut Communicator,
    collective: Collective,
    options: &Options,
) -> Result<(u64, Option<Report>)> {
    let mut bench = Bench::new(comm, collective, options)?;
    let start_time = now();
    let devices = bench.devices()?;
    let speaks = bench.comm.rank() == 0;
    if speaks {
        print(&table::preamble(&bench.program, options, &devices))?;
        print(&table::header(options))?;
    }
    let mut rows = Vec::new();
    let mut cycle = 0;
    while options.cycles == 0 || cycle < options.cycles {
        bench.cycle(&mut rows)?;
        cycle += 1;
    }
    let timings = || rows.iter().flat_map(|row: &Row| [&row.out_of_place, &row.in_place]);
    let wrong = timings().filter_map(|t| t.nwrong).sum();
    let bandwidth = timings().map(|t| t.bus_bw).sum::<f64>() / timings().count().max(1) as f64;
    if !speaks {
        return Ok((wrong, None));
    }
    print(&table::footer(&bench.program, wrong, bandwidth))?;
    let config = RunConfig {
        nthreads: options.threads,
        nranks: bench.comm.size(),
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

struct Bench<'a> {
    comm: &'a mut Communicator,
    collective: Collective,
    options: &'a Options,
    program: String,
    sizes: Vec<u64>,
    memory: Pair,
    progress: Progress,
    /// Counts the checked calls: no two of them have the same data.
    seed: u64,
}

impl<'a> Bench<'a> {
    fn new(comm: &'a mut Communicator, collective: Collective, options: &'a Options) -> Result<Bench<'a>> {
        let sizes = options.sizes().map_err(|why| Error::invalid(why, "see --help"))?;
        let largest = sizes.last().copied().unwrap_or(0) as usize;
        let progress = Progress::new(comm.rank() == 0);
        Ok(Bench {
            memory: Pair::new(largest, options.unalign as usize),
            program: format!("{collective}_perf"),
            comm,
            collective,
            options,
            sizes,
            progress,
            seed: 0,
        })
    }

    fn cycle(&mut self, rows: &mut Vec<Row>) -> Result<()> {
        let sum = [Operator::Plain(ReduceOp::Sum)];
        let ops = if self.collective.reduces() { &self.options.ops.0[..] } else { &sum };
        let roots = match self.options.root {
            _ if !self.collective.rooted() => 0..1,
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
        // The size is that of the larger side, as in nccl-tests: n blocks where there are n.
        let ranks = self.comm.size();
        let blocks = self
            .collective
            .input_blocks(ranks, root, root)
            .max(self.collective.output_blocks(ranks, root, root)) as usize;
        let count = size as usize / dtype.size() / blocks;
        let bytes = (count * dtype.size() * blocks) as u64;
        let call = Call { collective: self.collective, count, dtype, op, root };

        self.progress.show(&format!("{} {dtype}: out of place", crate::sizes::short(bytes)));
        let (out_of_place, out_of_place_per_iter, plan) = self.placement(&call, bytes, false)?;
        self.progress.show(&format!("{} {dtype}: in place", crate::sizes::short(bytes)));
        let (in_place, in_place_per_iter, plan_in_place) = self.placement(&call, bytes, true)?;
        self.progress.clear();

        let row = Row {
            size: bytes,
            count: count as u64,
            dtype: dtype.name().into(),
            redop: if self.collective.reduces() { op.name().into() } else { "none".into() },
            root: if self.collective.rooted() { root.into() } else { -1 },
            out_of_place,
            in_place,
            out_of_place_per_iter,
            in_place_per_iter,
            actual_iterations: self.options.iterations,
            experiment_name: self.program.clone(),
            algorithm: plan.algorithm.into(),
        };
        if self.comm.rank() == 0 {
            let stamp = self.options.timestamps.then(now);
            print(&table::row(&row, stamp.as_deref()))?;
            if self.options.explain {
                for (place, plan) in [("out of place", plan), ("in place", plan_in_place)] {
                    print(&format!(
                        "#   {place}: {}, {} tiles of {} bytes, predicted {:.2} us\n",
                        plan.algorithm,
                        plan.tiles,
                        plan.tile_bytes,
                        plan.predicted_ns / 1e3
                    ))?;
                }
            }
        }
        Ok(row)
    }

    fn placement(
        &mut self,
        call: &Call,
        bytes: u64,
        in_place: bool,
    ) -> Result<(Timing, Option<Spread>, Explanation)> {
        self.comm.set_algorithm(self.options.algo.as_deref())?;
        let measured = self.time(call, in_place);
        let checked = measured
            .and_then(|times| Ok((times, self.check(call, in_place)?, self.comm.explain(call, in_place)?)));
        self.comm.set_algorithm(None)?;
        let (mut times, wrong, plan) = checked?;

        for time in &mut times {
            *time *= 1e6 / f64::from(self.options.aggregate);
        }
        self.over_ranks(&mut times)?;
        let nwrong = if self.options.check == 0 { None } else { Some(self.total(wrong)?) };
        let time = times[0];
        let alg_bw = if time > 0.0 { bytes as f64 / time / 1e3 } else { 0.0 };
        let bus_bw = alg_bw * bus_factor(call.collective, self.comm.size());
        let spread = self.options.per_iteration.then(|| Spread::of(times[1..].to_vec()));
        Ok((Timing { time, alg_bw, bus_bw, nwrong }, spread, plan))
    }

    /// Seconds of a mean iteration, then of each of them where that was asked for.
    fn time(&mut self, call: &Call, in_place: bool) -> Result<Vec<f64>> {
        let layout = self.layout(call);
        self.write_input(call, &layout, in_place);
        for _ in 0..self.options.warmup {
            self.comm.run(call, self.memory.for_call(&layout, in_place))?;
        }
        let iterations = self.options.iterations;
        let mut times = Vec::with_capacity(1 + iterations as usize);
        times.push(0.0);
        self.comm.barrier()?;
        let start = Instant::now();
        let mut last = start;
        for _ in 0..iterations {
            for _ in 0..self.options.aggregate {
                self.comm.run(call, self.memory.for_call(&layout, in_place))?;
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
    fn check(&mut self, call: &Call, in_place: bool) -> Result<u64> {
        let mut wrong = 0;
        for _ in 0..self.options.check {
            self.seed += 1;
            let layout = self.layout(call);
            let inputs = self.write_input(call, &layout, in_place);
            self.comm.run(call, self.memory.for_call(&layout, in_place))?;
            wrong += self.wrong(call, &layout, &inputs, in_place);
        }
        Ok(wrong)
    }

    fn write_input(&mut self, call: &Call, layout: &Layout, in_place: bool) -> Inputs {
        let op = call.collective.reduces().then_some(call.op);
        let rank = self.comm.rank();
        // Every rank's data repeats alike, also that of ranks which send nothing themselves.
        let blocks = call.collective.input_blocks(self.comm.size(), call.root, call.root) as usize;
        let inputs = Inputs::new(call.dtype, op, self.comm.size(), self.seed, call.count * blocks);
        let buffer = self.memory.input(layout, in_place);
        if !buffer.is_empty() {
            data::fill(buffer, &inputs.of(rank), 0);
        }
        inputs
    }

    fn wrong(&mut self, call: &Call, layout: &Layout, inputs: &Inputs, in_place: bool) -> u64 {
        let (rank, element) = (self.comm.rank(), call.dtype.size());
        let block = call.count * element;
        let output = self.memory.output(layout, in_place);
        if output.is_empty() {
            return 0;
        }
        match call.collective {
            Collective::AllReduce | Collective::Reduce => {
                data::count_wrong(output, &inputs.reduced(call.op), 0, element)
            }
            Collective::ReduceScatter => {
                data::count_wrong(output, &inputs.reduced(call.op), rank as usize * block, element)
            }
            Collective::Broadcast | Collective::SendRecv => {
                data::count_wrong(output, &inputs.of(call.root), 0, element)
            }
            Collective::Scatter => {
                data::count_wrong(output, &inputs.of(call.root), rank as usize * block, element)
            }
            Collective::AllGather | Collective::Gather => (0u32..)
                .zip(output.chunks_exact(block))
                .map(|(from, part)| data::count_wrong(part, &inputs.of(from), 0, element))
                .sum(),
            Collective::AllToAll => (0u32..)
                .zip(output.chunks_exact(block))
                .map(|(from, part)| data::count_wrong(part, &inputs.of(from), rank as usize * block, element))
                .sum(),
        }
    }

    fn layout(&self, call: &Call) -> Layout {
        let block = call.count * call.dtype.size();
        Layout::new(call.collective, self.comm.size(), self.comm.rank(), call.root, block)
    }

    /// Combines the ranks' times as `-a` says, through the communicator itself.
    fn over_ranks(&mut self, times: &mut [f64]) -> Result<()> {
        let op = match self.options.average {
            // Rank 0 prints, and keeps its own.
            0 => return Ok(()),
            1 => ReduceOp::Avg,
            2 => ReduceOp::Min,
            _ => ReduceOp::Max,
        };
        let mut bytes: Vec<u8> = times.iter().flat_map(|t| t.to_le_bytes()).collect();
        self.all_reduce(&mut bytes, DataType::F64, op)?;
        for (time, bytes) in times.iter_mut().zip(bytes.as_chunks().0) {
            *time = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn total(&mut self, wrong: u64) -> Result<u64> {
        let mut bytes = wrong.to_le_bytes();
        self.all_reduce(&mut bytes, DataType::U64, ReduceOp::Sum)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn all_reduce(&mut self, bytes: &mut [u8], dtype: DataType, op: ReduceOp) -> Result<()> {
        let len = bytes.len();
        let call = Call { collective: Collective::AllReduce, count: len / dtype.size(), dtype, op, root: 0 };
        self.comm.run(&call, Buffers::in_place(bytes, 0..len, 0..len))
    }

    /// Who takes part, asked of every rank.
    fn devices(&mut self) -> Result<Vec<Device>> {
        const RECORD: usize = 256;
        let own = Device {
            rank: self.comm.rank(),
            pid: std::process::id(),
            hostname: short_line("/proc/sys/kernel/hostname", "localhost"),
            device_info: processor(),
        };
        let text = format!("{}\n{}\n{}\n", own.pid, own.hostname, own.device_info);
        let mut sent = text.into_bytes();
        sent.resize(RECORD, 0);
        let mut received = vec![0; RECORD * self.comm.size() as usize];
        let call = Call {
            collective: Collective::AllGather,
            count: RECORD,
            dtype: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        self.comm.run(&call, Buffers::new(&sent, &mut received))?;
        let read = |(rank, record): (u32, &[u8])| {
            let text = String::from_utf8_lossy(record);
            let mut lines = text.trim_end_matches('\0').lines().map(str::to_string);
            let mut next = || lines.next().unwrap_or_default();
            Device { rank, pid: next().parse().unwrap_or(0), hostname: next(), device_info: next() }
        };
        Ok((0u32..).zip(received.chunks_exact(RECORD)).map(read).collect())
    }
}

/// How many bytes the busiest link carries per byte of size: nccl-tests' factors.
fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    let n = f64::from(ranks);
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::Broadcast | Collective::Reduce => 1.0,
        _ => (n - 1.0) / n,
    }
}

fn short_line(path: &str, otherwise: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line: String = text.trim().chars().filter(char::is_ascii).take(64).collect();
    if line.is_empty() { otherwise.to_string() } else { line }
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
    name.unwrap_or(std::env::consts::ARCH).trim().chars().filter(char::is_ascii).take(96).collect()
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Error::system("write to standard output", e, "who reads it must stay"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::ReduceScatter, 8), 0.875);
        assert_eq!(bus_factor(Collective::Broadcast, 8), 1.0);
        assert_eq!(bus_factor(Collective::Reduce, 8), 1.0);
        assert_eq!(bus_factor(Collective::AllReduce, 1), 0.0);
    }
}

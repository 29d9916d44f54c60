//! Ours beside others on the same devices, in turns within one run: all-reduces beside Open MPI's over UCX, a link's
//! bandwidth and latency beside perftest's. Everything is computed by the same processors, so ratios are what counts.
//!
//! Two hosts share one kernel here. It may put the programs of both on one processor while the other carries their packets, which takes
//! twice as long; bound to a processor each, which launchers do, a program that polls is in the way of its own packets. Everything
//! is measured bound and free, for each has the better of the two to its name.

use super::rdma::job;
use super::{Scenario, Stage};
use crate::job::Job;
use crate::network::Rail;
use crate::peers::{write_bandwidth, write_latency};
use crate::placement::Placement;
use crate::process::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(super) const SHORT: Scenario = Scenario {
    name: "peers_beside_ours",
    proves: "Open MPI over UCX and perftest run beside ours on the same devices, each with right results",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: |stage| compare(stage, 1, &["rc"], &[("8 B", 8, 50), ("64 KiB", 65536, 5)], 5),
};

/// Not among those that always run: it takes minutes.
pub(super) const FULL: Scenario = Scenario {
    name: "compare",
    proves: "all-reduces beside Open MPI over UCX, a link beside perftest: medians of up to seven rounds",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(900),
    run: |stage| compare(stage, 7, &["rc", "ud"], &SIZES, 100),
};

/// What is measured, its bytes, and the calls of one round: half a second of each, since the emulator itself pauses for milliseconds.
const SIZES: [(&str, u64, u32); 4] =
    [("8 B", 8, 8000), ("1 KiB", 1 << 10, 8000), ("64 KiB", 1 << 16, 500), ("1 MiB", 1 << 20, 50)];
const MIB: u64 = 1 << 20;

/// What our calls use, and with which option.
struct OurMemory {
    name: &'static str,
    option: &'static str,
}

const MEMORY: [OurMemory; 2] =
    [OurMemory { name: "", option: "" }, OurMemory { name: ", registered memory", option: "-R 1" }];

/// All that was measured, by name.
type Rounds = BTreeMap<String, Vec<f64>>;

fn compare(
    stage: &mut Stage<'_>,
    rounds: u32,
    transports: &[&str],
    sizes: &[(&str, u64, u32)],
    writes: u32,
) -> Result<(), String> {
    let mut measured = Rounds::new();
    let mut keep = |name: String, value: f64| measured.entry(name).or_default().push(value);
    let turns = (0..rounds).flat_map(|round| Placement::ALL.map(|p| (round, p)));
    let (mut began, mut longest) = (Instant::now(), Duration::ZERO);
    for (round, processors) in turns {
        // On a slow machine fewer rounds are better than none.
        longest = longest.max(began.elapsed());
        began = Instant::now();
        if round > 0 && began + longest * 5 / 2 > stage.deadline {
            break;
        }
        let how = processors.name();
        // Neither is always the first.
        for is_ours in [round % 2 == 1, round % 2 == 0] {
            if is_ours {
                for ((name, bytes, calls), memory) in
                    sizes.iter().flat_map(|s| MEMORY.iter().map(move |m| (s, m)))
                {
                    let us = ours(stage, "all_reduce_perf", processors, *bytes, *calls, memory.option)?;
                    keep(format!("all-reduce of {name}, ours{}, {how}, us", memory.name), us);
                }
                continue;
            }
            for transport in transports {
                for ((name, ..), us) in sizes.iter().zip(open_mpi(stage, transport, processors, sizes)?) {
                    keep(format!("all-reduce of {name}, Open MPI over UCX {transport}, {how}, us"), us);
                }
            }
        }
        let ends = [0, 1].map(|host| stage.network.hosts[host].rails[0].clone());
        let ends = [&ends[0], &ends[1]];
        let theirs = write_bandwidth(ends, processors, MIB, writes, stage.deadline)?;
        keep(format!("1 MiB one way, ib_write_bw, {how}, MiB/s"), theirs);
        for memory in &MEMORY {
            // The last rank's time: the root is through while its last pieces are under way.
            let options = format!("-a 3 {}", memory.option);
            let us = ours(stage, "broadcast_perf", processors, MIB, writes, &options)?;
            keep(format!("1 MiB one way, ours (broadcast_perf){}, {how}, MiB/s", memory.name), 1e6 / us);
        }
        let theirs = write_latency(ends, processors, 8, 50 * writes, stage.deadline)?;
        keep(format!("8 B one way, ib_write_lat, {how}, us"), theirs);
        let us = ours(stage, "sendrecv_perf", processors, 8, 50 * writes, "")?;
        keep(format!("8 B one way, ours (sendrecv_perf), {how}, us"), us);
    }
    stage.measured("rounds", measured.values().map(Vec::len).min().unwrap_or(0) as f64);
    for (name, mut values) in measured {
        values.sort_by(f64::total_cmp);
        stage.measured(&name, values[values.len() / 2]);
    }
    Ok(())
}

/// Microseconds of one call between two hosts, whose result is checked. As many calls before are not counted: an emulated processor
/// translates what it runs for the first time.
fn ours(
    stage: &Stage<'_>,
    program: &str,
    processors: Placement,
    bytes: u64,
    calls: u32,
    options: &str,
) -> Result<f64, String> {
    let arguments = format!("-b {bytes} -e {bytes} -n {calls} -w {calls} {options}");
    let job = Job { processors, ..job(program, &arguments, &[0, 1]) };
    let said = job.run(&stage.network, stage.programs, stage.deadline)?;
    time(&said, bytes).ok_or_else(|| format!("{program} printed no time:\n{said}"))
}

/// The time in the row of a table that begins with `bytes`.
fn time(table: &str, bytes: u64) -> Option<f64> {
    // size count type redop root time …
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row.first().is_some_and(|first| *first == bytes.to_string()))?;
    row.get(5)?.parse().ok()
}

/// The same of MPI_Allreduce, for all sizes.
fn open_mpi(
    stage: &Stage<'_>,
    transport: &str,
    processors: Placement,
    sizes: &[(&str, u64, u32)],
) -> Result<Vec<f64>, String> {
    let program = stage.programs.join("mpi_all_reduce");
    let arguments: String = sizes.iter().map(|(_, bytes, calls)| format!(" {bytes} {calls}")).collect();
    let rank = |(host, rail): (usize, &Rail)| {
        let set = format!("-x UCX_NET_DEVICES={}:1 -x UCX_IB_GID_INDEX={}", rail.device, rail.gid_index()?);
        Ok::<_, String>(format!("-np 1 {set} {}{}{arguments}", processors.words(host), program.display()))
    };
    let ranks = stage.network.rails().enumerate().map(rank).collect::<Result<Vec<_>, _>>()?;
    let line = format!(
        "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca pml ucx --mca btl self --mca osc ucx {}",
        ranks.join(" : ")
    );
    // `-x` is for one of the two only. UCX takes no datagram of rdma_rxe's if it looks at the address in front.
    let variables = [
        ("UCX_TLS", format!("{transport},self")),
        ("UCX_UD_ETH_DGID_CHECK", "n".into()),
        ("UCX_WARN_UNUSED_ENV_VARS", "n".into()),
    ];
    let variables: Vec<_> = variables.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let said = Process::start_with(&line, &variables, "")?.finish(stage.deadline)?;
    let of = |bytes: u64| {
        let line = said.lines().find(|line| line.starts_with(&format!("bytes {bytes} ")))?;
        let words: Vec<_> = line.split_whitespace().collect();
        (words.get(5)? == &"0").then(|| words.get(3)?.parse().ok())?
    };
    let times = sizes.iter().map(|(_, bytes, _)| of(*bytes));
    times.collect::<Option<_>>().ok_or_else(|| format!("mpi_all_reduce is not right:\n{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_read_from_the_row_of_the_size() {
        let table = "#  (B)\n  8   2  float  sum  -1  80.37  0.00  0.00  0  78.51\n  64  16  float  sum  -1  90.5  0\n";
        assert_eq!((time(table, 8), time(table, 64), time(table, 16)), (Some(80.37), Some(90.5), None));
    }
}

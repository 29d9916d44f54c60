//! The library's programs, with their own check of every element.

use super::{Scenario, Stage};
use crate::job::Job;
use crate::placement::Placement;
use std::time::Duration;

pub(super) const ONE_HOST: Scenario = Scenario {
    name: "one_host",
    proves: "every perf program between two ranks of one host, which shared memory joins: 0 wrong",
    hosts: 1,
    rails: 2,
    limit: Duration::from_secs(120),
    run: one_host,
};

pub(super) const KILLED: Scenario = Scenario {
    name: "killed_rank",
    proves: "a rank that is killed in mid-collective ends the others' calls with an error that names it",
    hosts: 1,
    rails: 1,
    limit: Duration::from_secs(60),
    run: killed,
};

pub(super) const PROGRAMS: [&str; 10] = [
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "broadcast_perf",
    "reduce_perf",
    "alltoall_perf",
    "alltoallv_perf",
    "gather_perf",
    "scatter_perf",
    "sendrecv_perf",
];

fn one_host(stage: &mut Stage<'_>) -> Result<(), String> {
    for program in PROGRAMS {
        // 4, 28, 196, … bytes: no power of two, so that nothing divides evenly.
        let job = Job {
            program,
            arguments: "-b 4 -e 1M -f 7 -n 2 -w 1",
            placement: &[0, 0],
            variables: &[],
            before: "",
            processors: Placement::Free,
        };
        job.run(&stage.network, stage.programs, stage.deadline)?;
    }
    Ok(())
}

fn killed(stage: &mut Stage<'_>) -> Result<(), String> {
    let job = Job {
        program: "all_reduce_perf",
        // The table's head is printed when the calls begin, and they take longer than there is time.
        arguments: "-b 1M -e 1M -n 1000000 -w 0 -c 0",
        placement: &[0, 0, 0],
        variables: &[],
        before: "",
        processors: Placement::Free,
    };
    let mut running = job.start(&stage.network, stage.programs)?;
    running.has_said(&[0], "(elements)", stage.deadline)?;
    running.kill(1);
    for (rank, said) in running.errors(stage.deadline)?.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        if !said.contains("rank 1 (") {
            return Err(format!("rank {rank} does not name the one that was killed:\n{said}"));
        }
    }
    Ok(())
}

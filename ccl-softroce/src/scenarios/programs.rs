//! The library's programs, with their own check of every element.

use super::{Scenario, Stage};
use crate::job::Job;
use std::time::Duration;

pub(super) const ONE_HOST: Scenario = Scenario {
    name: "one_host",
    proves: "every perf program between two ranks of one host, which shared memory joins: 0 wrong",
    hosts: 1,
    rails: 2,
    limit: Duration::from_secs(120),
    run: one_host,
};

const PROGRAMS: [&str; 10] = [
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
        };
        job.run(&stage.network, stage.programs, stage.deadline)?;
    }
    Ok(())
}

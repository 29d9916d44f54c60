//! The library between hosts, over queue pairs.

use super::programs::PROGRAMS;
use super::{Scenario, Stage};
use crate::faults::locked_memory;
use crate::job::Job;
use crate::network::{Host, MTU, Rail};
use crate::peers::free_port;
use crate::placement::Placement;
use crate::process::{Process, wait_until};
use std::time::Duration;

/// Nothing but RDMA may carry a piece between hosts, and what carries it is said.
pub(super) const RDMA: [(&str, &str); 2] = [("RDMACCL_NET", "ib"), ("RDMACCL_DEBUG", "warn,net=info")];

/// 4, 28, 196, … bytes: no power of two, so that nothing divides evenly.
const ODD_SIZES: &str = "-b 4 -e 1M -f 7 -n 2 -w 1";

pub(super) const TWO_HOSTS: Scenario = Scenario {
    name: "rdma_two_hosts",
    proves: "every perf program between two hosts of two rails: 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: two_hosts,
};

fn two_hosts(stage: &mut Stage<'_>) -> Result<(), String> {
    let before = packets(stage)?;
    for program in PROGRAMS {
        right(stage, program, ODD_SIZES, &[0, 1])?;
    }
    for (rail, (before, after)) in before.iter().zip(packets(stage)?).enumerate() {
        let sent = after - before;
        stage.measured(&format!("packets by rail {rail}"), sent as f64);
    }
    Ok(())
}

/// What all hosts have sent by each rail.
fn packets(stage: &Stage<'_>) -> Result<Vec<u64>, String> {
    let rails = 0..stage.network.hosts[0].rails.len();
    let of = |rail: usize| stage.network.hosts.iter().map(|host| host.rails[rail].packets()).sum();
    rails.map(of).collect()
}

pub(super) const SIZES: Scenario = Scenario {
    name: "rdma_sizes",
    proves: "nothing, single elements and 16 MiB with an odd count between two hosts of one rail: 0 wrong",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: sizes,
};

fn sizes(stage: &mut Stage<'_>) -> Result<(), String> {
    for program in ["all_reduce_perf", "all_gather_perf", "alltoall_perf", "sendrecv_perf"] {
        right(stage, program, "-b 0 -e 16 -i 4 -n 2 -w 1", &[0, 1])?;
        right(stage, program, "-b 16777204 -e 16777204 -n 1 -w 0", &[0, 1])?;
    }
    Ok(())
}

pub(super) const C_PROGRAM: Scenario = Scenario {
    name: "rdma_c_program",
    proves: "a C program on the installed library, given rank, size and the first host's address only, runs on two hosts over RDMA",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(60),
    run: c_program,
};

fn c_program(stage: &mut Stage<'_>) -> Result<(), String> {
    let hosts = &stage.network.hosts;
    let root = format!("{}:{}", hosts[0].rails[0].address, free_port()?);
    let library = stage.programs.join("../lib").display().to_string();
    let line = stage.programs.join("03_launcher").display().to_string();
    let before = stage.network.rails().map(Rail::messages).sum::<Result<u64, _>>()?;
    let rank = |(rank, host): (usize, &Host)| {
        // Which host it is, and where the library lies: all hosts are one machine here.
        let mut variables = host.environment();
        variables.push(("LD_LIBRARY_PATH".into(), library.clone()));
        variables.push(("RANK".into(), rank.to_string()));
        variables.push(("WORLD_SIZE".into(), hosts.len().to_string()));
        variables.push(("RDMACCL_ROOT".into(), root.clone()));
        Process::start_with(&line, &variables, "")
    };
    let ranks = hosts.iter().enumerate().map(rank).collect::<Result<Vec<_>, _>>()?;
    for (rank, process) in ranks.into_iter().enumerate() {
        let said = process.finish(stage.deadline)?;
        if !said.contains(&format!("rank {rank} of 2: the mean rank is 0.5")) {
            return Err(format!("rank {rank} is not right:\n{said}"));
        }
    }
    let sent = stage.network.rails().map(Rail::messages).sum::<Result<u64, _>>()? - before;
    stage.measured("packets of the devices", sent as f64);
    if sent == 0 { Err("no device has sent anything: another transport was used".into()) } else { Ok(()) }
}

pub(super) const FOUR_HOSTS: Scenario = Scenario {
    name: "rdma_four_hosts",
    proves: "the same among four hosts, with one rank and with two on each, which shared memory joins",
    hosts: 4,
    rails: 2,
    limit: Duration::from_secs(240),
    run: four_hosts,
};

fn four_hosts(stage: &mut Stage<'_>) -> Result<(), String> {
    for program in PROGRAMS {
        right(stage, program, "-b 4 -e 256K -f 19 -n 1 -w 1", &[0, 1, 2, 3])?;
    }
    for program in ["all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"] {
        right(stage, program, "-b 4 -e 64K -f 19 -n 1 -w 1", &[0, 0, 1, 1, 2, 2, 3, 3])?;
    }
    Ok(())
}

pub(super) const HYBRID: Scenario = Scenario {
    name: "rdma_two_ranks_per_host",
    proves: "two ranks on each of two hosts, beside each other and in turns: 0 wrong, and each peer's route is the right one",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: hybrid,
};

fn hybrid(stage: &mut Stage<'_>) -> Result<(), String> {
    for program in PROGRAMS {
        right(stage, program, "-b 4 -e 256K -f 7 -n 1 -w 1", &[0, 0, 1, 1])?;
    }
    right(stage, "all_reduce_perf", ODD_SIZES, &[0, 1, 0, 1])
}

pub(super) const LOSSY: Scenario = Scenario {
    name: "rdma_loss_and_delay",
    proves: "a rail that loses and delays packets: 0 wrong",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: lossy,
};

fn lossy(stage: &mut Stage<'_>) -> Result<(), String> {
    for host in &stage.network.hosts {
        host.rails[0].disturb("loss 0.5% delay 200us 100us")?;
    }
    right(stage, "all_reduce_perf", "-b 4 -e 64K -f 7 -n 3 -w 1", &[0, 1])
}

pub(super) const KILLED: Scenario = Scenario {
    name: "rdma_killed_rank",
    proves: "a rank that is killed in the middle of a call ends the others' calls with an error that names it",
    hosts: 3,
    rails: 1,
    limit: Duration::from_secs(60),
    run: killed,
};

fn killed(stage: &mut Stage<'_>) -> Result<(), String> {
    let job = job("all_reduce_perf", ENDLESS, &[0, 1, 2]);
    let mut running = job.start(&stage.network, stage.programs)?;
    traffic(stage)?;
    running.kill(1);
    for (rank, said) in running.errors(stage.deadline)?.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        if !said.contains("rank 1 ") {
            return Err(format!("rank {rank} does not name the one that was killed:\n{said}"));
        }
    }
    Ok(())
}

/// More calls than there is time for.
pub(super) const ENDLESS: &str = "-b 64K -e 64K -n 1000000 -w 0 -c 0";

/// Waits until calls are under way.
pub(super) fn traffic(stage: &Stage<'_>) -> Result<(), String> {
    let rail = &stage.network.hosts[0].rails[0];
    let before = rail.packets()?;
    wait_until("traffic", stage.deadline, || Ok(rail.packets()? > before + 500))
}

pub(super) const REFUSALS: Scenario = Scenario {
    name: "rdma_refusals",
    proves: "no such device, an empty GID, too little lockable memory: errors that say what is wrong and the cure",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(90),
    run: refusals,
};

fn refusals(stage: &mut Stage<'_>) -> Result<(), String> {
    let nowhere = [RDMA[0], RDMA[1], ("RDMACCL_IB_HCA", "=nosuch0")];
    refused(stage, &nowhere, "", &["RDMACCL_IB_HCA", "nosuch0"])?;
    refused(stage, &RDMA, &locked_memory(64 << 10), &["memlock"])?;
    let empty = [RDMA[0], RDMA[1], ("RDMACCL_IB_GID_INDEX", "15")];
    refused(stage, &empty, "", &["RDMACCL_IB_GID_INDEX", "15"])
}

pub(super) const SMALLER_MTU: Scenario = Scenario {
    name: "rdma_mtu_of_one_end",
    proves: "an interface with a smaller MTU at one end: its packets are taken, and the cure is said; a switch that passes less: an error that says so",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(90),
    run: smaller_mtu,
};

fn smaller_mtu(stage: &mut Stage<'_>) -> Result<(), String> {
    let small = stage.network.hosts[1].rails[0].clone();
    small.set_mtu(1500)?;
    let said = job("all_reduce_perf", "-b 4 -e 64K -f 16 -n 2 -w 0", &[0, 1]).run(
        &stage.network,
        stage.programs,
        stage.deadline,
    )?;
    let cure = format!("an MTU of at least 4160 at {} of host host1 would give 4096", small.interface);
    for words in ["MTU 1024", &cure] {
        if !said.contains(words) {
            return Err(format!("the log does not say '{words}':\n{said}"));
        }
    }
    let too_much = [RDMA[0], RDMA[1], ("RDMACCL_IB_MTU", "4096")];
    refused(stage, &too_much, "", &["RDMACCL_IB_MTU=4096", &small.device, "an MTU of 1024"])?;
    small.set_mtu(MTU)?;
    // Both interfaces pass full packets, and the switch between them does not: nobody is told.
    small.set_mtu_of_switch(1500)?;
    let short = [
        RDMA[0],
        RDMA[1],
        ("RDMACCL_IB_TIMEOUT", "14"),
        ("RDMACCL_IB_RETRY_CNT", "3"),
        ("RDMACCL_TIMEOUT", "20"),
    ];
    let job = Job { variables: &short, ..job("all_reduce_perf", "-b 64K -e 64K -n 1 -w 0", &[0, 1]) };
    let said = job.start(&stage.network, stage.programs)?.errors(stage.deadline)?;
    match ["retry counter exceeded", "MTU"].iter().find(|word| !said[0].contains(**word)) {
        Some(word) => Err(format!("the error does not speak of {word}:\n{}", said[0])),
        None => Ok(()),
    }
}

/// The job fails on every rank, and rank 0's error has all these words.
fn refused(
    stage: &Stage<'_>,
    variables: &[(&str, &str)],
    before: &str,
    words: &[&str],
) -> Result<(), String> {
    let job = Job { variables, before, ..job("all_reduce_perf", "-b 8 -e 8 -n 1 -w 0", &[0, 1]) };
    let said = job.start(&stage.network, stage.programs)?.errors(stage.deadline)?;
    match words.iter().find(|word| !said[0].contains(**word)) {
        Some(word) => Err(format!("the error does not speak of {word}:\n{}", said[0])),
        None => Ok(()),
    }
}

/// A program over RDMA, and nothing else, between hosts.
pub(super) fn job<'a>(program: &'a str, arguments: &'a str, placement: &'a [usize]) -> Job<'a> {
    Job { program, arguments, placement, variables: &RDMA, before: "", processors: Placement::Free }
}

fn right(stage: &Stage<'_>, program: &str, arguments: &str, placement: &[usize]) -> Result<(), String> {
    let said = job(program, arguments, placement).run(&stage.network, stage.programs, stage.deadline);
    said.map(|_| ()).map_err(|why| format!("{program} {arguments}: {why}"))
}

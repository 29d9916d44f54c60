//! Cables that are pulled and interfaces that are shut while all-reduces run.

use super::rdma::{ENDLESS, RDMA, job, traffic};
use super::{Scenario, Stage};
use crate::job::Job;
use crate::network::Rail;
use crate::process::wait_until;
use std::time::{Duration, Instant};

/// Packets that tell traffic from the odd word.
const MANY: u64 = 200;

/// Devices give up soon: after 67 ms four times, which an emulated kernel may double.
const HASTY: [(&str, &str); 4] =
    [RDMA[0], RDMA[1], ("RDMACCL_IB_TIMEOUT", "14"), ("RDMACCL_IB_RETRY_CNT", "3")];

/// What a rank says whose device has given up.
pub(super) const LOST: &str = "connection lost, to be resumed";

pub(super) const RESUMES: Scenario = Scenario {
    name: "rdma_cable_out_and_in",
    proves: "the only rail's cable is out for a second in the middle of all-reduces: they go on, 0 wrong",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(90),
    run: resumes,
};

fn resumes(stage: &mut Stage<'_>) -> Result<(), String> {
    let job = job("all_reduce_perf", "-b 64K -e 64K -n 1200 -w 5", &[0, 1]);
    let running = job.start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let rail = &stage.network.hosts[0].rails[0];
    rail.unplug()?;
    std::thread::sleep(Duration::from_secs(1));
    rail.plug()?;
    running.right(stage.deadline).map(|_| ())
}

pub(super) const ONE_RAIL_LONG: Scenario = Scenario {
    name: "rdma_cable_out_longer_than_retries",
    proves: "the only rail's cable is out until the devices have given up: new queue pairs go on when it is back, 0 wrong",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(180),
    run: one_rail_long,
};

fn one_rail_long(stage: &mut Stage<'_>) -> Result<(), String> {
    // Many times as many calls as are made until the cable is out.
    let job = Job { variables: &HASTY, ..job("all_reduce_perf", "-b 64K -e 64K -n 4000 -w 5", &[0, 1]) };
    let mut running = job.start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let rail = &stage.network.hosts[0].rails[0];
    rail.unplug()?;
    // Who has sent last finds out; the other end may have nothing that is not acknowledged.
    running.has_said(&[0, 1], LOST, stage.deadline)?;
    rail.plug()?;
    let said = running.right(stage.deadline)?;
    has(&said, &[&resumed(0)])
}

pub(super) const RAIL_OUT_AND_IN: Scenario = Scenario {
    name: "rdma_rail_out_and_in",
    proves: "one of two rails goes down in the middle of all-reduces and comes back: they move to the other and return, 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: rail_out_and_in,
};

fn rail_out_and_in(stage: &mut Stage<'_>) -> Result<(), String> {
    // Several times as many calls as are made until the rail is back.
    let mut running = job("all_reduce_perf", "-b 64K -e 64K -n 4000 -w 5", &[0, 1])
        .start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let [busy, other] = busy_first(stage)?;
    let rail = stage.network.hosts[1].rails[busy].clone();
    rail.unplug()?;
    carries(stage, other)?;
    rail.plug()?;
    // Rank 1's port is the one that is back.
    running.has_said(&[1], "the rail that it belongs to works again", stage.deadline)?;
    carries(stage, busy)?;
    let said = running.right(stage.deadline)?;
    has(&said, &[&resumed(other), &resumed(busy)])
}

pub(super) const SILENT_RAIL: Scenario = Scenario {
    name: "rdma_silent_rail",
    proves: "one of two rails swallows everything for a while with all ports ACTIVE: all-reduces move to the other, and return when it brings something again, 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: silent_rail,
};

fn silent_rail(stage: &mut Stage<'_>) -> Result<(), String> {
    // Until it has been seen, however fast this machine is; each row is checked.
    let job = Job { variables: &HASTY, ..job("all_reduce_perf", "-b 64K -e 64K -n 100 -N 1000000", &[0, 1]) };
    let mut running = job.start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let [busy, other] = busy_first(stage)?;
    let rail = stage.network.hosts[0].rails[busy].clone();
    rail.disturb("loss 100%")?;
    running.has_said(&[0], &resumed(other), stage.deadline)?;
    carries(stage, other)?;
    rail.calm()?;
    let start = Instant::now();
    running.has_said(&[0], &resumed(busy), stage.deadline)?;
    stage.measured("seconds until it is used again", start.elapsed().as_secs_f64());
    carries(stage, busy)?;
    has(&running.said(0), &["the rail that it belongs to works again"])?;
    // The second row from here on has calls over that rail only.
    let before = wrong(&running.said(0)).len();
    wait_until("rows of rank 0", stage.deadline, || Ok(wrong(&running.said(0)).len() >= before + 2))?;
    let said = running.said(0);
    match wrong(&said).iter().all(|row| *row == ["0", "0"]) {
        true => Ok(()),
        false => Err(format!("rank 0 does not say that its data is right:\n{said}")),
    }
}

/// How many elements were wrong, out of place and in place, in each row for 64 KiB.
fn wrong(said: &str) -> Vec<[&str; 2]> {
    let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_calls = rows.filter(|row| row.first() == Some(&"65536"));
    of_calls.filter_map(|row| Some([*row.get(8)?, *row.get(12)?])).collect()
}

pub(super) const RAIL_OUT_FOR_GOOD: Scenario = Scenario {
    name: "rdma_rail_out_for_good",
    proves: "one of two rails is shut in the middle of all-reduces and stays so: they end on the other, 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: rail_out_for_good,
};

fn rail_out_for_good(stage: &mut Stage<'_>) -> Result<(), String> {
    let running = job("all_reduce_perf", "-b 64K -e 64K -n 4000 -w 5", &[0, 1])
        .start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let [busy, other] = busy_first(stage)?;
    stage.network.hosts[0].rails[busy].shut()?;
    carries(stage, other)?;
    let said = running.right(stage.deadline)?;
    has(&said, &[&resumed(other)])
}

pub(super) const CUT: Scenario = Scenario {
    name: "rdma_cable_out_for_good",
    proves: "the only rail's cable stays out: every rank's call ends in time with an error that names both ends of the link",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(90),
    run: cut,
};

fn cut(stage: &mut Stage<'_>) -> Result<(), String> {
    const TIMEOUT: u64 = 20;
    let timeout = TIMEOUT.to_string();
    let variables = [&HASTY[..], &[("RDMACCL_TIMEOUT", &timeout)]].concat();
    let job = Job { variables: &variables, ..job("all_reduce_perf", ENDLESS, &[0, 1]) };
    let running = job.start(&stage.network, stage.programs)?;
    traffic(stage)?;
    stage.network.hosts[0].rails[0].unplug()?;
    let start = Instant::now();
    let errors = running.errors(stage.deadline)?;
    let took = start.elapsed().as_secs_f64();
    stage.measured("seconds until the error", took);
    for said in errors {
        has(&said, &["rxe_h0r0", "rxe_h1r0", "status 12", "in vain", "check cables"])?;
    }
    if took < TIMEOUT as f64 { Ok(()) } else { Err(format!("that took {took:.1} s")) }
}

/// What rank 0, on host 0, says when a connection goes on over a rail.
fn resumed(rail: usize) -> String {
    format!("resumed by the connection from rxe_h0r{rail}")
}

fn has(said: &str, words: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !said.contains(**word)) {
        Some(word) => Err(format!("{word:?} is not in:\n{said}")),
        None => Ok(()),
    }
}

/// The two rails of the hosts, the one that carries the calls first.
fn busy_first(stage: &Stage<'_>) -> Result<[usize; 2], String> {
    let packets = |rail: usize| stage.network.hosts[0].rails[rail].packets();
    let before = [packets(0)?, packets(1)?];
    let mut busy = None;
    wait_until("a rail that carries the calls", stage.deadline, || {
        busy = (0..2).find(|rail| packets(*rail).is_ok_and(|now| now > before[*rail] + MANY));
        Ok(busy.is_some())
    })?;
    Ok(if busy == Some(1) { [1, 0] } else { [0, 1] })
}

/// Waits until a rail carries the calls.
fn carries(stage: &Stage<'_>, rail: usize) -> Result<(), String> {
    let rails: Vec<&Rail> = stage.network.hosts.iter().map(|host| &host.rails[rail]).collect();
    let sum = || rails.iter().map(|rail| rail.packets()).sum::<Result<u64, String>>();
    let before = sum()?;
    wait_until(&format!("traffic on rail {rail}"), stage.deadline, || Ok(sum()? > before + MANY))
}

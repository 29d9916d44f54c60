//! What each of two rails gets, and what one that is bad costs.

use super::outages::LOST;
use super::rdma::{job, traffic};
use super::{Scenario, Stage};
use crate::network::Rail;
use std::time::{Duration, Instant};

/// Megabits per second that the slow rail is held to.
const SLOW_MBIT: f64 = 8.0;
const CALL_BYTES: u64 = 1 << 20;
/// So many that a second in which nobody gets a processor is small beside what they take.
const CALLS: u64 = 24;

pub(super) const SHARES: Scenario = Scenario {
    name: "rdma_slow_rail",
    proves: "one link uses both of two rails; where one is slow it gets less, and all is over sooner than with equal parts, 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: shares,
};

fn shares(stage: &mut Stage<'_>) -> Result<(), String> {
    let [first, second] = broadcasts(stage)?.1;
    stage.measured("bytes by rail 0", first as f64);
    stage.measured("bytes by rail 1", second as f64);
    // Both are computed by the same processors, so which of them is faster is up to these.
    if first.min(second) * 20 < first + second {
        return Err(format!("two rails alike carried {first} and {second} bytes"));
    }
    // The one that is home to the links, and the other.
    for slow in [0, 1] {
        let rails = stage.network.hosts.iter().map(|host| host.rails[slow].clone()).collect::<Vec<_>>();
        rails.iter().try_for_each(|rail| rail.disturb(&format!("rate {SLOW_MBIT}mbit")))?;
        let (took, bytes) = broadcasts(stage)?;
        rails.iter().try_for_each(Rail::calm)?;
        let equal = bytes.iter().sum::<u64>() as f64 / 2.0 * 8.0 / (SLOW_MBIT * 1e6);
        stage.measured(&format!("slow rail {slow}: its bytes"), bytes[slow] as f64);
        stage.measured(&format!("slow rail {slow}: the other's bytes"), bytes[1 - slow] as f64);
        stage.measured(&format!("slow rail {slow}: seconds"), took);
        stage.measured(&format!("slow rail {slow}: seconds that half of it takes it alone"), equal);
        if bytes[slow] == 0 || bytes[slow] * 2 > bytes[1 - slow] || took > equal {
            return Err(format!(
                "rail {slow}, which is slow, carried {} of {bytes:?} bytes, in {took:.1} s; equal parts take {equal:.1} s",
                bytes[slow]
            ));
        }
    }
    Ok(())
}

/// Calls whose pieces go one way, in one link after the other. How long the job took, and what rank 0 sent by each rail.
fn broadcasts(stage: &Stage<'_>) -> Result<(f64, [u64; 2]), String> {
    let arguments = format!("-b {CALL_BYTES} -e {CALL_BYTES} -n {CALLS} -w 1");
    let start = Instant::now();
    let said =
        job("broadcast_perf", &arguments, &[0, 1]).run(&stage.network, stage.programs, stage.deadline)?;
    let took = start.elapsed().as_secs_f64();
    let line = said.lines().find(|line| line.contains("links end"));
    let line = line.ok_or_else(|| format!("rank 0 does not say what its devices did:\n{said}"))?;
    let by = |rail: usize| {
        let (_, rest) = line.split_once(&format!("rxe_h0r{rail}:1 "))?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    match (by(0), by(1)) {
        (Some(first), Some(second)) => Ok((took, [first, second])),
        _ => Err(format!("no bytes of each rail: {line}")),
    }
}

pub(super) const FLAPS: Scenario = Scenario {
    name: "rdma_flapping_rail",
    proves: "one of two rails goes and comes all the time in the middle of all-reduces: 0 wrong",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(180),
    run: flaps,
};

fn flaps(stage: &mut Stage<'_>) -> Result<(), String> {
    let running = job("all_reduce_perf", "-b 256K -e 256K -n 1000 -w 5", &[0, 1])
        .start(&stage.network, stage.programs)?;
    traffic(stage)?;
    let mut turns = 0;
    for host in [0, 1, 0, 1, 0, 1] {
        let rail = &stage.network.hosts[host].rails[1];
        rail.unplug()?;
        std::thread::sleep(Duration::from_millis(300));
        rail.plug()?;
        std::thread::sleep(Duration::from_millis(300));
        turns += 1;
    }
    let said = running.right(stage.deadline)?;
    stage.measured("times out and in", f64::from(turns));
    stage.measured("resumed", said.matches("resumed by the connection").count() as f64);
    match said.contains(LOST) {
        true => Ok(()),
        false => Err(format!("no connection was lost, so this shows nothing:\n{said}")),
    }
}

//! Reliable connections between hosts, as independent programs see them, and what faults do to them.

use super::{Scenario, Stage};
use crate::network::{MTU, Rail};
use crate::peers::{pingpong, pingpong_with_mtu, write_bandwidth, write_latency};
use crate::placement::Placement;
use crate::process::wait_until;
use std::time::Duration;

/// Messages forth and back of a connection to which something happens: more than there is time for, because the tools
/// that make it happen take as long as they do.
const ENDLESS: u32 = 1 << 30;

/// Packets after which it happens.
const EARLY: u64 = 300;

/// Packets of a connection that goes on: by sending the same again and again, some thirty a second, a scenario's limit
/// would not see so many.
const MANY: u64 = 5_000;

pub(super) const EACH_PAIR: Scenario = Scenario {
    name: "each_pair_by_each_rail",
    proves: "each two of four hosts are connected by each rail, and every packet goes by that rail and no other way",
    hosts: 4,
    rails: 2,
    limit: Duration::from_secs(120),
    run: each_pair,
};

fn each_pair(stage: &mut Stage<'_>) -> Result<(), String> {
    const ITERATIONS: u32 = 20;
    for a in 0..4 {
        for b in a + 1..4 {
            for rail in 0..2 {
                let ends = [&stage.network.hosts[a].rails[rail], &stage.network.hosts[b].rails[rail]];
                let others =
                    [&stage.network.hosts[a].rails[1 - rail], &stage.network.hosts[b].rails[1 - rail]];
                let before = (sent(ends)?, sent(others)?);
                pingpong(ends, ITERATIONS, stage.deadline)?.finish(stage.deadline)?;
                let after = (sent(ends)?, sent(others)?);
                // A message is one packet; acknowledgements come on top.
                for (end, Rail { device, .. }) in ends.into_iter().enumerate() {
                    let (packets, stray) = (after.0[end] - before.0[end], after.1[end] - before.1[end]);
                    if packets < ITERATIONS.into() || stray >= ITERATIONS.into() {
                        return Err(format!(
                            "{device} sent {packets} packets by its rail, {stray} by the other"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

fn sent(ends: [&Rail; 2]) -> Result<[u64; 2], String> {
    Ok([ends[0].packets()?, ends[1].packets()?])
}

pub(super) const PORT_FOLLOWS: Scenario = Scenario {
    name: "port_follows_its_link",
    proves: "a port is DOWN while its cable is out or its interface is down, and ACTIVE again after; the other rail's stays",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(60),
    run: port_follows,
};

fn port_follows(stage: &mut Stage<'_>) -> Result<(), String> {
    let [rail, other] = [0, 1].map(|r| stage.network.hosts[0].rails[r].clone());
    for (down, up) in
        [(Rail::unplug as fn(&Rail) -> _, Rail::plug as fn(&Rail) -> _), (Rail::shut, Rail::open)]
    {
        down(&rail)?;
        rail.wait_for_state("DOWN")?;
        other.wait_for_state("ACTIVE")?;
        up(&rail)?;
        rail.wait_for_state("ACTIVE")?;
    }
    // And it carries again.
    let far = &stage.network.hosts[1].rails[0];
    pingpong([&rail, far], 10, stage.deadline)?.finish(stage.deadline).map(|_| ())
}

pub(super) const FLAP: Scenario = Scenario {
    name: "connection_outlives_a_flap",
    proves: "a connection whose cable is out for a moment, in the middle, goes on when it is back",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: flap,
};

fn flap(stage: &mut Stage<'_>) -> Result<(), String> {
    let ends = [0, 1].map(|h| stage.network.hosts[h].rails[0].clone());
    let [a, b] = &ends;
    let _pair = pingpong([a, b], ENDLESS, stage.deadline)?;
    traffic(stage, a, EARLY)?;
    a.unplug()?;
    a.wait_for_state("DOWN")?;
    a.plug()?;
    traffic(stage, a, MANY)
}

pub(super) const SILENT_PATH: Scenario = Scenario {
    name: "silent_path",
    proves: "a path that swallows everything is no error to either end: ports are ACTIVE, the device tries again and again",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: silent_path,
};

fn silent_path(stage: &mut Stage<'_>) -> Result<(), String> {
    let ends = [0, 1].map(|h| stage.network.hosts[h].rails[0].clone());
    let [a, b] = &ends;
    let _pair = pingpong([a, b], ENDLESS, stage.deadline)?;
    traffic(stage, a, EARLY)?;
    a.disturb("loss 100%")?;
    many_retries(stage, [a, b])?;
    a.wait_for_state("ACTIVE")?;
    b.wait_for_state("ACTIVE")?;
    a.calm()?;
    traffic(stage, a, MANY)
}

/// Returns when the two ends of a connection have sent something again more often than any count of retries allows.
/// The programs here ask for 7, which rdma_rxe takes as "for ever".
fn many_retries(stage: &Stage<'_>, ends: [&Rail; 2]) -> Result<(), String> {
    retried(stage, ends, 17)
}

/// Returns when the two ends of a connection have sent something again so often.
fn retried(stage: &Stage<'_>, ends: [&Rail; 2], times: u64) -> Result<(), String> {
    let sum = || Ok::<_, String>(ends[0].retries()? + ends[1].retries()?);
    let before = sum()?;
    wait_until("retries", stage.deadline, || Ok(sum()? >= before + times))
}

/// Returns when this rail has sent so many packets more.
fn traffic(stage: &Stage<'_>, rail: &Rail, packets: u64) -> Result<(), String> {
    let before = rail.packets()?;
    wait_until(&format!("traffic on {}", rail.interface), stage.deadline, || {
        Ok(rail.packets()? >= before + packets)
    })
}

pub(super) const LOSS: Scenario = Scenario {
    name: "connection_bears_loss",
    proves: "a connection brings everything over a rail that loses packets and delays them",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: loss,
};

fn loss(stage: &mut Stage<'_>) -> Result<(), String> {
    let ends = [0, 1].map(|h| stage.network.hosts[h].rails[0].clone());
    let [a, b] = &ends;
    a.disturb("loss 1% delay 1ms")?;
    let pair = pingpong([a, b], 5_000, stage.deadline)?;
    retried(stage, [a, b], 3)?;
    // Before the end: where the last acknowledgement is lost, the other end asks for it again and again, and whoever had to give it has gone.
    a.calm()?;
    pair.finish(stage.deadline).map(|_| ())
}

pub(super) const PATH_MTU: Scenario = Scenario {
    name: "wrong_mtu_at_one_end",
    proves: "a smaller MTU at one end swallows full packets, silently, with both ports ACTIVE; set right, all is delivered",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: path_mtu,
};

fn path_mtu(stage: &mut Stage<'_>) -> Result<(), String> {
    let ends = [0, 1].map(|h| stage.network.hosts[h].rails[0].clone());
    let [a, b] = &ends;
    b.set_mtu(1500)?;
    // The end that was not told sends packets that the other's interface does not take.
    let pair = pingpong_with_mtu([b, a], [1024, 4096], 10, stage.deadline)?;
    many_retries(stage, [a, b])?;
    a.wait_for_state("ACTIVE")?;
    b.wait_for_state("ACTIVE")?;
    b.set_mtu(MTU)?;
    pair.finish(stage.deadline).map(|_| ())
}

pub(super) const PERFTEST: Scenario = Scenario {
    name: "perftest",
    proves: "one-sided writes between two hosts, by the measure that everybody knows",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(120),
    run: perftest,
};

fn perftest(stage: &mut Stage<'_>) -> Result<(), String> {
    let ends = [0, 1].map(|h| stage.network.hosts[h].rails[0].clone());
    let ends = [&ends[0], &ends[1]];
    for (name, bytes, iterations) in [("64KiB", 65536, 200), ("1MiB", 1 << 20, 20)] {
        let value = write_bandwidth(ends, Placement::Free, bytes, iterations, stage.deadline)?;
        stage.measured(&format!("ib_write_bw_{name}_mib_per_second"), value);
    }
    let value = write_latency(ends, Placement::Free, 8, 1000, stage.deadline)?;
    stage.measured("ib_write_lat_8B_microseconds", value);
    Ok(())
}

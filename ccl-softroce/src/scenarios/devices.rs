//! Devices, their ports and their tables, as the library will find them.

use super::{Scenario, Stage};
use crate::faults::locked_memory;
use crate::process::{Process, tool, wait_until};
use crate::sysfs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

pub(super) const APPEAR: Scenario = Scenario {
    name: "devices_appear",
    proves: "libibverbs sees every rail of four hosts with an active port, MTU 4096 and a RoCEv2 GID; a device can go and come",
    hosts: 4,
    rails: 2,
    limit: Duration::from_secs(60),
    run: appear,
};

fn appear(stage: &mut Stage<'_>) -> Result<(), String> {
    for rail in stage.network.rails() {
        let said = tool(&format!("ibv_devinfo -v -d {}", rail.device))?;
        for wanted in ["PORT_ACTIVE (4)", "active_mtu:\t\t4096 (5)", "link_layer:\t\tEthernet", "RoCE v2"] {
            if !said.contains(wanted) {
                return Err(format!("ibv_devinfo does not say '{wanted}' of {}:\n{said}", rail.device));
            }
        }
    }
    let Some(rail) = stage.network.rails().last().cloned() else { return Err("no rails".into()) };
    rail.remove_device()?;
    if tool("ibv_devices")?.contains(&rail.device) {
        return Err(format!("{} was removed and is still listed", rail.device));
    }
    rail.add_device()?;
    rail.wait_for_state("ACTIVE")
}

pub(super) const GIDS: Scenario = Scenario {
    name: "gid_tables",
    proves: "a port's GIDs are those of its interface's addresses: several, and none that can be routed",
    hosts: 1,
    rails: 1,
    limit: Duration::from_secs(60),
    run: gids,
};

fn gids(stage: &mut Stage<'_>) -> Result<(), String> {
    let rail = stage.network.hosts[0].rails[0].clone();
    let more =
        [IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
    for address in more {
        rail.add_address(address, 24)?;
        wait_until(&format!("a GID of {address}"), stage.deadline, || {
            Ok(sysfs::gid_index(&rail.device, address).is_some())
        })?;
    }
    rail.drop_addresses()?;
    wait_until("the GIDs to go", stage.deadline, || Ok(sysfs::gids(&rail.device).len() == 1))?;
    match &sysfs::gids(&rail.device)[..] {
        [gid] if gid.address.is_unicast_link_local() => Ok(()),
        left => Err(format!("one GID of the link itself was expected: {left:?}")),
    }
}

pub(super) const LOCKED_MEMORY: Scenario = Scenario {
    name: "locked_memory",
    proves: "a program that may lock little memory only cannot register its buffer",
    hosts: 1,
    rails: 1,
    limit: Duration::from_secs(60),
    run: few_locked_pages,
};

fn few_locked_pages(stage: &mut Stage<'_>) -> Result<(), String> {
    let line = format!("ibv_rc_pingpong -d {} -s 1048576", stage.network.hosts[0].rails[0].device);
    let (right, said) = Process::start_with(&line, &[], &locked_memory(65536))?.end(stage.deadline)?;
    if right || !said.contains("Couldn't register MR") {
        return Err(format!("registering a MiB was expected to fail:\n{said}"));
    }
    Ok(())
}

pub(super) const VERBS: Scenario = Scenario {
    name: "verbs_tests",
    proves: "the tests of our verbs layer pass on real devices: every port talks to itself by reliable writes and datagrams",
    hosts: 2,
    rails: 2,
    limit: Duration::from_secs(60),
    run: verbs,
};

fn verbs(stage: &mut Stage<'_>) -> Result<(), String> {
    let variables = [("RDMACCL_RDMA_DEVICES".to_string(), "required".to_string())];
    let line = format!("{} --nocapture", stage.programs.join("hardware").display());
    let said = Process::start_with(&line, &variables, "")?.finish(stage.deadline)?;
    for rail in stage.network.rails() {
        if !said.contains(&rail.device) {
            return Err(format!("the tests do not speak of {}:\n{said}", rail.device));
        }
    }
    if said.contains("test result: ok. 0 passed") { Err(format!("no test ran:\n{said}")) } else { Ok(()) }
}

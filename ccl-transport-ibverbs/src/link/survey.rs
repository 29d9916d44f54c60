//! The survey of this host, taken from its devices, sysfs and the network interfaces.

use crate::choice::survey as plain;
use crate::verbs::{Context, GidEntry, GidKind, Interface, LinkLayer, PortState, library};
use ccl_core::Result;
use rustix::process::{Resource, getrlimit};
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::{fs, net};

/// What the devices of this host are like now; `named` is the file of libibverbs, if another one than the system's.
pub fn survey(named: Option<&str>) -> Result<plain::Survey> {
    take(&open(named)?)
}

/// Opens all devices that can be opened.
pub(crate) fn open(named: Option<&str>) -> Result<Vec<Context>> {
    let mut refused = None;
    let mut contexts = Vec::new();
    for device in library(named)?.devices()? {
        match device.open() {
            Ok(context) => contexts.push(context),
            Err(error) => {
                tracing::debug!(target: "net", device = device.name(), %error, "a device cannot be opened");
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        Some(error) if contexts.is_empty() => Err(error),
        _ => Ok(contexts),
    }
}

/// What these devices are like now.
pub(crate) fn take(contexts: &[Context]) -> Result<plain::Survey> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let devices = contexts.iter().map(device).collect::<Result<_>>()?;
    Ok(plain::Survey { host, memlock: getrlimit(Resource::Memlock).current, devices })
}

fn device(context: &Context) -> Result<plain::Device> {
    let device = context.device();
    Ok(plain::Device {
        name: device.name(),
        pci: device.pci().map(|place| place.address),
        numa: device.numa_node(),
        ports: (1..=context.limits().ports).map(|number| port(context, number)).collect::<Result<_>>()?,
    })
}

fn port(context: &Context, number: u8) -> Result<plain::Port> {
    let port = context.port(number)?;
    Ok(plain::Port {
        number,
        layer: match port.link_layer {
            LinkLayer::InfiniBand => plain::Layer::InfiniBand,
            LinkLayer::Ethernet => plain::Layer::Ethernet,
        },
        state: match port.state {
            PortState::Active | PortState::ActiveDefer => plain::State::Active,
            PortState::Armed => plain::State::Armed,
            PortState::Initializing => plain::State::Init,
            _ => plain::State::Down,
        },
        physical: port.physical_state.to_string(),
        gbps: port.gbps.unwrap_or(0.0),
        active_mtu: port.active_mtu.bytes() as u16,
        lid: port.lid,
        host_class: host_class(context.name(), number),
        gids: context.gids(number)?.iter().map(gid).collect(),
    })
}

/// The traffic class that the administrator set for RDMA of this port, as connection managers use it.
fn host_class(device: &str, port: u8) -> Option<u8> {
    let file = format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_tos");
    // 0 is what it is unless somebody sets it.
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|class| *class > 0)
}

fn gid(entry: &GidEntry) -> plain::Gid {
    plain::Gid {
        index: entry.index.into(),
        address: entry.gid.ipv6(),
        kind: match entry.kind {
            GidKind::InfiniBand => plain::GidKind::Ib,
            GidKind::RoceV1 => plain::GidKind::RoceV1,
            GidKind::RoceV2 => plain::GidKind::RoceV2,
            GidKind::Unknown => plain::GidKind::Unknown,
        },
        netdev: entry.interface.as_ref().map(|interface| netdev(interface, entry.gid.ipv6())),
    }
}

fn netdev(interface: &Interface, address: Ipv6Addr) -> plain::Netdev {
    let folder = Path::new("/sys/class/net").join(&interface.name);
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_string());
    let address = address.to_canonical();
    // What cannot be read is taken to be right: the kernel has put the address into the table.
    plain::Netdev {
        up: read("operstate").is_none_or(|state| state != "down"),
        mtu: read("mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(0),
        bond: folder.join("bonding").exists(),
        networks: prefix(&interface.name, address).map(|prefix| (address, prefix)).into_iter().collect(),
        name: interface.name.clone(),
    }
}

/// How long the prefix of an address's network is, by the kernel's routes to it.
fn prefix(interface: &str, address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(ip) => {
            let routes = fs::read_to_string("/proc/net/route").ok()?;
            longest_v4(&routes, interface, ip)
        }
        IpAddr::V6(ip) => {
            let addresses = fs::read_to_string("/proc/net/if_inet6").ok()?;
            let row = addresses.lines().find(|line| line.starts_with(&format!("{:032x}", u128::from(ip))))?;
            u8::from_str_radix(row.split_whitespace().nth(2)?, 16).ok()
        }
    }
}

/// The longest prefix of a route through the interface without a router that leads to the address.
fn longest_v4(routes: &str, interface: &str, ip: net::Ipv4Addr) -> Option<u8> {
    // Columns: interface, destination, gateway, flags, three counters, mask. Numbers are in the host's order of the bytes.
    let route = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let word = |at: usize| u32::from_str_radix(cells.get(at)?, 16).ok().map(u32::from_be);
        let (to, gateway, mask) = (word(1)?, word(2)?, word(7)?);
        let fits = cells[0] == interface && gateway == 0 && u32::from(ip) & mask == to && mask != 0;
        fits.then_some(mask.count_ones() as u8)
    };
    routes.lines().skip(1).filter_map(route).max()
}

/// The NUMA node of the core that this thread runs on.
pub(crate) fn numa_here() -> Option<u32> {
    let folder = format!("/sys/devices/system/cpu/cpu{}", rustix::thread::sched_getcpu());
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_known_by_its_route() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
                      eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\n\
                      eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\n\
                      eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        if cfg!(target_endian = "little") {
            let of = |interface: &str, ip: &str| longest_v4(routes, interface, ip.parse().unwrap());
            assert_eq!(
                [of("eth0", "10.0.3.7"), of("eth1", "10.0.0.7"), of("eth1", "10.0.3.7")],
                [Some(16), Some(24), None]
            );
        }
    }
}

//! What is known of a host's RDMA devices, as plain data: taken from the devices, or recorded in a file.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The RDMA devices of a host, as one process sees them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// The host's name.
    pub host: String,
    /// Bytes that the process may lock in memory; `None`: as many as it likes.
    pub memlock: Option<u64>,
    /// The devices, in the order in which the library lists them.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name: `mlx5_0`, `rxe0`.
    pub name: String,
    /// Its PCI address; `None`: it is software.
    pub pci: Option<String>,
    /// The NUMA node that it is near to.
    pub numa: Option<u32>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// What it speaks below.
    pub layer: Layer,
    /// Its logical state.
    pub state: State,
    /// Its physical state in the kernel's words: `LinkUp`, `Polling`, `Disabled`.
    pub physical: String,
    /// Gigabits per second; 0: not known.
    pub gbps: f64,
    /// Longest packet payload that it sends now, in bytes.
    pub active_mtu: u16,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The traffic class that the host's administrator has set for it, where that can be read.
    pub host_class: Option<u8>,
    /// The entries of its GID table that are filled.
    pub gids: Vec<Gid>,
}

/// What lies below a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE, in hardware or software.
    Ethernet,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::InfiniBand => "InfiniBand",
            Layer::Ethernet => "Ethernet",
        })
    }
}

/// The logical state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Nothing goes through.
    Down,
    /// The link is there; on InfiniBand no subnet manager has configured it yet.
    Init,
    /// Configured, but closed for data.
    Armed,
    /// Open.
    Active,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Down => "down",
            State::Init => "initialising",
            State::Armed => "armed",
            State::Active => "active",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The GID. On RoCE it is the IP address, IPv4 in its mapped form.
    pub address: Ipv6Addr,
    /// Its type.
    pub kind: GidKind,
    /// The network interface that it belongs to, on RoCE.
    pub netdev: Option<Netdev>,
}

/// How packets of a GID look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand's own.
    Ib,
    /// Ethernet without IP: cannot be routed.
    RoceV1,
    /// In UDP over IP.
    RoceV2,
    /// Nobody says, as in some containers.
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::Ib => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Unknown => "of unknown type",
        })
    }
}

/// A network interface below a RoCE port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Netdev {
    /// Its name: `eth0`, `bond0`.
    pub name: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Its MTU: the longest IP packet in bytes.
    pub mtu: u32,
    /// Whether it is a bond of several links.
    pub bond: bool,
    /// Its addresses with the lengths of their networks' prefixes.
    pub networks: Vec<(IpAddr, u8)>,
}

impl Gid {
    /// The IP address that it is, on RoCE v2.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }

    /// The length of its network's prefix: as its interface has it, else that of a usual network.
    pub fn prefix(&self) -> u8 {
        if self.kind == GidKind::Ib {
            return 64;
        }
        let ip = self.ip();
        let own = self.netdev.as_ref().and_then(|n| n.networks.iter().find(|(address, _)| *address == ip));
        own.map_or(if ip.is_ipv4() { 24 } else { 64 }, |(_, prefix)| *prefix)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} at index {})", self.ip(), self.kind, self.index)
    }
}

impl Device {
    /// Whether it is software over a network interface, such as SoftRoCE.
    pub fn is_software(&self) -> bool {
        self.pci.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;

    #[test]
    fn a_survey_is_a_file_and_back() {
        for survey in [surveys::infiniband(), surveys::roce(), surveys::bond(), surveys::mixed()] {
            let text = serde_json::to_string(&survey).unwrap();
            assert_eq!(serde_json::from_str::<Survey>(&text).unwrap(), survey);
        }
    }

    /// As Linux 6.1 showed two devices of rdma_rxe.
    #[test]
    fn a_recorded_host_gives_the_rails_that_were_chosen_on_it() {
        let text = include_str!("../../tests/surveys/softroce.json");
        let survey: Survey = serde_json::from_str(text).unwrap();
        let rails = rails::choose(&survey, &Config::default().ib).unwrap().value;
        let told: Vec<_> = rails.iter().map(|rail| format!("{rail} {}", rail.gids[0])).collect();
        let expected =
            ["rxe_h0r0:1 10.77.0.1 (RoCE v2 at index 1)", "rxe_h1r0:1 10.77.0.2 (RoCE v2 at index 1)"];
        assert_eq!(told, expected);
        assert!(rails[0].software && rails[0].gids.len() == 3);
    }
}

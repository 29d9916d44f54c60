//! GIDs: the addresses of ports, one or more each.

use super::context::Context;
use super::error::{failed, look_at};
use super::port::LinkLayer;
use super::sysfs::Folder;
use crate::sys::*;
use ccl_core::Result;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An address of a port: 16 bytes in the order in which they travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is unset.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// As an IPv6 address, which it always is.
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address that RoCE maps into it.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }

    /// Whether it counts on its own link only.
    pub fn is_link_local(&self) -> bool {
        self.ipv6().is_unicast_link_local() || self.ipv4().is_some_and(|v4| v4.is_link_local())
    }

    /// The first half: the subnet (InfiniBand).
    pub fn subnet_prefix(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("half of sixteen bytes"))
    }
}

/// As IPv4 where it is that, else as IPv6.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ipv4() {
            Some(v4) => v4.fmt(f),
            None => self.ipv6().fmt(f),
        }
    }
}

/// What packets with a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet frames, which no router passes on.
    RoceV1,
    /// UDP over IP.
    RoceV2,
    /// Neither the library nor the kernel says, as in some containers.
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "IB",
            GidKind::RoceV1 => "RoCEv1",
            GidKind::RoceV2 => "RoCEv2",
            GidKind::Unknown => "unknown",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which moves when addresses come and go.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// What its packets look like.
    pub kind: GidKind,
    /// The network interface that has the address (RoCE).
    pub interface: Option<Interface>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its index; 0 if not known.
    pub index: u32,
    /// Its name.
    pub name: String,
}

impl Interface {
    /// Whether it is switched on and has a carrier; `None` where there is no such interface here.
    pub fn is_up(&self) -> Option<bool> {
        let folder = Folder::new(format!("/sys/class/net/{}", self.name));
        folder.read("flags")?;
        // Of an interface that is switched off the carrier cannot be read.
        Some(folder.read("carrier").as_deref() == Some("1"))
    }
}

/// The entries of a port that are set, by index.
pub(super) fn table(context: &Context, port: u8) -> Result<Vec<GidEntry>> {
    let failed = |call: &str, e| {
        failed(format!("{call} of {} port {port}", context.name()), e, look_at(context.name()))
    };
    let mut most = 0;
    for number in 1..=context.limits().ports {
        most += context.port(number)?.gids as usize;
    }
    let mut entries = match context.raw().query_gid_table(most) {
        Some(entries) => from_library(context, port, entries.map_err(|e| failed("ibv_query_gid_table", e))?),
        None => one_by_one(context, port)?,
    };
    entries.sort_by_key(|entry| entry.index);
    Ok(entries)
}

fn from_library(context: &Context, port: u8, entries: Vec<ibv_gid_entry>) -> Vec<GidEntry> {
    let mine = entries.into_iter().filter(|e| e.port_num == u32::from(port) && e.gid.raw != [0; 16]);
    mine.filter_map(|entry| {
        let index = u8::try_from(entry.gid_index).ok()?;
        let kind = match entry.gid_type {
            IBV_GID_TYPE_IB => GidKind::InfiniBand,
            IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        };
        let interface = (entry.ndev_ifindex != 0).then(|| Interface {
            index: entry.ndev_ifindex,
            name: name_of(entry.ndev_ifindex)
                .or_else(|| interface_in_sysfs(context, port, index))
                .unwrap_or_else(|| format!("interface-{}", entry.ndev_ifindex)),
        });
        Some(GidEntry { index, gid: Gid(entry.gid.raw), kind, interface })
    })
    .collect()
}

/// As the library does it since version 1.11.
fn one_by_one(context: &Context, port: u8) -> Result<Vec<GidEntry>> {
    let attributes = context.port(port)?;
    let mut entries = Vec::new();
    for index in 0..u8::try_from(attributes.gids).unwrap_or(u8::MAX) {
        let gid = context.raw().query_gid(port, index.into()).map_err(|e| {
            let call = format!("ibv_query_gid of {} port {port} index {index}", context.name());
            failed(call, e, look_at(context.name()))
        })?;
        if gid == [0; 16] {
            continue;
        }
        let kind = match attributes.link_layer {
            LinkLayer::InfiniBand => GidKind::InfiniBand,
            LinkLayer::Ethernet => kind_in_sysfs(context, port, index),
        };
        let interface = interface_in_sysfs(context, port, index).map(|name| Interface { index: 0, name });
        entries.push(GidEntry { index, gid: Gid(gid), kind, interface });
    }
    Ok(entries)
}

fn kind_in_sysfs(context: &Context, port: u8, index: u8) -> GidKind {
    let text = context.device().folder().read(format!("ports/{port}/gid_attrs/types/{index}"));
    match text.as_deref() {
        Some("RoCE v2") => GidKind::RoceV2,
        Some("IB/RoCE v1") => GidKind::RoceV1,
        _ => GidKind::Unknown,
    }
}

fn interface_in_sysfs(context: &Context, port: u8, index: u8) -> Option<String> {
    context.device().folder().read(format!("ports/{port}/gid_attrs/ndevs/{index}"))
}

fn name_of(interface: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(&socket, interface).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_written_as_people_write_the_address() {
        let v4 = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(v4.to_string(), "10.0.0.1");
        assert!(!v4.is_link_local());
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(local.to_string(), "fe80::200:0:0:1");
        assert!(local.is_link_local());
        assert_eq!(local.subnet_prefix(), 0xfe80_0000_0000_0000);
        assert!(Gid::default().is_zero());
    }

    #[test]
    fn an_interface_is_up_or_not_there() {
        let named = |name: &str| Interface { index: 0, name: name.into() };
        assert_eq!(named("nonexistent0").is_up(), None);
        assert!(named("lo").is_up().is_some());
    }
}

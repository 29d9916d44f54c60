//! Which GID a port speaks from: by what an entry is, since its index changes with every address that comes and goes.

use super::survey::{Gid, GidKind, Layer, Port};
use ccl_core::config::Ib;
use std::cmp::Reverse;
use std::net::IpAddr;

/// How far packets with an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// This host.
    Loopback,
    /// The same Ethernet segment.
    LinkLocal,
    /// Wherever routes lead.
    Global,
}

/// The scope of an address.
pub fn scope(ip: IpAddr) -> Scope {
    let (loopback, link_local) = match ip {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.is_loopback(), ip.is_unicast_link_local()),
    };
    match (loopback, link_local) {
        (true, _) => Scope::Loopback,
        (_, true) => Scope::LinkLocal,
        _ => Scope::Global,
    }
}

/// The entries that a port can speak from, best first, or why there is none and what would help.
pub fn usable(port: &Port, settings: &Ib) -> Result<Vec<Gid>, String> {
    if let Some(index) = settings.gid_index {
        let named = port.gids.iter().find(|gid| gid.index == index);
        return named.map(|gid| vec![gid.clone()]).ok_or_else(|| {
            let has = listed(&port.gids);
            format!("RDMACCL_IB_GID_INDEX={index} names an empty entry of its GID table, which has {has}; unset it to choose by type and family")
        });
    }
    let mut found: Vec<_> = port.gids.iter().filter(|gid| fault(gid, port, settings).is_none()).collect();
    if found.is_empty() {
        return Err(none(port, settings));
    }
    // An InfiniBand port's own GID is the first.
    let rank = |gid: &&Gid| match port.layer {
        Layer::InfiniBand => (Reverse(Scope::Global), false, false, gid.index),
        Layer::Ethernet => {
            (Reverse(scope(gid.ip())), gid.ip().is_ipv6(), gid.kind == GidKind::Unknown, gid.index)
        }
    };
    found.sort_by_key(rank);
    Ok(found.into_iter().cloned().collect())
}

/// Why the best entry is the best one.
pub fn why(gid: &Gid, settings: &Ib) -> String {
    if settings.gid_index.is_some() {
        return "RDMACCL_IB_GID_INDEX".into();
    }
    match (gid.kind, scope(gid.ip()), gid.ip().is_ipv4()) {
        (GidKind::Ib, ..) => "the port's own".into(),
        (GidKind::Unknown, ..) => {
            "the last entry of its address, which is RoCE v2 as a rule; the kernel does not say".into()
        }
        (_, Scope::Global, true) => "RoCE v2, IPv4, can be routed".into(),
        (_, Scope::Global, false) => "RoCE v2, IPv6, can be routed".into(),
        _ => "link-local, as there is no other: peers must be in the same Ethernet segment".into(),
    }
}

/// What is wrong with an entry.
fn fault(gid: &Gid, port: &Port, settings: &Ib) -> Option<String> {
    if gid.address.is_unspecified() {
        return Some("it is empty".into());
    }
    if port.layer == Layer::InfiniBand {
        return None;
    }
    let family = settings.address_family;
    let ip = gid.ip();
    // Kernels list an address's older type first.
    let is_last = || port.gids.iter().all(|other| other.address != gid.address || other.index <= gid.index);
    if gid.kind != GidKind::RoceV2 && !(gid.kind == GidKind::Unknown && is_last()) {
        Some(format!("it is {}", gid.kind))
    } else if ip.is_ipv4() && !family.allows_v4() || ip.is_ipv6() && !family.allows_v6() {
        Some(format!("RDMACCL_IB_ADDR_FAMILY={family} leaves it out"))
    } else if scope(ip) == Scope::Loopback {
        Some("it is a loopback address".into())
    } else {
        let down = gid.netdev.as_ref().filter(|netdev| !netdev.up)?;
        Some(format!("its interface {} is down", down.name))
    }
}

fn none(port: &Port, settings: &Ib) -> String {
    if port.gids.is_empty() {
        return match port.layer {
            Layer::InfiniBand => "its GID table is empty: see whether a subnet manager runs".into(),
            Layer::Ethernet => {
                "its GID table is empty: give the network interface below it an address (ip address add)"
                    .into()
            }
        };
    }
    let each = port.gids.iter().map(|gid| {
        let fault = fault(gid, port, settings).unwrap_or_default();
        format!("{} at index {}: {fault}", gid.ip(), gid.index)
    });
    let each = each.collect::<Vec<_>>().join("; ");
    let cure = if port.gids.iter().all(|gid| gid.kind == GidKind::RoceV1) {
        "the device must be set to RoCE v2, and its interface needs an address"
    } else {
        "give the network interface below it an address and set it up (ip address add, ip link set up), or loosen RDMACCL_IB_ADDR_FAMILY"
    };
    format!("it has no RoCE v2 GID that can be used ({each}): {cure}")
}

fn listed(gids: &[Gid]) -> String {
    let each: Vec<_> = gids.iter().map(Gid::to_string).collect();
    if each.is_empty() { "no entry".into() } else { each.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::surveys;
    use super::*;
    use ccl_core::config::{Config, Family};

    fn settings() -> Ib {
        Config::default().ib
    }

    fn best(port: &Port, settings: &Ib) -> String {
        usable(port, settings).unwrap()[0].ip().to_string()
    }

    #[test]
    fn a_roce_port_speaks_from_its_routable_v2_address() {
        let survey = surveys::roce();
        let port = &survey.devices[0].ports[0];
        assert_eq!(port.gids.iter().map(|g| g.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        let found = usable(port, &settings()).unwrap();
        assert_eq!(found.iter().map(|g| g.index).collect::<Vec<_>>(), [3, 5, 1], "IPv4, IPv6, link-local");
        let six = Ib { address_family: Family::V6, ..settings() };
        assert_eq!(best(port, &six), "2001:db8::7");
        assert!(why(&found[0], &six).contains("routed") && why(&found[2], &six).contains("link-local"));
    }

    #[test]
    fn the_index_moves_and_the_choice_does_not() {
        let mut port = surveys::roce().devices[0].ports[0].clone();
        for gid in &mut port.gids {
            gid.index = (gid.index + 3) % 6;
        }
        assert_eq!(best(&port, &settings()), "10.0.0.7");
    }

    #[test]
    fn an_entry_named_by_index_is_taken_or_missed_aloud() {
        let port = surveys::roce().devices[0].ports[0].clone();
        let at = |index| usable(&port, &Ib { gid_index: Some(index), ..settings() });
        assert_eq!(at(2).unwrap()[0].kind, GidKind::RoceV1, "the user's word");
        let error = at(9).unwrap_err();
        assert!(error.contains("GID_INDEX=9") && error.contains("10.0.0.7 (RoCE v2 at index 3)"), "{error}");
    }

    #[test]
    fn what_cannot_be_used_is_said_with_its_reason() {
        let mut port = surveys::roce().devices[0].ports[0].clone();
        port.gids.iter_mut().for_each(|gid| gid.netdev.as_mut().unwrap().up = false);
        let error = usable(&port, &settings()).unwrap_err();
        assert!(error.contains("eth0 is down") && error.contains("ip link set up"), "{error}");
        port.gids.retain(|gid| gid.kind == GidKind::RoceV1);
        let error = usable(&port, &settings()).unwrap_err();
        assert!(error.contains("no RoCE v2 GID") && error.contains("set to RoCE v2"), "{error}");
        port.gids.clear();
        assert!(usable(&port, &settings()).unwrap_err().contains("ip address add"));
    }

    #[test]
    fn where_nobody_knows_the_type_the_last_entry_of_an_address_counts() {
        let mut port = surveys::roce().devices[0].ports[0].clone();
        port.gids.iter_mut().for_each(|gid| gid.kind = GidKind::Unknown);
        let found = usable(&port, &settings()).unwrap();
        assert_eq!(found.iter().map(|g| g.index).collect::<Vec<_>>(), [3, 5, 1]);
    }

    #[test]
    fn an_infiniband_port_speaks_from_its_own() {
        let survey = surveys::infiniband();
        let found = usable(&survey.devices[0].ports[0], &settings()).unwrap();
        assert_eq!((found[0].index, found[0].kind), (0, GidKind::Ib));
    }
}

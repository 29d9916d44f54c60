//! Which port of one host talks to which of another's, and from which GID to which.

use super::gid::{Scope, scope};
use super::rails::Rail;
use super::survey::{Gid, GidKind, Layer};
use ccl_core::{Error, Result};
use std::fmt;
use std::net::IpAddr;

/// GIDs of a rail that a peer is told of.
const MOST_GIDS: usize = 4;

/// What one end of a connection has to offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The host's name.
    pub host: String,
    /// Its rails.
    pub rails: Vec<OfferedRail>,
    /// Which of them the rank would begin with.
    pub first: usize,
}

/// A rail as the peer is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedRail {
    /// Device and port: `mlx5_0:1`.
    pub name: String,
    /// What lies below it.
    pub layer: Layer,
    /// Gigabits per second.
    pub gbps: f64,
    /// Longest packet payload in bytes.
    pub mtu: u16,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// Its best GIDs, best first.
    pub gids: Vec<Gid>,
}

impl Offer {
    /// These rails, beginning with `first`.
    pub fn of(host: &str, rails: &[Rail], first: usize) -> Offer {
        let told = |rail: &Rail| OfferedRail {
            name: rail.to_string(),
            layer: rail.layer,
            gbps: rail.gbps,
            mtu: rail.active_mtu,
            lid: rail.lid,
            gids: rail.gids.iter().take(MOST_GIDS).cloned().collect(),
        };
        Offer { host: host.to_string(), rails: rails.iter().map(told).collect(), first }
    }

    /// One rail of it with one of its GIDs.
    pub fn side(&self, rail: usize, gid: usize) -> Side<'_> {
        Side { offer: self, rail, gid }
    }

    fn layers(&self) -> String {
        let each = self.rails.iter().map(|rail| format!("{} ({})", rail.name, rail.layer));
        format!("host {} has {}", self.host, each.collect::<Vec<_>>().join(", "))
    }

    fn gids(&self) -> String {
        let each = self.rails.iter().map(|rail| {
            let gids: Vec<_> = rail.gids.iter().map(|gid| format!("{} {}", gid.kind, gid.ip())).collect();
            format!("{} with {}", rail.name, gids.join(" and "))
        });
        format!("host {} has {}", self.host, each.collect::<Vec<_>>().join(", "))
    }
}

/// One end of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    offer: &'a Offer,
    rail: usize,
    gid: usize,
}

impl<'a> Side<'a> {
    /// The rail.
    pub fn rail(&self) -> &'a OfferedRail {
        &self.offer.rails[self.rail]
    }

    /// Its GID.
    pub fn gid(&self) -> &'a Gid {
        &self.rail().gids[self.gid]
    }

    /// The port's packet payload.
    pub fn mtu(&self) -> u16 {
        self.rail().mtu
    }

    /// The host's name.
    pub fn host(&self) -> &'a str {
        &self.offer.host
    }
}

impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of host {}", self.rail().name, self.offer.host)
    }
}

/// Two rails that talk to each other, as positions in the two offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// At the end with the lower rank: the rail, and its GID.
    pub low: (usize, usize),
    /// At the other end.
    pub high: (usize, usize),
    /// Why these two.
    pub why: String,
}

impl Pair {
    /// One end's rail and GID.
    pub fn end(&self, is_low: bool) -> (usize, usize) {
        if is_low { self.low } else { self.high }
    }
}

/// How well two GIDs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// Both link-local, which works in one Ethernet segment.
    LinkLocal,
    /// Different networks: a router must join them.
    Routed,
    /// One network.
    SameNetwork,
}

fn fit(a: &Gid, b: &Gid) -> Option<Fit> {
    if a.kind != b.kind && a.kind != GidKind::Unknown && b.kind != GidKind::Unknown {
        return None;
    }
    if a.kind != GidKind::Ib {
        match (a.ip().is_ipv4() == b.ip().is_ipv4(), scope(a.ip()), scope(b.ip())) {
            (true, Scope::Global, Scope::Global) => {}
            (true, Scope::LinkLocal, Scope::LinkLocal) => return Some(Fit::LinkLocal),
            // Named by its index.
            (true, Scope::Loopback, Scope::Loopback) => return Some(Fit::SameNetwork),
            _ => return None,
        }
    }
    let same = a.prefix() == b.prefix() && network(a) == network(b);
    Some(if same { Fit::SameNetwork } else { Fit::Routed })
}

/// The network's part of an address.
fn network(gid: &Gid) -> u128 {
    let (bits, width) = match gid.ip() {
        IpAddr::V4(ip) if gid.kind != GidKind::Ib => (u128::from(u32::from(ip)), 32),
        _ => (u128::from(gid.address), 128),
    };
    bits.checked_shr(width - u32::from(gid.prefix()).min(width)).unwrap_or(0)
}

/// The best GIDs of two rails for each other.
fn best_fit(a: &OfferedRail, b: &OfferedRail) -> Option<(Fit, usize, usize)> {
    let mut best: Option<(Fit, usize, usize)> = None;
    for (i, here) in a.gids.iter().enumerate() {
        for (j, there) in b.gids.iter().enumerate() {
            let fit = fit(here, there);
            if let Some(fit) =
                fit.filter(|fit| a.layer == b.layer && best.is_none_or(|(known, ..)| *fit > known))
            {
                best = Some((fit, i, j));
            }
        }
    }
    best
}

/// Pairs the rails of two ends, that with the lower rank first; both ends come to the same. Rails of one network go
/// together, otherwise those of the same number; the end with fewer rails decides how many pairs there are.
/// The first pair is that of the lower rank's preferred rail.
pub fn pair(low: &Offer, high: &Offer) -> Result<Vec<Pair>> {
    let layer_of = |offer: &Offer| offer.rails.first().map(|rail| rail.layer);
    if layer_of(low).is_none() || layer_of(high).is_none() {
        return Err(Error::unsupported("a connection without a rail", "see `ibv_devinfo` on both hosts"));
    }
    if layer_of(low) != layer_of(high) {
        return Err(Error::unsupported(
            format!("a connection between different link layers: {}, {}", low.layers(), high.layers()),
            "choose ports of one layer on all hosts with RDMACCL_IB_HCA, or another transport with RDMACCL_NET",
        ));
    }
    let swap = high.rails.len() < low.rails.len();
    let (few, many) = if swap { (high, low) } else { (low, high) };
    let mut free: Vec<usize> = (0..many.rails.len()).collect();
    let mut pairs = Vec::new();
    for (i, rail) in few.rails.iter().enumerate() {
        let found = free.iter().filter_map(|&j| best_fit(rail, &many.rails[j]).map(|fit| (fit, j)));
        let best = found.max_by_key(|((fit, ..), j)| (*fit, std::cmp::Reverse(j.abs_diff(i))));
        let Some(((fit, gid, other), j)) = best else { continue };
        free.retain(|&other| other != j);
        let (here, there) = ((i, gid), (j, other));
        let (low, high) = if swap { (there, here) } else { (here, there) };
        pairs.push(Pair { low, high, why: reason(fit, few.rails.len() < many.rails.len()) });
    }
    if pairs.is_empty() {
        return Err(Error::unsupported(
            format!(
                "a connection between GIDs that do not reach each other: {}; {}",
                low.gids(),
                high.gids()
            ),
            "give both hosts RoCE v2 addresses of one family, or choose with RDMACCL_IB_ADDR_FAMILY or RDMACCL_IB_GID_INDEX",
        ));
    }
    pairs.sort_by_key(|pair| pair.low.0);
    let first = pairs.iter().position(|pair| pair.low.0 >= low.first).unwrap_or(0);
    pairs.rotate_left(first);
    Ok(pairs)
}

fn reason(fit: Fit, unequal: bool) -> String {
    let why = match fit {
        Fit::SameNetwork => "same network",
        Fit::Routed => "by order; a router must join their networks",
        Fit::LinkLocal => "by order; link-local addresses, in one Ethernet segment",
    };
    format!("{why}{}", if unequal { "; the hosts have different numbers of rails" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::survey::Survey;
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;

    fn offer(survey: &Survey) -> Offer {
        Offer::of(&survey.host, &rails::choose(survey, &Config::default().ib).unwrap().value, 0)
    }

    fn ends(pairs: &[Pair]) -> Vec<(usize, usize)> {
        pairs.iter().map(|pair| (pair.low.0, pair.high.0)).collect()
    }

    #[test]
    fn rails_of_one_network_go_together() {
        let (a, mut b) = (offer(&surveys::rails(1, 4)), offer(&surveys::rails(2, 4)));
        assert_eq!(ends(&pair(&a, &b).unwrap()), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        b.rails.rotate_left(1);
        let pairs = pair(&a, &b).unwrap();
        assert_eq!(ends(&pairs), [(0, 3), (1, 0), (2, 1), (3, 2)]);
        assert!(pairs.iter().all(|pair| pair.why == "same network"));
    }

    #[test]
    fn networks_that_differ_pair_by_order_and_unequal_counts_by_the_fewer() {
        let moved = |rail: u8| surveys::rails(1, rail);
        let mut far = surveys::rails(2, 2);
        for device in &mut far.devices {
            let port = surveys::roce_port(
                "eth0",
                &format!("10.99.{}.2", device.name.len()),
                "2001:db8:99::2",
                400.0,
            );
            device.ports = vec![port];
        }
        let pairs = pair(&offer(&moved(2)), &offer(&far)).unwrap();
        assert_eq!(ends(&pairs), [(0, 0), (1, 1)]);
        assert!(pairs[0].why.contains("router"), "{}", pairs[0].why);
        for (low, high, expected) in [(4, 2, [(0, 0), (1, 1)]), (2, 4, [(0, 0), (1, 1)])] {
            let pairs = pair(&offer(&surveys::rails(1, low)), &offer(&surveys::rails(2, high))).unwrap();
            assert_eq!(ends(&pairs), expected);
            assert!(pairs[0].why.contains("different numbers"));
        }
    }

    #[test]
    fn the_first_pair_is_the_lower_ranks_preferred_rail() {
        let (mut a, b) = (offer(&surveys::rails(1, 3)), offer(&surveys::rails(2, 3)));
        a.first = 2;
        assert_eq!(ends(&pair(&a, &b).unwrap()), [(2, 2), (0, 0), (1, 1)]);
    }

    #[test]
    fn what_cannot_talk_is_an_error_that_names_both_hosts() {
        let error = pair(&offer(&surveys::infiniband()), &offer(&surveys::roce())).unwrap_err().to_string();
        assert!(
            error.contains("host ib1") && error.contains("host roce1") && error.contains("RDMACCL_IB_HCA"),
            "{error}"
        );
        let (mut a, mut b) = (offer(&surveys::roce()), offer(&surveys::softroce(1)));
        a.rails[0].gids.retain(|gid| gid.ip().is_ipv6());
        b.rails[0].gids.retain(|gid| gid.ip().is_ipv4());
        let error = pair(&a, &b).unwrap_err().to_string();
        assert!(
            error.contains("2001:db8::7") && error.contains("10.7.0.1") && error.contains("ADDR_FAMILY"),
            "{error}"
        );
    }

    #[test]
    fn the_family_that_both_have_is_found() {
        let (mut a, b) = (offer(&surveys::rails(1, 1)), offer(&surveys::rails(2, 1)));
        a.rails[0].gids.retain(|gid| gid.ip().is_ipv6());
        let pairs = pair(&a, &b).unwrap();
        let (here, there) = (a.side(0, pairs[0].low.1), b.side(0, pairs[0].high.1));
        assert_eq!(
            (here.gid().ip().to_string(), there.gid().ip().to_string()),
            (
                "2001:db8:0::1".parse::<IpAddr>().unwrap().to_string(),
                "2001:db8:0::2".parse::<IpAddr>().unwrap().to_string()
            )
        );
    }
}

//! How the ranks of a communicator lie on hosts.

use super::Rank;

/// So many ranks, in equal numbers on so many hosts, host after host: with l ranks to a host, rank r is the one with the local
/// number r mod l on host r / l.
///
/// One host also stands for "nothing is known of hosts". A number of ranks is a placement on one host (`4.into()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Placement {
    /// Members of the communicator.
    pub ranks: u32,
    /// Hosts, at least 1. They divide the ranks.
    pub hosts: u32,
}

impl Placement {
    /// All on one host.
    pub const fn one_host(ranks: u32) -> Placement {
        Placement { ranks, hosts: 1 }
    }

    /// On so many hosts; `None` where the ranks cannot be dealt to them in equal numbers.
    pub const fn even(ranks: u32, hosts: u32) -> Option<Placement> {
        if hosts > 0 && ranks.is_multiple_of(hosts) { Some(Placement { ranks, hosts }) } else { None }
    }

    /// How ranks lie whose hosts are these, in the order of the ranks. Where they are not dealt in equal numbers, host after
    /// host, each rank counts as a host of its own: then nobody is taken to be near who is not.
    pub fn of<H: PartialEq>(hosts: &[H]) -> Placement {
        let ranks = hosts.len() as u32;
        let locals = hosts.iter().take_while(|host| **host == hosts[0]).count().max(1);
        let mut dealt = hosts.chunks(locals);
        let equal = dealt.all(|here| here.len() == locals && here.iter().all(|host| *host == here[0]));
        let firsts = || hosts.iter().step_by(locals).enumerate();
        let distinct = firsts().all(|(at, host)| firsts().skip(at + 1).all(|(_, other)| other != host));
        let hosts = if equal && distinct { ranks / locals as u32 } else { ranks };
        Placement { ranks, hosts: hosts.max(1) }
    }

    /// Ranks of each host.
    pub const fn locals(self) -> u32 {
        self.ranks / self.hosts
    }

    /// Whether two ranks are on different hosts.
    pub const fn are_apart(self, one: Rank, other: Rank) -> bool {
        one / self.locals() != other / self.locals()
    }
}

impl From<u32> for Placement {
    fn from(ranks: u32) -> Placement {
        Placement::one_host(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_known_where_ranks_are_dealt_evenly_in_order() {
        let of = |hosts: &str| Placement::of(hosts.as_bytes());
        assert_eq!(of("aaaa"), Placement::one_host(4));
        assert_eq!(Some(of("aabb")), Placement::even(4, 2));
        assert_eq!(Some(of("aaabbbccc")), Placement::even(9, 3));
        assert_eq!(Some(of("abc")), Placement::even(3, 3));
        assert_eq!(of("a"), Placement::one_host(1));
        assert_eq!(of(""), Placement::one_host(0));
        for ragged in ["aaab", "aab", "abab", "aabbaa", "aabc"] {
            assert_eq!(of(ragged).hosts, ragged.len() as u32, "{ragged}");
        }
    }

    #[test]
    fn ranks_are_apart_where_their_hosts_differ() {
        let placement = Placement::even(6, 2).unwrap();
        assert_eq!(placement.locals(), 3);
        let apart: Vec<_> = (0..6).map(|rank| placement.are_apart(2, rank)).collect();
        assert_eq!(apart, [false, false, false, true, true, true]);
        assert_eq!((Placement::even(6, 4), Placement::even(6, 0)), (None, None));
    }
}

//! Who can reach whom: the address of a rank.

use ccl_core::{Error, Result};
use std::net::IpAddr;

/// Version of what follows it.
const VERSION: u8 = 1;

/// Longest host name that is told.
const MOST_NAME: usize = 64;

/// Most addresses that are told.
const MOST_ADDRESSES: usize = 8;

/// Where a rank is, as told to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the kernel's boot and the network namespace: equal where loopback leads from one to the other.
    machine: u64,
    pub(crate) host: String,
    addresses: Vec<IpAddr>,
}

impl Place {
    /// This process's.
    pub(crate) fn here(host: &str, addresses: &[IpAddr]) -> Result<Place> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        const NETWORK: &str = "/proc/self/ns/net";
        let unreadable = |path: &str, e| Error::system(format!("reading {path}"), e, "mount /proc");
        let boot = std::fs::read(BOOT).map_err(|e| unreadable(BOOT, e))?;
        let network = std::fs::read_link(NETWORK).map_err(|e| unreadable(NETWORK, e))?;
        let words = boot.iter().chain(network.as_os_str().as_encoded_bytes());
        let machine =
            words.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        let host = host[..host.floor_char_boundary(MOST_NAME)].to_string();
        Ok(Place { machine, host, addresses: addresses.iter().take(MOST_ADDRESSES).copied().collect() })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.machine.to_le_bytes());
        bytes.push(self.host.len() as u8);
        bytes.extend(self.host.as_bytes());
        for address in &self.addresses {
            match address {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(16);
                    bytes.extend(ip.octets());
                }
            }
        }
        bytes
    }

    /// `None`: not an address of this transport.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Place> {
        let (&version, rest) = bytes.split_first()?;
        let (machine, rest) = rest.split_first_chunk()?;
        let (&len, rest) = rest.split_first()?;
        let (host, mut rest) = rest.split_at_checked(len.into())?;
        let mut addresses = Vec::new();
        while let Some((&len, tail)) = rest.split_first() {
            let (octets, tail) = tail.split_at_checked(len.into())?;
            addresses.push(match len {
                4 => IpAddr::from(*octets.first_chunk::<4>()?),
                16 => IpAddr::from(*octets.first_chunk::<16>()?),
                _ => return None,
            });
            rest = tail;
        }
        let fits = version == VERSION && host.len() <= MOST_NAME && addresses.len() <= MOST_ADDRESSES;
        let host = std::str::from_utf8(host).ok()?.to_string();
        fits.then_some(Place { machine: u64::from_le_bytes(*machine), host, addresses })
    }

    /// Why the rank at this place cannot be reached, if it cannot.
    pub(crate) fn reaches(&self, peer: &Place) -> Result<(), String> {
        if peer.addresses.is_empty() {
            return Err("it listens on no address".to_string());
        }
        if self.machine == peer.machine {
            return Ok(());
        }
        let remote = |place: &Place| -> Vec<IpAddr> {
            place.addresses.iter().filter(|ip| !ip.is_loopback()).copied().collect()
        };
        let (theirs, ours) = (remote(peer), remote(self));
        if theirs.is_empty() {
            return Err(format!(
                "it is on another machine ({}) and listens on loopback only; name its interface in RDMACCL_SOCKET_IFNAME",
                peer.host
            ));
        }
        if theirs.iter().any(|ip| ours.iter().any(|own| own.is_ipv4() == ip.is_ipv4())) {
            return Ok(());
        }
        let list = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        Err(format!(
            "its addresses ({}) are of another family than this rank's ({}); see RDMACCL_SOCKET_FAMILY",
            list(&theirs),
            if ours.is_empty() { "loopback only".to_string() } else { list(&ours) }
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(machine: u64, addresses: &[&str]) -> Place {
        Place {
            machine,
            host: "left".into(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_address_survives_the_way_and_nothing_else_passes() {
        let longest = Place::here(&"ä".repeat(100), &["fe80::1".parse().unwrap(); 20]).unwrap();
        assert!(longest.encode().len() <= 256);
        for place in [place(7, &["10.0.0.1", "::1"]), place(1, &[]), longest] {
            let bytes = place.encode();
            assert_eq!(Place::decode(&bytes), Some(place.clone()));
            let ends = (0..bytes.len()).filter(|&n| Place::decode(&bytes[..n]).is_some());
            assert!(ends.count() <= place.addresses.len(), "cut between addresses only");
        }
        assert_eq!(Place::decode(b"nonsense"), None);
    }

    #[test]
    fn loopback_leads_to_the_own_machine_only_and_families_must_meet() {
        let here = place(1, &["10.0.0.1", "127.0.0.1"]);
        assert_eq!(here.reaches(&place(1, &["127.0.0.1"])), Ok(()));
        assert_eq!(here.reaches(&place(2, &["10.0.0.2", "127.0.0.1"])), Ok(()));
        assert!(here.reaches(&place(2, &["127.0.0.1"])).unwrap_err().contains("loopback only"));
        assert!(here.reaches(&place(2, &["2001:db8::1"])).unwrap_err().contains("another family"));
        assert!(place(1, &["::1"]).reaches(&place(2, &["10.0.0.2"])).unwrap_err().contains("another family"));
        assert!(here.reaches(&place(2, &[])).is_err());
    }
}

//! Which of this machine's addresses others are told, read over netlink.

use super::net::{bootstrap_error, is_remote};
use crate::config::Config;
use crate::error::Result;
use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The kernel answers at once; something that only looks like one may not answer at all.
const PATIENCE: Duration = Duration::from_secs(2);

const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK: u16 = 16;
const RTM_GETADDR: u16 = 22;
const RTM_NEWADDR: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Bridges of containers and virtual machines: up, with an address, and leading nowhere.
const NOT_BY_ITSELF: [&str; 4] = ["docker", "virbr", "veth", "br-"];

/// The addresses to announce, best first. With `RDMACCL_SOCKET_IFNAME` those of the matching interfaces;
/// without, those of every real interface and loopback last, which joins the ranks of one host without any network.
pub(super) fn addresses(config: &Config) -> Result<Vec<IpAddr>> {
    let found = match read() {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot read the network interfaces; using loopback only");
            vec![("lo".to_string(), IpAddr::from(Ipv4Addr::LOCALHOST))]
        }
    };
    let family = config.socket_family;
    let allowed = |ip: &IpAddr| if ip.is_ipv4() { family.allows_v4() } else { family.allows_v6() };
    let mut chosen: Vec<IpAddr> = Vec::new();
    match &config.socket_ifname {
        Some(names) => {
            chosen.extend(found.iter().filter(|(n, ip)| names.matches(n) && allowed(ip)).map(|(_, ip)| *ip));
            if chosen.is_empty() {
                let names_found: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
                return Err(bootstrap_error(format!(
                    "no interface that is up fits RDMACCL_SOCKET_IFNAME={names} and RDMACCL_SOCKET_FAMILY={family}; \
                     with an address there are: {}",
                    names_found.join(", ")
                )));
            }
        }
        None => {
            let by_itself = |name: &str| !NOT_BY_ITSELF.iter().any(|prefix| name.starts_with(prefix));
            chosen.extend(
                found
                    .iter()
                    .filter(|(name, ip)| is_remote(ip) && by_itself(name) && allowed(ip))
                    .map(|(_, ip)| *ip),
            );
            let loopback = if family.allows_v4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                IpAddr::from(Ipv6Addr::LOCALHOST)
            };
            chosen.truncate(super::wire::MAX_ADDRESSES - 1);
            chosen.push(loopback);
        }
    }
    chosen.truncate(super::wire::MAX_ADDRESSES);
    Ok(chosen)
}

/// Every address of every interface that is up, except those that are valid on one cable only.
fn read() -> rustix::io::Result<Vec<(String, IpAddr)>> {
    let links: HashMap<u32, String> =
        dump(RTM_GETLINK, 16)?.iter().filter_map(|message| link(message)).collect();
    let found = dump(RTM_GETADDR, 8)?
        .iter()
        .filter_map(|message| {
            let (index, ip) = address(message)?;
            Some((links.get(&index)?.clone(), ip))
        })
        .collect();
    Ok(found)
}

/// The answers to a dump request, each with its header of 16 bytes.
fn dump(request: u16, body: usize) -> rustix::io::Result<Vec<Vec<u8>>> {
    // No protocol means number 0, which is NETLINK_ROUTE.
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut ask = vec![0; 16 + body];
    let len = ask.len() as u32;
    ask[..4].copy_from_slice(&len.to_ne_bytes());
    ask[4..6].copy_from_slice(&request.to_ne_bytes());
    ask[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    rustix::net::sendto(&socket, &ask, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut messages = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // A signal must not cost the ranks of other hosts.
        let (len, _) = retry_on_intr(|| rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()))?;
        if len == 0 {
            return Ok(messages);
        }
        for message in Records::new(&buffer[..len], 4) {
            match message.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])) {
                Some(NLMSG_DONE) => return Ok(messages),
                Some(NLMSG_ERROR) | None => return Err(rustix::io::Errno::PROTO),
                Some(_) => messages.push(message.to_vec()),
            }
        }
    }
}

fn link(message: &[u8]) -> Option<(u32, String)> {
    let up = word(message, 24)? & IFF_UP != 0;
    let name = attribute(message.get(32..)?, IFLA_IFNAME)?;
    let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_string();
    (half(message, 4)? == RTM_NEWLINK && up).then_some((word(message, 20)?, name))
}

fn address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = message.get(24..)?;
    let bytes = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS))?;
    let ip = match bytes.len() {
        4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        16 => IpAddr::from(*bytes.first_chunk::<16>()?),
        _ => return None,
    };
    let on_one_cable = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    (half(message, 4)? == RTM_NEWADDR && !on_one_cable).then_some((word(message, 20)?, ip))
}

fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    Records::new(attributes, 2).find(|a| half(a, 2) == Some(wanted)).and_then(|a| a.get(4..))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Records that begin with their own length, in `width` bytes, and are padded to four.
struct Records<'a> {
    rest: &'a [u8],
    width: usize,
}

impl<'a> Records<'a> {
    fn new(rest: &'a [u8], width: usize) -> Records<'a> {
        Records { rest, width }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = if self.width == 4 { word(self.rest, 0)? as usize } else { half(self.rest, 0)?.into() };
        // A length that does not even cover itself would never end.
        let record = self.rest.get(..len).filter(|r| r.len() >= 4)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_interfaces() {
        assert!(read().unwrap().iter().any(|(_, ip)| ip.is_loopback()));
    }

    #[test]
    fn records_that_lie_about_their_length_end_the_list() {
        for bytes in [&[0u8, 0, 0, 0][..], &[9, 0, 0, 0], &[1, 0], &[]] {
            assert_eq!(Records::new(bytes, 2).count(), 0);
        }
        let config =
            Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=nosuch0".to_string())]).unwrap();
        let error = addresses(&config).unwrap_err().to_string();
        assert!(error.contains("RDMACCL_SOCKET_IFNAME==nosuch0") && error.contains("lo"), "{error}");
    }
}

//! Strangers at the ports of a process: nonsense, half a greeting, silence, and many at once.

use crate::random::Random;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(200);

/// Calls at every port where one of these processes listens. Some of the connections stay open until they are dropped.
pub(super) fn call(pids: &[u32], random: &mut Random) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for address in pids.iter().flat_map(|pid| listening(*pid)) {
        for _ in 0..1 + random.below(12) {
            let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { continue };
            let mut bytes = match random.below(4) {
                0 => Vec::new(),
                1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                2 => b"rdmaccl\x01".to_vec(),
                _ => b"rdmacc".to_vec(),
            };
            bytes.extend((0..random.below(200)).map(|_| random.next() as u8));
            // It may hang up on us at any time.
            let _ = stream.write_all(&bytes);
            if random.percent(60) {
                open.push(stream);
            }
        }
    }
    open
}

/// Where a process listens for TCP connections.
fn listening(pid: u32) -> BTreeSet<SocketAddr> {
    let inodes: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let of = |file: &str, ip: fn(&str) -> std::net::IpAddr| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        let lines = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        // sl, local_address, rem_address, st (0A: listening), five more, inode.
        let ours = lines.filter(|fields| fields.len() > 9 && fields[3] == "0A" && inodes.contains(fields[9]));
        let address = |fields: Vec<&str>| {
            let (host, port) = fields[1].split_once(':')?;
            Some(SocketAddr::new(ip(host), u16::from_str_radix(port, 16).ok()?))
        };
        ours.filter_map(address).collect::<Vec<_>>()
    };
    // Four bytes in the host's order; where it is none, it listens at all addresses.
    let v4 = |host: &str| {
        let word = u32::from_str_radix(host, 16).unwrap_or(0);
        let ip = Ipv4Addr::from(u32::from_be(word));
        if ip.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { ip.into() }
    };
    let v6 = |_: &str| Ipv6Addr::LOCALHOST.into();
    of("tcp", v4).into_iter().chain(of("tcp6", v6)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_found_and_called() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listening(std::process::id()).contains(&address));
        let strangers = call(&[std::process::id()], &mut Random::new(1, 1));
        listener.accept().unwrap();
        drop(strangers);
    }
}

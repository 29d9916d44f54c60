//! Listening sockets, and which addresses they take.
//!
//! Without `RDMACCL_SOCKET_IFNAME` one socket takes all addresses of this machine. With it there is a socket for
//! each address of the matching interfaces, and no other network can connect.

use super::interfaces;
use super::net::bootstrap_error;
use crate::config::Config;
use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Connections that may wait in the kernel: a whole job arrives at once.
const BACKLOG: i32 = 4096;

/// Listening sockets, and the addresses at which others are told to call.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) sockets: Vec<TcpListener>,
    pub(super) addresses: Vec<SocketAddr>,
}

/// Listens on a free port or one of the configured range.
pub(super) fn listen(config: &Config) -> Result<Listeners> {
    let ips = interfaces::addresses(config)?;
    if config.socket_ifname.is_none() {
        let socket = on_free_port(config, |port| everywhere(port, config))?;
        let port = port_of(&socket)?;
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        return Ok(Listeners { sockets: vec![socket], addresses });
    }
    let mut listeners = Listeners { sockets: Vec::new(), addresses: Vec::new() };
    for ip in ips {
        let socket = on_free_port(config, |port| bind(SocketAddr::new(ip, port)))?;
        listeners.addresses.push(SocketAddr::new(ip, port_of(&socket)?));
        listeners.sockets.push(socket);
    }
    Ok(listeners)
}

/// Listens at a meeting point with this port: on loopback only where that is what was named; on the interfaces
/// asked for and on those of the named addresses that are this machine's; or else on all addresses.
pub(super) fn listen_at(
    named: &[IpAddr],
    port: u16,
    loopback_only: bool,
    config: &Config,
) -> Result<Vec<TcpListener>> {
    let mut ips = named.to_vec();
    if config.socket_ifname.is_some() && !loopback_only {
        ips.extend(interfaces::addresses(config)?.into_iter().filter(|ip| !named.contains(ip)));
    } else if !loopback_only {
        return Ok(vec![everywhere(port, config).map_err(|e| taken(port, e))?]);
    }
    let mut sockets = Vec::new();
    for ip in ips {
        match bind(SocketAddr::new(ip, port)) {
            Ok(socket) => sockets.push(socket),
            // A name may stand for addresses that only others see, behind a translation.
            Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {}
            Err(e) => return Err(taken(port, e)),
        }
    }
    if sockets.is_empty() { Err(taken(port, Errno::ADDRNOTAVAIL)) } else { Ok(sockets) }
}

fn taken(port: u16, cause: Errno) -> Error {
    Error::system(format!("listening on port {port}"), cause, "choose another port or address")
}

fn on_free_port(
    config: &Config,
    listen_on: impl Fn(u16) -> rustix::io::Result<TcpListener>,
) -> Result<TcpListener> {
    match &config.port_range {
        None => listen_on(0).map_err(|e| Error::system("listen", e, "check the limits on sockets")),
        Some(range) => range.clone().find_map(|port| listen_on(port).ok()).ok_or_else(|| {
            bootstrap_error(format!(
                "no free port in {}-{}; widen RDMACCL_PORT_RANGE, each rank needs one port and rank 0 two",
                range.start(),
                range.end()
            ))
        }),
    }
}

fn port_of(socket: &TcpListener) -> Result<u16> {
    Ok(socket.local_addr().map_err(|e| Error::system("getsockname", e, "retry"))?.port())
}

fn everywhere(port: u16, config: &Config) -> rustix::io::Result<TcpListener> {
    let v4 = || bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    if !config.socket_family.allows_v6() {
        return v4();
    }
    match bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if config.socket_family.allows_v4() => v4(),
        other => other,
    }
}

fn bind(address: SocketAddr) -> rustix::io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Config {
        Config::from_vars(vars.iter().map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
    }

    #[test]
    fn a_named_interface_is_the_only_one_that_listens() {
        let listeners = listen(&config(&[("RDMACCL_SOCKET_IFNAME", "=lo")])).unwrap();
        let bound: Vec<SocketAddr> = listeners.sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        assert!(bound.iter().all(|a| a.ip().is_loopback()), "{bound:?}");
        assert_eq!(bound, listeners.addresses);
        let all = listen(&config(&[])).unwrap();
        assert!(all.sockets.iter().all(|s| s.local_addr().unwrap().ip().is_unspecified()));
    }

    #[test]
    fn a_meeting_on_loopback_is_closed_to_the_network() {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let sockets = listen_at(&[ip], 0, true, &config(&[])).unwrap();
        assert!(sockets.iter().all(|s| s.local_addr().unwrap().ip() == ip));
        let port = sockets[0].local_addr().unwrap().port();
        assert!(listen_at(&[ip], port, true, &config(&[])).is_err());
    }

    #[test]
    fn an_address_of_another_machine_is_passed_over() {
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        let here = config(&[("RDMACCL_SOCKET_IFNAME", "=lo"), ("RDMACCL_SOCKET_FAMILY", "4")]);
        let sockets = listen_at(&[elsewhere], 0, false, &here).unwrap();
        assert!(sockets.iter().all(|s| s.local_addr().unwrap().ip().is_loopback()));
        assert!(listen_at(&[elsewhere], 0, true, &here).is_err());
    }
}

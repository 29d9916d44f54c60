//! What the kernel says about devices, ports and interfaces.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) address: Ipv6Addr,
    /// "RoCE v2", "IB/RoCE v1"
    pub(crate) kind: String,
}

/// Names of all RDMA devices.
pub(crate) fn devices() -> Vec<String> {
    names("/sys/class/infiniband")
}

/// Names of all network interfaces.
pub(crate) fn interfaces() -> Vec<String> {
    names("/sys/class/net")
}

/// The state of a device's port, like "ACTIVE".
pub(crate) fn port_state(device: &str) -> Result<String, String> {
    // "4: ACTIVE"
    let text = read(&format!("/sys/class/infiniband/{device}/ports/1/state"))?;
    Ok(text.rsplit(' ').next().unwrap_or_default().to_string())
}

/// The GID table of a device's port, without empty entries.
pub(crate) fn gids(device: &str) -> Vec<Gid> {
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let gid = |index: u32| {
        let address: Ipv6Addr = read(&format!("{port}/gids/{index}")).ok()?.parse().ok()?;
        // An empty entry has no type, and says so with an error.
        let kind = read(&format!("{port}/gid_attrs/types/{index}")).ok()?;
        Some(Gid { index, address, kind })
    };
    // A table has a thousand entries, of which the first are used.
    (0..16).filter_map(gid).collect()
}

/// Where in its table a port has a RoCEv2 GID of this address.
pub(crate) fn gid_index(device: &str, address: IpAddr) -> Option<u32> {
    let wanted = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    gids(device).into_iter().find(|gid| gid.address == wanted && gid.kind == "RoCE v2").map(|gid| gid.index)
}

/// Packets that an interface has sent.
pub(crate) fn packets_sent(interface: &str) -> Result<u64, String> {
    number(&format!("/sys/class/net/{interface}/statistics/tx_packets"))
}

/// One of the counters that a device keeps itself.
pub(crate) fn hardware_counter(device: &str, name: &str) -> Result<u64, String> {
    number(&format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}"))
}

fn number(file: &str) -> Result<u64, String> {
    read(file)?.parse().map_err(|_| format!("{file}: no number"))
}

/// Whether somebody listens on this TCP port.
pub(crate) fn listens(port: u16) -> bool {
    // "  0: 0100007F:C350 00000000:0000 0A …": local address and port in hexadecimal digits; 0A is "listen".
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
        })
    })
}

/// A file's text without the end of its line.
pub(crate) fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(file).map(|text| text.trim_end().to_string()).map_err(|e| format!("{file}: {e}"))
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_while_it_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nobody has had port 1 for decades; one that was free a moment ago may be another test's now.
        assert!(listens(port) && !listens(1));
    }

    #[test]
    fn interfaces_are_those_of_the_kernel() {
        assert!(interfaces().iter().any(|name| name == "lo"));
        assert!(packets_sent("lo").is_ok());
        assert!(packets_sent("none").unwrap_err().contains("none"));
    }
}

//! Hosts as they are met, for the tests.

use super::survey::{Device, Gid, GidKind, Layer, Netdev, Port, State, Survey};
use std::net::IpAddr;

fn host(name: &str, devices: Vec<Device>) -> Survey {
    Survey { host: name.into(), memlock: None, devices }
}

/// A network interface with these addresses.
pub(crate) fn netdev(name: &str, mtu: u32, networks: &[(&str, u8)]) -> Netdev {
    let networks = networks.iter().map(|(ip, prefix)| (ip.parse().unwrap(), *prefix)).collect();
    Netdev { name: name.into(), up: true, mtu, bond: name.starts_with("bond"), networks }
}

fn gid(index: u32, ip: &str, kind: GidKind, netdev: Option<&Netdev>) -> Gid {
    let address = match ip.parse().unwrap() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Gid { index, address, kind, netdev: netdev.cloned() }
}

fn port(number: u8, layer: Layer, gbps: f64, active_mtu: u16, gids: Vec<Gid>) -> Port {
    Port {
        number,
        layer,
        state: State::Active,
        physical: "LinkUp".into(),
        gbps,
        active_mtu,
        lid: if layer == Layer::InfiniBand { 10 + u16::from(number) } else { 0 },
        host_class: None,
        gids,
    }
}

/// A RoCE port as the kernel fills its table: version 1 and 2 of the link-local, the IPv4 and the IPv6 address.
pub(crate) fn roce_port(interface: &str, v4: &str, v6: &str, gbps: f64) -> Port {
    let netdev = netdev(interface, 9000, &[(v4, 24), (v6, 64)]);
    let of = |ip: &str, first: u32| {
        let kinds = [GidKind::RoceV1, GidKind::RoceV2];
        (first..).zip(kinds).map(|(index, kind)| gid(index, ip, kind, Some(&netdev))).collect::<Vec<_>>()
    };
    let local = format!("fe80::{}", v6.rsplit(':').next().unwrap());
    port(1, Layer::Ethernet, gbps, 4096, [of(&local, 0), of(v4, 2), of(v6, 4)].concat())
}

/// A hardware device with one port.
pub(crate) fn device(name: &str, bus: u32, port: Port) -> Device {
    Device {
        name: name.into(),
        pci: Some(format!("0000:{bus:02x}:00.0")),
        numa: Some(bus / 0x80),
        ports: vec![port],
    }
}

/// One HDR adapter with two InfiniBand ports in one subnet.
pub(crate) fn infiniband() -> Survey {
    let of = |number: u8| {
        let gid = gid(0, &format!("fe80::506b:4b03:0:{number}"), GidKind::Ib, None);
        port(number, Layer::InfiniBand, 200.0, 4096, vec![gid])
    };
    let device = device("mlx5_0", 0x3b, of(1));
    host("ib1", vec![Device { ports: vec![of(1), of(2)], ..device }])
}

/// One RoCE adapter.
pub(crate) fn roce() -> Survey {
    host("roce1", vec![device("mlx5_0", 0x3b, roce_port("eth0", "10.0.0.7", "2001:db8::7", 100.0))])
}

/// `rails` RoCE adapters in a subnet each; this host is number `number` in all of them.
pub(crate) fn rails(number: u8, rails: u8) -> Survey {
    let one = |rail: u8| {
        let (v4, v6) = (format!("10.0.{rail}.{number}"), format!("2001:db8:{rail}::{number}"));
        let bus = 0x10 * (1 + u32::from(rail));
        device(&format!("mlx5_{rail}"), bus, roce_port(&format!("eth{rail}"), &v4, &v6, 400.0))
    };
    host(&format!("node{number}"), (0..rails).map(one).collect())
}

/// SoftRoCE over a veth, its IPv4 address at index 1.
pub(crate) fn softroce(number: u8) -> Survey {
    let ip = format!("10.7.0.{number}");
    let netdev = netdev("d0", 4200, &[(&ip, 24)]);
    let gids =
        vec![gid(0, "fe80::1", GidKind::RoceV2, Some(&netdev)), gid(1, &ip, GidKind::RoceV2, Some(&netdev))];
    let port = port(1, Layer::Ethernet, 2.5, 4096, gids);
    let device = Device { name: "rxe0".into(), pci: None, numa: None, ports: vec![port] };
    host(&format!("guest{number}"), vec![device])
}

/// Two RoCE ports joined in a bond, which is one device.
pub(crate) fn bond() -> Survey {
    host("bonded", vec![device("mlx5_bond_0", 0x3b, roce_port("bond0", "10.1.0.3", "2001:db8:1::3", 200.0))])
}

/// Four InfiniBand adapters for the job, and one slower RoCE adapter for storage.
pub(crate) fn mixed() -> Survey {
    let one = |k: u32| {
        let gid = gid(0, &format!("fec0::{k}"), GidKind::Ib, None);
        device(&format!("mlx5_{k}"), 0x20 + 0x30 * k, port(1, Layer::InfiniBand, 400.0, 4096, vec![gid]))
    };
    let mut devices: Vec<_> = (0..4).map(one).collect();
    devices.push(device("mlx5_4", 0xe0, roce_port("eth9", "10.9.0.1", "2001:db8:9::1", 100.0)));
    host("mixed", devices)
}

//! The conformance suite between threads of one process.

use ccl_transport_tcp::{TcpConfig, TcpTransport};
use std::net::{IpAddr, Ipv4Addr};

fn config() -> TcpConfig {
    TcpConfig {
        slot_bytes: Some(8192),
        credits: Some(4),
        sockets: 2,
        addresses: vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
        host: "here".into(),
    }
}

fn transports(ranks: u32) -> Vec<TcpTransport> {
    (0..ranks).map(|rank| TcpTransport::new(rank, ranks, &config()).unwrap()).collect()
}

ccl_core::transport_conformance!(transports);

/// One socket, and as few credits as the suite needs.
mod narrow {
    use super::*;

    fn transports(ranks: u32) -> Vec<TcpTransport> {
        let narrow = TcpConfig { slot_bytes: Some(200), credits: Some(2), sockets: 1, ..config() };
        (0..ranks).map(|rank| TcpTransport::new(rank, ranks, &narrow).unwrap()).collect()
    }

    ccl_core::transport_conformance!(transports);
}

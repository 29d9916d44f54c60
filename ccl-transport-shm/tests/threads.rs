//! The conformance suite between threads of one process.

use ccl_transport_shm::{ShmConfig, ShmTransport};

fn transports(ranks: u32) -> Vec<ShmTransport> {
    let config = ShmConfig { slot_bytes: 8192, credits: 4, ..ShmConfig::default() };
    (0..ranks).map(|rank| ShmTransport::new(rank, ranks, &config).unwrap()).collect()
}

ccl_core::transport_conformance!(transports);

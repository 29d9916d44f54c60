//! Ranks on hosts of a fake libibverbs: rank r has the devices `h<r>` of its script.

// Each test binary uses its part of it.
#![allow(dead_code, unreachable_pub)]

pub mod pair;
pub mod streams;

use ccl_core::transport::conformance::Board;
use ccl_core::transport::{LinkKey, Transport};
use ccl_core::{Rank, Result};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport};

/// A script for so many hosts with so many rails each: devices `h<host>r<rail>`, networks 10.0.<rail>.0/24.
pub fn script(count: u32, rails: u32) -> String {
    let rail = |host: u32, rail: u32| {
        format!("device h{host}r{rail}; gid h{host}r{rail}/1 1 10.0.{rail}.{}\n", host + 1)
    };
    (0..count).flat_map(|host| (0..rails).map(move |r| rail(host, r))).collect()
}

/// The settings of a rank on the host of its number.
pub fn config(rank: Rank, slot_bytes: usize, credits: u32) -> IbConfig {
    let mut config = IbConfig { slot_bytes: Some(slot_bytes), credits: Some(credits), ..IbConfig::default() };
    config.ib.library = Some(Fake::library().to_string_lossy().into_owned());
    config.ib.hca = Some(format!("h{rank}r").parse().unwrap());
    config
}

/// Unconnected transports.
pub fn transports(ranks: u32, slot_bytes: usize, credits: u32) -> Vec<IbTransport> {
    let new = |rank| IbTransport::new(rank, ranks, &config(rank, slot_bytes, credits)).unwrap();
    (0..ranks).map(new).collect()
}

/// What connecting comes to on each rank, where it may fail.
pub fn try_connect(transports: &mut [IbTransport], links: &[LinkKey]) -> Vec<Result<()>> {
    let boards = Board::of(transports.len() as u32);
    std::thread::scope(|scope| {
        let ends = transports.iter_mut().zip(boards).zip(0..).map(|((transport, mut board), rank)| {
            let mine: Vec<_> =
                links.iter().copied().filter(|link| link.from == rank || link.to == rank).collect();
            scope.spawn(move || transport.connect(&mine, &mut board))
        });
        let ends: Vec<_> = ends.collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    })
}

//! What one link can do: latency of an exchange and bandwidth of a stream between two devices, each end a thread.
//!
//! ```text
//! cargo run --profile fast -p ccl-transport-ibverbs --example link -- rxe_h0r0 rxe_h1r0 1000
//! ```

// A program for people.
#![allow(clippy::print_stdout)]

use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::transport::{Fabric, ReceiverId, SenderId, Sent, Transport};
use ccl_transport_ibverbs::{IbConfig, IbTransport};
use std::time::{Duration, Instant};

const SIZES: [usize; 6] = [8, 64, 1024, 4096, 16384, 65536];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [here, there, rounds] = &arguments[..] else { panic!("two devices and a number of rounds") };
    let rounds: u64 = rounds.parse().expect("a number of rounds");
    let end = |(rank, device): (u32, &String)| {
        let mut config = IbConfig::default();
        config.ib.hca = Some(format!("={device}").parse().expect("a device's name"));
        IbTransport::new(rank, 2, &config).expect("a device")
    };
    let mut ends: Vec<IbTransport> = [(0, here), (1, there)].into_iter().map(end).collect();
    connect(&mut ends, &mesh(2, 1));
    println!("{}", ends[0].describe(1));
    println!("{:>8} {:>12} {:>12} {:>10} {:>10}", "bytes", "one way, us", "median, us", "MB/s", "credits");
    for size in SIZES {
        let times = both(&mut ends, |end, rank| exchange(end, rank, size, rounds));
        let before = ends[1].work().credits;
        let spent = both(&mut ends, |end, rank| stream(end, rank, size, rounds));
        let credits = ends[1].work().credits - before;
        let (mut times, spent) = (times[0].clone(), spent[1]);
        times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6 / 2.0;
        let median = us(times[times.len() / 2]);
        let mean = us(times.iter().sum::<Duration>()) / times.len() as f64;
        let rate = size as f64 * rounds as f64 / spent.as_secs_f64() / 1e6;
        println!("{size:>8} {mean:>12.1} {median:>12.1} {rate:>10.1} {credits:>10}");
    }
    println!("{:?}", ends[0].work());
}

/// Runs both ends, each in a thread.
fn both<R: Send>(ends: &mut [IbTransport], body: impl Fn(&mut IbTransport, u32) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let ends: Vec<_> =
            ends.iter_mut().zip(0..).map(|(end, rank)| scope.spawn(move || body(end, rank))).collect();
        ends.into_iter().map(|end| end.join().expect("no panic")).collect()
    })
}

fn ids(end: &mut IbTransport, rank: u32) -> (SenderId, ReceiverId) {
    (end.sender(&[1 - rank], 0).expect("open"), end.receiver(1 - rank, 0).expect("open"))
}

/// The time of each round trip.
fn exchange(end: &mut IbTransport, rank: u32, size: usize, rounds: u64) -> Vec<Duration> {
    let (to, from) = ids(end, rank);
    let bytes = vec![1; size];
    let round = |_| {
        let start = Instant::now();
        if rank == 0 {
            send(end, to, &bytes);
        }
        take(end, from);
        if rank == 1 {
            send(end, to, &bytes);
        }
        start.elapsed()
    };
    (0..rounds).map(round).collect()
}

/// From the first piece to the last.
fn stream(end: &mut IbTransport, rank: u32, size: usize, rounds: u64) -> Duration {
    let (to, from) = ids(end, rank);
    let bytes = vec![1; size];
    let start = Instant::now();
    for _ in 0..rounds {
        if rank == 0 {
            send(end, to, &bytes);
        } else {
            take(end, from);
        }
    }
    start.elapsed()
}

fn send(end: &mut IbTransport, to: SenderId, bytes: &[u8]) {
    while end.send(to, Buffers::new(bytes, &mut []).input(), 0).expect("a working link") != Sent::Done {}
}

fn take(end: &mut IbTransport, from: ReceiverId) {
    while end.peek(from).expect("a working link").is_none() {}
    end.release(from).expect("a working link");
}

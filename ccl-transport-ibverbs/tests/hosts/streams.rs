//! Streams between two ranks whose every message is known.

use super::config;
use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{connect, mesh, receive, send};
use ccl_core::transport::{Fabric as _, LinkKey, ReceiverId, SenderId, Sent, Transport};
use ccl_transport_ibverbs::{IbConfig, IbTransport, Work};
use std::time::{Duration, Instant};

/// What has not happened by then never will.
pub const GUARD: Duration = Duration::from_secs(60);

pub fn pair(channels: u16, change: impl Fn(&mut IbConfig)) -> Vec<IbTransport> {
    let mut transports: Vec<_> = (0..2).map(|rank| unconnected(rank, &change)).collect();
    connect(&mut transports, &mesh(2, channels));
    transports
}

pub fn unconnected(rank: u32, change: impl Fn(&mut IbConfig)) -> IbTransport {
    let mut config = config(rank, SLOT, 4);
    change(&mut config);
    IbTransport::new(rank, 2, &config).unwrap()
}

/// Streams on all links of two ranks, moved by one thread.
pub struct Traffic {
    pub links: Vec<Link>,
}

pub struct Link {
    pub key: LinkKey,
    pub ends: (SenderId, ReceiverId),
    pub sent: u64,
    pub received: u64,
}

/// Longest message; those of more than 8 KiB choose among the rails.
pub const SLOT: usize = 16384;

/// What message `number` of a link is; short ones and long ones.
pub fn message(key: LinkKey, number: u64) -> Vec<u8> {
    let seed =
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(key.from) << 40 ^ u64::from(key.channel) << 48;
    let len = match seed >> 9 & 7 {
        0 => seed >> 20 & 4095,
        1 | 2 => SLOT as u64 - (seed >> 20 & 8191),
        _ => seed >> 20 & 127,
    };
    (0..len).map(|at| (seed >> (at % 8 * 8)) as u8 ^ at as u8).collect()
}

/// Sends a message, every other one in steps.
fn put(t: &mut IbTransport, to: SenderId, bytes: &[u8], number: u64) -> bool {
    if number.is_multiple_of(2) {
        return t.send(to, Buffers::new(bytes, &mut []).input(), number).unwrap() == Sent::Done;
    }
    send(t, to, bytes, number)
}

impl Traffic {
    pub fn new(t: &mut [IbTransport], channels: u16) -> Traffic {
        let link = |key: LinkKey| {
            let to = t[key.from as usize].sender(&[key.to], key.channel).unwrap();
            let from = t[key.to as usize].receiver(key.from, key.channel).unwrap();
            Link { key, ends: (to, from), sent: 0, received: 0 }
        };
        Traffic { links: mesh(2, channels).into_iter().map(link).collect() }
    }

    /// One message of each link that has a credit, and one of each that has come.
    pub fn step(&mut self, t: &mut [IbTransport], until: u64) {
        for link in &mut self.links {
            let (from, to) = (link.key.from as usize, link.key.to as usize);
            if link.sent < until && put(&mut t[from], link.ends.0, &message(link.key, link.sent), link.sent) {
                link.sent += 1;
            }
            if let Some((bytes, tag)) = receive(&mut t[to], link.ends.1) {
                assert_eq!(tag, link.received, "{:?}", link.key);
                assert!(bytes == message(link.key, tag), "{:?} {tag}", link.key);
                link.received += 1;
            }
        }
    }

    /// All links send up to this message, and get them all.
    pub fn run(&mut self, t: &mut [IbTransport], until: u64) {
        self.run_with(t, until, || {});
    }

    /// The same, and does something now and then.
    pub fn run_with(&mut self, t: &mut [IbTransport], until: u64, mut now_and_then: impl FnMut()) {
        let start = Instant::now();
        for step in 1u64.. {
            if self.links.iter().all(|link| link.received == until) {
                break;
            }
            self.step(t, until);
            if step.is_multiple_of(100) {
                now_and_then();
                t.iter_mut().for_each(|t| t.park(Duration::ZERO).unwrap());
            }
            assert!(
                start.elapsed() < GUARD,
                "{:?}",
                self.links.iter().map(|l| (l.sent, l.received)).collect::<Vec<_>>()
            );
        }
        for link in &self.links {
            assert_eq!(receive(&mut t[link.key.to as usize], link.ends.1), None);
        }
    }
}

/// Moves both ends until something is so.
pub fn until(t: &mut [IbTransport], mut so: impl FnMut(&mut [IbTransport]) -> bool) {
    let start = Instant::now();
    while !so(t) {
        t.iter_mut().for_each(|t| t.park(Duration::from_millis(1)).unwrap());
        assert!(start.elapsed() < GUARD);
    }
}

pub fn both(t: &[IbTransport], of: impl Fn(Work) -> u64) -> [u64; 2] {
    [of(t[0].work()), of(t[1].work())]
}

//! One-way latency and bandwidth between two processes on cores 0 and 1:
//! `cargo run --release -p ccl-transport-shm --example pingpong`.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use ccl_core::transport::{Fabric, LinkKey, ReceiverId, SenderId, Transport};
use ccl_transport_shm::{ShmConfig, ShmTransport};
use common::SocketExchange;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::spin_loop;
use std::process::Command;
use std::time::Instant;

struct End {
    transport: ShmTransport,
    to: SenderId,
    from: ReceiverId,
}

impl End {
    fn open(group: &str, rank: u32) -> End {
        let mut cores = CpuSet::new();
        cores.set(rank as usize);
        let _ = sched_setaffinity(None, &cores);
        let mut transport = ShmTransport::new(rank, 2, &ShmConfig::default()).unwrap();
        let peer = 1 - rank;
        let links = [LinkKey { from: 0, to: 1, channel: 0 }, LinkKey { from: 1, to: 0, channel: 0 }];
        transport.connect(&links, &mut SocketExchange::new(group, rank)).unwrap();
        let (to, from) = (transport.sender(&[peer], 0).unwrap(), transport.receiver(peer, 0).unwrap());
        End { transport, to, from }
    }

    fn send(&mut self, len: usize, fill: impl FnOnce(*mut u8)) {
        loop {
            if let Some(slot) = self.transport.reserve(self.to, len).unwrap() {
                fill(slot.as_mut_ptr());
                return self.transport.publish(self.to, 1).unwrap();
            }
            spin_loop();
        }
    }

    fn receive(&mut self, read: impl FnOnce(*const u8, usize)) {
        loop {
            if let Some(arrival) = self.transport.peek(self.from).unwrap() {
                read(arrival.piece.as_ptr(), arrival.piece.len());
                return self.transport.release(self.from).unwrap();
            }
            spin_loop();
        }
    }
}

fn main() {
    if let Ok(group) = std::env::var("PINGPONG_GROUP") {
        return run(&mut End::open(&group, 1), 1);
    }
    let group = format!("pingpong-{}", std::process::id());
    let mut child =
        Command::new(std::env::current_exe().unwrap()).env("PINGPONG_GROUP", &group).spawn().unwrap();
    run(&mut End::open(&group, 0), 0);
    assert!(child.wait().unwrap().success());
}

fn run(end: &mut End, rank: u32) {
    for len in [0, 8, 40, 64, 104, 256, 1024, 4096, 16384, 65536] {
        one_way(end, rank, len);
    }
    for len in [4096, 16384, 65536] {
        stream(end, rank, len);
    }
    overhead(end, rank);
}

/// Ping-pong with the payload written from and read into memory of one's own; the best of many batches.
fn one_way(end: &mut End, rank: u32, len: usize) {
    let (data, mut copy) = (vec![1u8; len], vec![0u8; len]);
    let rounds = if len > 4096 { 500 } else { 5000 };
    let mut best = f64::MAX;
    for _ in 0..40 {
        let start = Instant::now();
        for _ in 0..rounds {
            if rank == 0 {
                send_copy(end, &data);
                receive_copy(end, &mut copy);
            } else {
                receive_copy(end, &mut copy);
                send_copy(end, &data);
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (2 * rounds) as f64);
    }
    if rank == 0 {
        println!("one way {len:6} B: {best:8.1} ns");
    }
}

/// One direction as fast as it goes.
fn stream(end: &mut End, rank: u32, len: usize) {
    let (data, mut copy) = (vec![1u8; len], vec![0u8; len]);
    let mut best = f64::MAX;
    for _ in 0..20 {
        let messages = (64 << 20) / len;
        let start = Instant::now();
        for _ in 0..messages {
            if rank == 0 { send_copy(end, &data) } else { receive_copy(end, &mut copy) }
        }
        if rank == 0 {
            end.receive(|_, _| ())
        } else {
            end.send(0, |_| ())
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (messages * len) as f64);
    }
    if rank == 0 {
        println!("stream  {len:6} B: {:8.1} GB/s", 1.0 / best);
    }
}

/// What the calls themselves take, with nobody at the other end meanwhile: both ends on this core.
fn overhead(end: &mut End, rank: u32) {
    let mut best = f64::MAX;
    for _ in 0..2000 {
        let start = Instant::now();
        if rank == 0 {
            (0..16u8).for_each(|_| send_copy(end, &[1; 8]));
        }
        let sent = start.elapsed().as_nanos() as f64 / 16.0;
        if rank == 0 {
            end.receive(|_, _| ());
            best = best.min(sent);
        } else {
            (0..16).for_each(|_| receive_copy(end, &mut [0; 8]));
            end.send(0, |_| ());
        }
    }
    if rank == 0 {
        println!("reserve + publish of 8 B into free entries: {best:.1} ns");
    }
}

#[allow(unsafe_code)]
mod sys {
    use super::End;

    pub(super) fn send_copy(end: &mut End, data: &[u8]) {
        // SAFETY: the slot has the data's length and is ours until it is published.
        end.send(data.len(), |to| unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) });
    }

    pub(super) fn receive_copy(end: &mut End, copy: &mut [u8]) {
        end.receive(|from, len| {
            assert_eq!(len, copy.len());
            // SAFETY: the piece has this length, and is not written until it is released.
            unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(from, len) };
            std::hint::black_box(copy);
        });
    }
}
use sys::{receive_copy, send_copy};

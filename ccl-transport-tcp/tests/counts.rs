//! What the transport costs, as counts: one test, because it counts for the whole process.

use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{Counting, allocations, connect, mesh};
use ccl_core::transport::{Fabric, LinkKey, Sent, Transport};
use ccl_transport_tcp::{SystemCalls, TcpConfig, TcpTransport};
use std::net::{IpAddr, Ipv4Addr};

#[global_allocator]
static COUNTING: Counting = Counting;

fn pair(links: &[LinkKey]) -> Vec<TcpTransport> {
    let addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    let config = TcpConfig { addresses, credits: Some(32), ..TcpConfig::default() };
    let mut pair: Vec<_> = (0..2).map(|rank| TcpTransport::new(rank, 2, &config).unwrap()).collect();
    connect(&mut pair, links);
    pair
}

/// Sends a piece of this length one way and takes it at the other end.
fn pass(t: &mut [TcpTransport], from: usize, bytes: &[u8], whole: bool) {
    let other = 1 - from;
    let to = t[from].sender(&[other as u32], 0).unwrap();
    let piece = Buffers::new(bytes, &mut []).input();
    if whole {
        assert_eq!(t[from].send(to, piece, 7).unwrap(), Sent::Done);
    } else {
        t[from].reserve(to, bytes.len()).unwrap().unwrap().copy_from(piece);
        t[from].publish(to, 7).unwrap();
    }
    let at = t[other].receiver(from as u32, 0).unwrap();
    loop {
        if let Some(arrival) = t[other].peek(at).unwrap() {
            assert_eq!((arrival.piece.len(), arrival.tag), (bytes.len(), 7));
            break t[other].release(at).unwrap();
        }
        t[from].flush().unwrap();
    }
}

#[test]
fn a_piece_is_one_call_at_each_end_and_credits_are_rare() {
    let mut t = pair(&mesh(2, 1));
    let bytes = vec![1; 65536];
    // There and back: the credits ride on the pieces.
    for len in [0, 8, 4096, 65536] {
        for whole in [true, false] {
            pass(&mut t, 0, &bytes[..len], whole);
            pass(&mut t, 1, &bytes[..len], whole);
        }
    }
    let before = [t[0].system_calls(), t[1].system_calls()];
    for k in 0..1000 {
        pass(&mut t, 0, &bytes[..8], k % 2 == 0);
        pass(&mut t, 1, &bytes[..8], k % 2 == 0);
    }
    for (t, before) in t.iter().zip(before) {
        let SystemCalls { writes, reads, credit_frames, polls, short_writes, .. } = t.system_calls();
        assert_eq!(writes - before.writes, 1000);
        assert_eq!(reads - before.reads, 1000);
        assert_eq!((credit_frames, polls, short_writes), (0, 0, before.short_writes));
    }

    // One way only: half of the 32 credits go back together.
    let before = [t[0].system_calls(), t[1].system_calls()];
    for _ in 0..1600 {
        pass(&mut t, 0, &bytes[..8], true);
    }
    let (there, back) = (t[0].system_calls(), t[1].system_calls());
    assert_eq!(there.writes - before[0].writes, 1600);
    assert_eq!(back.credit_frames - before[1].credit_frames, 100);
    assert_eq!(back.writes - before[1].writes, 100);

    // Several short pieces that have come are read together.
    let to = t[0].sender(&[1], 0).unwrap();
    let from = t[1].receiver(0, 0).unwrap();
    let before = t[1].system_calls();
    for _ in 0..30 {
        assert_eq!(t[0].send(to, Buffers::new(&bytes[..8], &mut []).input(), 7).unwrap(), Sent::Done);
    }
    for _ in 0..30 {
        assert!(t[1].peek(from).unwrap().is_some());
        t[1].release(from).unwrap();
    }
    // One read, or a few where the kernel was slow to deliver them.
    assert!(t[1].system_calls().reads - before.reads <= 15);

    // Nothing is allocated, and slots are used again.
    let memory = [t[0].memory(), t[1].memory()];
    let before = allocations();
    assert!(before > 0, "the counter counts");
    let ends = [(t[0].sender(&[1], 0).unwrap(), 0), (t[1].sender(&[0], 0).unwrap(), 1)];
    let looked_up = allocations() - before;
    for k in 0..1000u64 {
        for (to, rank) in ends {
            let from = ccl_core::transport::ReceiverId(0);
            for len in [8, 4096] {
                assert!(t[rank].reserve(to, len).unwrap().is_some());
                t[rank].publish(to, k).unwrap();
                while t[1 - rank].peek(from).unwrap().is_none() {}
                t[1 - rank].release(from).unwrap();
            }
        }
    }
    assert_eq!(allocations(), before + looked_up);
    assert_eq!([t[0].memory(), t[1].memory()], memory);

    // Dropped, they leave no descriptor behind.
    drop(t);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..20 {
        drop(pair(&mesh(2, 3)));
    }
    assert_eq!(descriptors(), before);
}

//! Between hosts, what only two ranks may know of: blocks of different lengths, sends and receives.

use super::*;
use crate::calls::{TYPES, compare, elements};
use crate::transfers::exchange;
use crate::uneven::{Uneven, all};
use std::ptr::null;

/// Collectives of uneven blocks by one algorithm give the bits of host memory.
pub(super) fn uneven(host: &Host) {
    let name = CString::new(text(ALGORITHM)).unwrap();
    let config = Config { algorithm: name.as_ptr(), ..CONFIG };
    let (comms, hosts) = (host.comms(0, true, &config), host.comms(1, false, &config));
    let (before, staged) = (launches(&host.gpus), host.gpus.fake.count("cuStreamWaitValue32"));
    on_threads(&comms, |local, comm| {
        let (gpus, reference, rank) = (&host.gpus, hosts[local], host.first + local);
        let queue = gpus.queue(0);
        for (round, kind) in TYPES.into_iter().enumerate() {
            // Means of bytes are refused by the host, too.
            let of = if round % 3 == 2 { TYPES[7] } else { kind };
            for Uneven { name, elements: (sent, received), call } in all(round, (rank, host.all)) {
                let (input, before) = (elements(sent, of, rank + round), noise(received * of.1, 99));
                let name = format!("{name} of type {} in round {round} by {}", of.0, text(ALGORITHM));
                let what = (name.as_str(), &input[..], &before[..]);
                compare(gpus, rank, (comm, reference), &queue, what, &|a, b, c, s| call(a, b, of.0, c, s));
            }
        }
        // Many pieces, more than there are slots.
        let count = |from: usize, to: usize| 30_000 * (from + to) % 70_001;
        let sent: Vec<usize> = (0..host.all).map(|peer| count(rank, peer)).collect();
        let sum: usize = sent.iter().sum();
        let (input, before, n) = (floats(sum, rank), noise(4 * sum, 3), sent.as_ptr());
        let what = ("a long all_to_all", &input[..], &before[..]);
        compare(gpus, rank, (comm, reference), &queue, what, &|a, b, c, s| {
            cclAlltoAllv(a, n, null(), b, n, null(), FLOAT32, c, s)
        });
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert!(launches(&host.gpus) - before >= 71 * host.here as u64, "by kernels");
    assert_eq!(host.gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn collectives_of_uneven_blocks_between_hosts_give_the_bits_of_host_memory() {
    let cases: [(&[Part], &str); 5] =
        [(&TWO, "oneshot"), (&TWO, "ring"), (&FOUR, "hierarchical"), (&FOUR, "oneshot"), (&APART, "ring")];
    for (parts, algorithm) in cases {
        run_with("uneven", parts, algorithm, |_| false);
    }
}

/// Random groups of sends and receives, between and within hosts.
pub(super) fn transfers(host: &Host) {
    let comms = host.comms(0, true, &CONFIG);
    let staged = host.gpus.fake.count("cuStreamWaitValue32");
    on_threads(&comms, |local, comm| {
        let (rank, queue) = (host.first + local, host.gpus.queue(0));
        for round in 0..40 {
            exchange(&host.gpus, (rank, host.all), comm, &queue, round);
        }
        // Each to each other one, many pieces at once.
        let peers = (0..host.all).filter(|peer| *peer != rank);
        let buffers: Vec<_> = peers
            .map(|peer| {
                let (sent, before) = (noise(300_001, 10 * rank + peer), [0; 300_001]);
                (peer, host.gpus.buffer(0, &sent), host.gpus.buffer(0, &before))
            })
            .collect();
        let group = |make: &dyn Fn(c_int, &Buffer<'_>, &Buffer<'_>)| {
            ok(cclGroupStart());
            buffers.iter().for_each(|(peer, from, into)| make(*peer as c_int, from, into));
            ok(cclGroupEnd());
        };
        // As many peers and directions as there are blocks.
        group(&|peer, from, into| {
            ok(cclSend(from.send(), 300_001, 0, peer, comm, queue.handle));
            ok(cclRecv(into.recv(), 300_001, 0, peer, comm, queue.handle));
        });
        queue.finish();
        for (peer, _, into) in &buffers {
            assert!(into.bytes() == noise(300_001, 10 * peer + rank), "{}", last_error(comm));
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert_eq!(host.gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
}

#[test]
fn any_pattern_of_transfers_between_hosts() {
    for parts in [&TWO[..], &FOUR, &THREE, &APART] {
        run("transfers", parts);
    }
}

/// Transfers and uneven blocks in one graph, which is replayed while others come in between.
pub(super) fn replays(host: &Host) {
    let comms = host.comms(0, true, &CONFIG);
    on_threads(&comms, |local, comm| {
        let (gpus, rank, ranks) = (&host.gpus, host.first + local, host.all);
        let queue = gpus.queue(0);
        let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let buffer = |len| gpus.buffer(0, &vec![0; len]);
        let (a, b, c, d) = (buffer(4000), buffer(4000), buffer(4000), buffer(4000));
        let count = |from: usize, to: usize| 100 + 200 * from + 7 * to;
        let sent: Vec<usize> = (0..ranks).map(|peer| count(rank, peer)).collect();
        let received: Vec<usize> = (0..ranks).map(|peer| count(peer, rank)).collect();
        let lengths: Vec<usize> = (0..ranks).map(|peer| 150 * (peer + 1) % 400).collect();
        let transfers = |len| {
            ok(cclGroupStart());
            ok(cclSend(a.send(), len, 0, next as c_int, comm, queue.handle));
            ok(cclRecv(b.recv(), len, 0, last as c_int, comm, queue.handle));
            ok(cclGroupEnd());
        };
        let graph = queue.capture(|| {
            transfers(4000);
            let (n, m) = (sent.as_ptr(), received.as_ptr());
            ok(cclAlltoAllv(b.send(), n, null(), c.recv(), m, null(), 0, comm, queue.handle));
            let n = lengths.as_ptr();
            ok(cclAllGatherV(c.send(), lengths[rank], d.recv(), n, null(), 0, comm, queue.handle));
        });
        for round in 0..12 {
            // What each rank has sent, has got from the others, and has gathered.
            let sent = |rank: usize| noise(4000, 10 * round + rank);
            let got = |rank: usize| -> Vec<u8> {
                let part = |from: usize| {
                    let skipped: usize = (0..rank).map(|to| count(from, to)).sum();
                    sent((from + ranks - 1) % ranks)[skipped..][..count(from, rank)].to_vec()
                };
                (0..ranks).flat_map(part).collect()
            };
            gpus.fake.write(a.at, &sent(rank));
            graph.replay();
            queue.finish();
            assert!(b.bytes() == sent(last), "round {round}: {}", last_error(comm));
            assert!(c.bytes().starts_with(&got(rank)), "round {round}");
            let all: Vec<u8> = (0..ranks).flat_map(|rank| got(rank)[..lengths[rank]].to_vec()).collect();
            assert!(d.bytes().starts_with(&all), "round {round}");
            if round % 5 == 0 {
                // Now and then others come between, or the proxy has gone to sleep.
                transfers(70);
                queue.finish();
                assert!(b.bytes()[..70] == sent(last)[..70]);
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

#[test]
fn transfers_and_uneven_blocks_are_replayed_between_hosts() {
    run("replays", &TWO);
    run("replays", &FOUR);
}

/// The two ends of a transfer do not agree on its length.
pub(super) fn lengths(host: &Host) {
    let config = Config { timeout_ms: 60_000, ..CONFIG };
    let (comms, begin) = (host.comms(0, true, &config), Instant::now());
    then(host, &comms, |rank, comm, at, queue| {
        match rank {
            0 => ok(cclSend(at.send(), 3000, 0, 1, comm, queue.handle)),
            _ => ok(cclRecv(at.recv(), 3001, 0, 0, comm, queue.handle)),
        }
        let text = ended(comm);
        assert!(text.contains("3000") && text.contains("3001"), "{text}");
    });
    assert!(begin.elapsed() < Duration::from_secs(40), "not by the deadline");
    destroy_all(&comms);
}

#[test]
fn transfers_of_two_lengths_between_hosts_are_told_at_once() {
    run("lengths", &TWO);
}

/// Nobody sends what is to be received.
pub(super) fn unsent(host: &Host) {
    let config = Config { timeout_ms: 60_000, ..CONFIG };
    let comms = host.comms(0, true, &config);
    then(host, &comms, |rank, comm, at, queue| {
        if rank == 0 {
            ok(cclCommSetTimeout(comm, 1500));
            ok(cclRecv(at.recv(), 30_000, 0, 1, comm, queue.handle));
        }
        let text = ended(comm);
        assert!(text.contains("rank 1") && text.contains("receive"), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn a_receive_for_which_another_host_sends_nothing_ends_by_the_deadline() {
    run("unsent", &TWO);
}

/// The last rank's process dies, from which all others receive.
pub(super) fn abandoned(host: &Host) {
    let (comms, last) = (host.comms(0, true, &CONFIG), host.all - 1);
    then(host, &comms, |rank, comm, at, queue| {
        if rank == last {
            std::thread::sleep(Duration::from_millis(300));
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let code = cclRecv(at.recv(), 30_000, 0, last as c_int, comm, queue.handle);
        assert!([SUCCESS, REMOTE_ERROR].contains(&code), "{}", last_error(0));
        let text = ended(comm);
        assert!(text.contains(&format!("rank {last}")), "{text}");
        assert_eq!(async_error(comm), REMOTE_ERROR);
    });
    destroy_all(&comms);
}

#[test]
fn a_receive_from_a_killed_rank_of_another_host_ends() {
    run_with("abandoned", &THREE, "", |process| process == 1);
}

/// Who has sent something short may leave before it is received.
pub(super) fn posted(host: &Host) {
    let comms = host.comms(0, true, &CONFIG);
    then(host, &comms, |rank, comm, at, queue| {
        let text = noise(10_000, 5);
        if rank == 0 {
            host.gpus.fake.write(at.at, &text);
            ok(cclSend(at.send(), 10_000, 0, 1, comm, queue.handle));
        } else {
            std::thread::sleep(Duration::from_millis(1500));
            ok(cclRecv(at.recv(), 10_000, 0, 0, comm, queue.handle));
            queue.finish();
            assert!(at.bytes().starts_with(&text), "{}", last_error(comm));
            assert_eq!(async_error(comm), SUCCESS, "{}", last_error(comm));
        }
        ok(cclCommDestroy(comm));
    });
}

#[test]
fn a_short_send_to_another_host_is_over_before_it_is_received() {
    run("posted", &TWO);
}

//! Collectives whose blocks differ give the bits of host memory, by kernels.

use crate::calls::{TYPES, compare, elements};
use crate::common::*;
use crate::cuda::*;
use crate::world::*;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null;

const RANKS: usize = 3;

/// Elements that go from one rank to another in a round; many have none.
fn count(round: usize, from: usize, to: usize) -> usize {
    let mixed = ((round * 31 + from * 7 + to * 3 + 1) * 2_654_435_761) >> 7;
    [0, mixed % 90, mixed % 7, mixed % 2000][mixed % 4]
}

/// Where blocks of these lengths lie, with some elements between them.
fn places(counts: &[usize], gap: usize) -> (Vec<usize>, usize) {
    let mut end = 0;
    let place = |count: &usize| {
        let at = end + gap;
        end = at + count;
        at
    };
    (counts.iter().map(place).collect(), end)
}

/// One of these calls, on buffers of so many elements.
pub(crate) struct Uneven {
    pub(crate) name: &'static str,
    pub(crate) elements: (usize, usize),
    pub(crate) call: Box<dyn Fn(*const c_void, *mut c_void, c_int, Comm, Stream) -> c_int>,
}

/// All of them, as a rank of so many makes them.
pub(crate) fn all(round: usize, (rank, ranks): (usize, usize)) -> Vec<Uneven> {
    let root = round % ranks;
    let gap = round % 3;
    let of_each: Vec<usize> = (0..ranks).map(|peer| count(round, peer, peer)).collect();
    let sent: Vec<usize> = (0..ranks).map(|peer| count(round, rank, peer)).collect();
    let received: Vec<usize> = (0..ranks).map(|peer| count(round, peer, rank)).collect();
    let own = of_each[rank];
    let whole: usize = of_each.iter().sum();
    let (apart, room) = places(&of_each, gap);
    let (from, sent_room) = places(&sent, gap);
    let (into, received_room) = places(&received, 2 * gap);
    let of_root = |elements: usize| if rank == root { elements } else { 0 };
    let op = [SUM, MAX, 4][round % 3];
    let (a, b, c, d) = (of_each.clone(), of_each.clone(), of_each.clone(), of_each);
    let (x, y) = (apart.clone(), apart.clone());
    let call = |name, elements, call| Uneven { name, elements, call };
    vec![
        call(
            "all_gather",
            (own, room),
            Box::new(move |s, r, t, comm, stream| {
                cclAllGatherV(s, own, r, a.as_ptr(), apart.as_ptr(), t, comm, stream)
            }),
        ),
        call(
            "reduce_scatter",
            (whole, own),
            Box::new(move |s, r, t, comm, stream| cclReduceScatterV(s, r, b.as_ptr(), t, op, comm, stream)),
        ),
        call(
            "all_to_all",
            (sent_room, received_room),
            Box::new(move |s, r, t, comm, stream| {
                let (n, m) = (sent.as_ptr(), received.as_ptr());
                cclAlltoAllv(s, n, from.as_ptr(), r, m, into.as_ptr(), t, comm, stream)
            }),
        ),
        call(
            "gather",
            (own, of_root(room)),
            Box::new(move |s, r, t, comm, stream| {
                cclGatherV(s, own, r, c.as_ptr(), x.as_ptr(), t, root as c_int, comm, stream)
            }),
        ),
        call(
            "scatter",
            (of_root(room), own),
            Box::new(move |s, r, t, comm, stream| {
                cclScatterV(s, d.as_ptr(), y.as_ptr(), r, own, t, root as c_int, comm, stream)
            }),
        ),
    ]
}

#[test]
fn collectives_of_uneven_blocks_give_the_bits_of_host_memory() {
    let gpus = gpus(1, "delay 3 200");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    let staged = gpus.fake.count("cuStreamWaitValue32");
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for round in 0..2 * TYPES.len() {
            let of = TYPES[round % TYPES.len()];
            for Uneven { name, elements: (sent, received), call } in all(round, (rank, RANKS)) {
                let input = elements(sent, of, rank + round);
                let before = noise(received * of.1, 99);
                let name = format!("{name} of type {} in round {round}", of.0);
                // Some types have no sums of that kind: on both all the same.
                let (mut probe, host) = (before.clone(), hosts[rank]);
                let code = call(input.as_ptr().cast(), probe.as_mut_ptr().cast(), of.0, host, 0);
                if code != SUCCESS {
                    let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &before));
                    assert_eq!(call(from.send(), into.recv(), of.0, comm, queue.handle), code, "{name}");
                    continue;
                }
                let what = (name.as_str(), &input[..], &before[..]);
                compare(&gpus, rank, (comm, host), &queue, what, &|a, b, c, s| call(a, b, of.0, c, s));
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert_eq!(gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn long_uneven_blocks_and_in_place() {
    let gpus = gpus(1, "");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        // Many pieces, and exactly some of them: between ranks 0 and 1 there are 64 KiB.
        let counts = |from: usize, to: usize| [[5, 16_384, 40_001], [16_384, 0, 3], [40_001, 3, 9]][from][to];
        let own: Vec<usize> = (0..RANKS).map(|peer| counts(rank, peer)).collect();
        let sum: usize = own.iter().sum();
        let (input, before) = (floats(sum, rank), noise(4 * sum, 3));
        let what = ("all_to_all", &input[..], &before[..]);
        compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
            cclAlltoAllv(a, own.as_ptr(), null(), b, own.as_ptr(), null(), FLOAT32, c, s)
        });
        // In place, with blocks that are the same both ways.
        let (mut bytes, at) = (input.clone(), gpus.buffer(0, &input));
        let n = own.as_ptr();
        let exchange = |at: *mut c_void, c, s| cclAlltoAllv(at, n, null(), at, n, null(), FLOAT32, c, s);
        ok(exchange(bytes.as_mut_ptr().cast(), hosts[rank], 0));
        ok(exchange(at.recv(), comm, queue.handle));
        queue.finish();
        assert!(at.bytes() == bytes, "in place on rank {rank}");
        let other: Vec<usize> = own.iter().map(|count| count + 1).collect();
        let code = cclAlltoAllv(
            at.send(),
            n,
            null(),
            at.recv(),
            other.as_ptr(),
            null(),
            FLOAT32,
            comm,
            queue.handle,
        );
        assert_ne!(code, SUCCESS);
        // The same of those of which all know all.
        let blocks = [20_000, 0, 16_384];
        let (n, own) = (blocks.as_ptr(), blocks[rank]);
        let start: usize = 4 * blocks[..rank].iter().sum::<usize>();
        let whole = floats(blocks.iter().sum(), rank + 7);
        let (mut bytes, at) = (whole.clone(), gpus.buffer(0, &whole));
        let gather = |at: *mut c_void, c, s| {
            cclAllGatherV(at.wrapping_byte_add(start), own, at, n, null(), FLOAT32, c, s)
        };
        ok(gather(bytes.as_mut_ptr().cast(), hosts[rank], 0));
        ok(gather(at.recv(), comm, queue.handle));
        queue.finish();
        assert!(at.bytes() == bytes, "all_gather in place on rank {rank}");
        let (mut bytes, at) = (whole.clone(), gpus.buffer(0, &whole));
        let reduce =
            |at: *mut c_void, c, s| cclReduceScatterV(at, at.wrapping_byte_add(start), n, FLOAT32, SUM, c, s);
        ok(reduce(bytes.as_mut_ptr().cast(), hosts[rank], 0));
        ok(reduce(at.recv(), comm, queue.handle));
        queue.finish();
        let part = start..start + 4 * own;
        assert!(at.bytes()[part.clone()] == bytes[part], "reduce_scatter in place on rank {rank}");
    });
    destroy_all(&comms);
    destroy_all(&hosts);
}

/// Each length is another program, and the calls do not wait for each other.
#[test]
fn many_lengths_one_after_the_other() {
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &noise(8000, rank)), gpus.buffer(0, &[0; 8000]));
        let (zero, one) = (noise(8000, 0), noise(8000, 1));
        for round in 1..500 {
            let count = |from: usize, to: usize| (round * (1 + from) + to) % 3000;
            let sent = [count(rank, 0), count(rank, 1)];
            let received = [count(0, rank), count(1, rank)];
            let (s, r) = (sent.as_ptr(), received.as_ptr());
            ok(cclAlltoAllv(from.send(), s, null(), into.recv(), r, null(), 1, comm, queue.handle));
            if round % 100 == 7 {
                queue.finish();
                let skip = |from: usize| if rank == 0 { 0 } else { count(from, 0) };
                let right = [&zero[skip(0)..][..received[0]], &one[skip(1)..][..received[1]]].concat();
                assert!(into.bytes()[..right.len()] == right, "round {round}");
            }
        }
        queue.finish();
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

#[test]
fn the_users_algorithm_is_used_where_all_ranks_know_all_lengths() {
    let gpus = gpus(1, "");
    for name in ["ring", "bruck", "pat", "halving"] {
        let algorithm = CString::new(name).unwrap();
        let config = Config { algorithm: algorithm.as_ptr(), ..CONFIG };
        let (comms, hosts) = (on_devices_with::<RANKS>(&gpus, &config), on_hosts_with::<RANKS>(&config));
        on_threads(&comms, |rank, comm| {
            let (queue, of) = (gpus.queue(0), (FLOAT32, 4, 0xbf));
            for round in [2, 5, 8] {
                for Uneven { name, elements: (sent, received), call } in all(round, (rank, RANKS)) {
                    let (input, before) = (elements(sent, of, rank + round), noise(4 * received, 99));
                    let what = (name, &input[..], &before[..]);
                    compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                        call(a, b, FLOAT32, c, s)
                    });
                    let ran = dump(comm)["state"]["kernels"]["last"]["algorithm"].to_string();
                    assert!(!name.starts_with("all_gather") || !ran.contains("exchange"), "{name}: {ran}");
                }
            }
        });
        destroy_all(&comms);
        destroy_all(&hosts);
    }
}

//! Every call gives the bits of host memory, by kernels.

use crate::common::*;
use crate::cuda::collectives::*;
use crate::cuda::*;
use crate::world::*;
use std::ffi::{CString, c_int, c_void};

/// Types with their sizes, and what is taken from the highest byte of each element, so that none is NaN.
pub(crate) const TYPES: [(c_int, usize, u8); 14] = [
    (0, 1, 0xff),
    (1, 1, 0xff),
    (INT32, 4, 0xff),
    (3, 4, 0xff),
    (4, 8, 0xff),
    (UINT64, 8, 0xff),
    (FLOAT16, 2, 0xbb),
    (FLOAT32, 4, 0xbf),
    (FLOAT64, 8, 0xbf),
    (9, 2, 0xbf),
    (10, 1, 0xb7),
    (11, 1, 0xbb),
    (12, 2, 0xff),
    (13, 2, 0xff),
];

pub(crate) fn elements(count: usize, (_, size, mask): (c_int, usize, u8), seed: usize) -> Vec<u8> {
    let mut bytes = noise(count * size, seed);
    bytes.chunks_exact_mut(size).for_each(|element| element[size - 1] &= mask);
    bytes
}

/// A call of all ranks, on devices and on hosts, must give the same bytes.
pub(crate) fn compare(
    gpus: &Gpus,
    rank: usize,
    (comm, host): (Comm, Comm),
    queue: &Queue<'_>,
    (name, input, before): (&str, &[u8], &[u8]),
    call: &dyn Fn(*const c_void, *mut c_void, Comm, Stream) -> c_int,
) {
    let mut expected = before.to_vec();
    ok(call(input.as_ptr().cast(), expected.as_mut_ptr().cast(), host, 0));
    let (from, into) = (gpus.buffer(0, input), gpus.buffer(0, before));
    ok(call(from.send(), into.recv(), comm, queue.handle));
    queue.finish();
    assert!(into.bytes() == expected, "{name} on rank {rank}: {}", last_error(comm));
    assert!(from.bytes() == input, "{name} has written its send buffer");
}

#[test]
fn an_all_reduce_is_one_kernel_on_the_callers_stream() {
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    let (before, copies) = (launches(&gpus), gpus.fake.count("cuMemHostAlloc"));
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &floats(100, rank)), gpus.buffer(0, &noise(400, 9)));
        ok(cclAllReduce(from.send(), into.recv(), 100, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        let sum = |i: usize| float(&floats(100, 0), i) + float(&floats(100, 1), i);
        let expected: Vec<u8> = (0..100).flat_map(|i| sum(i).to_le_bytes()).collect();
        assert!(into.bytes() == expected, "rank {rank}");
        assert_eq!(async_error(comm), SUCCESS);
        let mut device = -1;
        ok(cclCommDevice(comm, &mut device));
        assert_eq!(device, 0);
    });
    assert_eq!(launches(&gpus) - before, 2);
    assert_eq!(gpus.fake.count("cuMemHostAlloc"), copies, "nothing is staged");
    destroy_all(&comms);
}

/// What a call of two ranks by one thread asks the driver for, of each rank, on the stream of the call before and on another one.
#[test]
fn a_call_asks_the_driver_little() {
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    let queues = [[gpus.queue(0), gpus.queue(0)], [gpus.queue(0), gpus.queue(0)]];
    let buffers = [0, 1].map(|rank| gpus.buffer(0, &floats(100, rank)));
    let call = |queues: &[Queue<'_>; 2]| {
        ok(cclGroupStart());
        for ((comm, buffer), queue) in comms.iter().zip(&buffers).zip(queues) {
            ok(cclAllReduce(buffer.send(), buffer.recv(), 100, FLOAT32, SUM, *comm, queue.handle));
        }
        ok(cclGroupEnd());
    };
    let names = [
        "cuPointerGetAttributes",
        "cuStreamGetCtx",
        "cuCtxPushCurrent",
        "cuStreamIsCapturing",
        "cuStreamGetId",
        "cuStreamWaitEvent",
        "cuLaunchKernel",
        "cuEventRecord",
    ];
    let counts = || names.map(|name| gpus.fake.count(name));
    call(&queues[0]);
    for (queues, waits) in [(&queues[0], 0), (&queues[1], 1), (&queues[1], 0)] {
        let before = counts();
        call(queues);
        let asked: Vec<u64> = counts().iter().zip(before).map(|(now, before)| now - before).collect();
        // Its two buffers; its stream, when it is issued and when it is prepared; then, when it is prepared and when it is launched, one context each.
        assert_eq!(asked, [2, 2, 3, 1, 1, waits, 1, 1].map(|each: u64| 2 * each), "{names:?}");
    }
    queues.iter().flatten().for_each(Queue::finish);
    destroy_all(&comms);
}

#[test]
fn every_collective_gives_the_bits_of_host_memory() {
    let gpus = gpus(1, "delay 1 200");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    let staged = gpus.fake.count("cuStreamWaitValue32");
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for call in &COLLECTIVES {
            for of in [TYPES[0], TYPES[6], TYPES[7], TYPES[8]] {
                for count in [0, 1, 777] {
                    let input = elements(call.1 * count, of, rank);
                    let before = noise(call.2 * count * of.1, 99);
                    let name = format!("{} of {count} of type {}", call.0, of.0);
                    let what = (name.as_str(), &input[..], &before[..]);
                    compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                        (call.3)(a, b, count, of.0, c, s)
                    });
                }
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert_eq!(gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn every_type_with_every_operator() {
    let gpus = gpus(1, "");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for of in TYPES {
            for op in 0..8 {
                let (input, before) = (elements(101, of, rank), vec![0; 101 * of.1]);
                let mut probe = before.clone();
                let code = cclAllReduce(
                    input.as_ptr().cast(),
                    probe.as_mut_ptr().cast(),
                    101,
                    of.0,
                    op,
                    hosts[rank],
                    0,
                );
                if code == SUCCESS {
                    let name = format!("operator {op} of type {}", of.0);
                    let what = (name.as_str(), &input[..], &before[..]);
                    compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                        cclAllReduce(a, b, 101, of.0, op, c, s)
                    });
                    continue;
                }
                let at = gpus.buffer(0, &input);
                let refused = cclAllReduce(at.send(), at.recv(), 101, of.0, op, comm, queue.handle);
                assert_eq!(refused, code, "operator {op} of type {}", of.0);
            }
        }
    });
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn long_calls_and_odd_places() {
    let gpus = gpus(1, "");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        // Packets, one-shot, and plans of many tiles.
        for count in [4096, 5001, 131_072, 300_007] {
            let (input, before) = (floats(count, rank), noise(4 * count, 3));
            let name = format!("all_reduce of {count}");
            let what = (name.as_str(), &input[..], &before[..]);
            compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                cclAllReduce(a, b, count, FLOAT32, SUM, c, s)
            });
            let name = format!("broadcast of {count}");
            let what = (name.as_str(), &input[..], &before[..]);
            compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                cclBroadcast(a, b, count, FLOAT32, 1, c, s)
            });
        }
        // Bytes that begin and end anywhere.
        let bytes = noise(9000, rank);
        let (from, into) = (gpus.buffer(0, &bytes), gpus.buffer(0, &vec![0; 9000]));
        let mut expected = vec![0; 9000];
        let at = expected[7..].as_mut_ptr().cast();
        ok(cclAllReduce(bytes[3..].as_ptr().cast(), at, 8881, 1, MAX, hosts[rank], 0));
        ok(cclAllReduce(from.offset(3), into.offset(7), 8881, 1, MAX, comm, queue.handle));
        queue.finish();
        assert!(into.bytes() == expected);
    });
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn calls_in_place_give_the_bits_of_host_memory() {
    let gpus = gpus(1, "delay 2 100");
    let (comms, hosts) = (on_devices::<RANKS>(&gpus), reference::<RANKS>());
    on_threads(&comms, |rank, comm| {
        in_place(&gpus, rank, comm, hosts[rank]);
    });
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn the_users_algorithm_is_used() {
    let gpus = gpus(1, "");
    for name in ["ring", "tree", "recursive", "halving", "bruck", "pat", "pairwise", "binomial"] {
        let algorithm = CString::new(name).unwrap();
        let config = Config { algorithm: algorithm.as_ptr(), ..CONFIG };
        let (comms, hosts) = (on_devices_with::<RANKS>(&gpus, &config), on_hosts_with::<RANKS>(&config));
        on_threads(&comms, |rank, comm| {
            let queue = gpus.queue(0);
            for call in &COLLECTIVES {
                let of = (INT32, 4, 0xff);
                let (input, before) = (elements(call.1 * 5000, of, rank), vec![1; call.2 * 20_000]);
                let what = (call.0, &input[..], &before[..]);
                compare(&gpus, rank, (comm, hosts[rank]), &queue, what, &|a, b, c, s| {
                    (call.3)(a, b, 5000, INT32, c, s)
                });
            }
            let ran = dump(comm)["state"]["kernels"]["last"].to_string();
            assert!(ran.contains("scatter") && ran.contains("on devices"), "{ran}");
        });
        destroy_all(&comms);
        destroy_all(&hosts);
    }
}

#[test]
fn calls_on_several_streams_keep_their_order_and_devices_reach_each_other() {
    for (devices, script) in [(1, "delay 6 1000"), (2, "delay 7 300")] {
        let gpus = gpus(devices, script);
        let comms = on_devices::<2>(&gpus);
        on_threads(&comms, |rank, comm| {
            let device = rank as u32 % devices;
            let queues = [gpus.queue(device), gpus.queue(device)];
            let buffers: Vec<_> = (0..10).map(|i| gpus.buffer(device, &noise(4000, 10 * rank + i))).collect();
            for (i, buffer) in buffers.iter().enumerate() {
                let queue = &queues[(i + rank) % 2];
                ok(cclAllReduce(buffer.send(), buffer.recv(), 1000, INT32, MAX, comm, queue.handle));
                // Those of host memory go their own way, beside.
                ok(all_reduce(&mut [1.0], comm, 0));
            }
            let (from, into) = (gpus.buffer(device, &noise(700, rank)), gpus.buffer(device, &noise(700, 9)));
            let peer = 1 - rank;
            ok(cclGroupStart());
            ok(cclSend(from.send(), 700, 0, peer as c_int, comm, queues[0].handle));
            ok(cclRecv(into.recv(), 700, 0, peer as c_int, comm, queues[0].handle));
            let at = buffers[0].recv();
            ok(cclAllReduce(at, at, 1000, INT32, MAX, comm, queues[0].handle));
            ok(cclGroupEnd());
            queues.iter().for_each(Queue::finish);
            assert!(into.bytes() == noise(700, peer));
            for (i, buffer) in buffers.iter().enumerate() {
                let int = |bytes: &[u8], at: usize| {
                    i32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap())
                };
                let (a, b, c) = (noise(4000, i), noise(4000, 10 + i), buffer.bytes());
                assert!((0..1000).all(|at| int(&c, at) == int(&a, at).max(int(&b, at))), "call {i}");
            }
        });
        destroy_all(&comms);
    }
}

#[test]
fn one_thread_drives_all_ranks_by_groups() {
    let gpus = gpus(2, "");
    let comms = on_devices::<2>(&gpus);
    let queues = [gpus.queue(0), gpus.queue(1)];
    let buffers = [gpus.buffer(0, &noise(4000, 0)), gpus.buffer(1, &noise(4000, 1))];
    for _ in 0..3 {
        ok(cclGroupStart());
        for rank in 0..2 {
            let at = buffers[rank].recv();
            ok(cclAllReduce(at, at, 1000, INT32, MAX, comms[rank], queues[rank].handle));
            ok(cclBroadcast(at, at, 1000, INT32, 1, comms[rank], queues[rank].handle));
        }
        ok(cclGroupEnd());
    }
    for (comm, queue) in comms.iter().zip(&queues) {
        ok(cclBarrier(*comm, queue.handle));
    }
    queues.iter().for_each(Queue::finish);
    assert!(buffers[0].bytes() == buffers[1].bytes() && buffers[0].bytes() != noise(4000, 0));
    destroy_all(&comms);
}

#[test]
fn graphs_are_replayed() {
    let gpus = gpus(1, "delay 9 200");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        // Packets, a plan, and a mean of integers, which has two kernels.
        let (a, b) = (gpus.buffer(0, &[0; 4000]), gpus.buffer(0, &[0; 8000]));
        let (c, before) = (gpus.buffer(0, &[0; 400]), launches(&gpus));
        let graph = queue.capture(|| {
            ok(cclAllReduce(a.send(), a.recv(), 1000, FLOAT32, SUM, comm, queue.handle));
            ok(cclAllGather(a.send(), b.recv(), 1000, FLOAT32, comm, queue.handle));
            ok(cclAllReduce(c.send(), c.recv(), 100, INT32, 4, comm, queue.handle));
        });
        assert!(launches(&gpus) >= before + 4);
        for round in 0..20 {
            let own = floats(1000, 2 * round + rank);
            gpus.fake.write(a.at, &own);
            let ints: Vec<u8> = (0..100).flat_map(|i| (i + 10 * rank as i32).to_le_bytes()).collect();
            gpus.fake.write(c.at, &ints);
            graph.replay();
            queue.finish();
            let (x, y) = (floats(1000, 2 * round), floats(1000, 2 * round + 1));
            let sums: Vec<u8> = (0..1000).flat_map(|i| (float(&x, i) + float(&y, i)).to_le_bytes()).collect();
            assert!(a.bytes() == sums, "round {round}");
            assert!(b.bytes() == [&sums[..], &sums[..]].concat(), "round {round}");
            let means: Vec<u8> = (0..100).flat_map(|i: i32| (i + 5).to_le_bytes()).collect();
            assert!(c.bytes() == means, "round {round}");
            if round % 5 == 0 {
                // Between replays come others.
                ok(cclAllReduce(a.send(), b.recv(), 7, FLOAT32, SUM, comm, queue.handle));
                queue.finish();
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

#[test]
fn more_shapes_than_a_chunk_of_programs_holds() {
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &noise(4000, rank)), gpus.buffer(0, &[0; 8000]));
        let expected = [noise(4000, 0), noise(4000, 1)];
        for count in 1..4000 {
            ok(cclAllGather(from.send(), into.recv(), count, 1, comm, queue.handle));
            if count % 500 == 7 {
                queue.finish();
                let right = [&expected[0][..count], &expected[1][..count]].concat();
                assert!(into.bytes()[..2 * count] == right, "{count}");
            }
        }
        queue.finish();
    });
    destroy_all(&comms);
}

#[test]
fn communicators_that_are_split_off_have_kernels_too() {
    let gpus = gpus(1, "");
    let comms = on_devices::<3>(&gpus);
    on_threads(&comms, |rank, comm| {
        let mut child = 0;
        ok(cclCommSplit(comm, i32::from(rank == 2), 0, &mut child, std::ptr::null()));
        let queue = gpus.queue(0);
        let at = gpus.buffer(0, &(rank as u64 + 1).to_le_bytes());
        let before = launches(&gpus);
        ok(cclAllReduce(at.send(), at.recv(), 1, UINT64, SUM, child, queue.handle));
        queue.finish();
        // Of ranks 0 and 1, and of rank 2 alone.
        assert_eq!(at.bytes(), 3u64.to_le_bytes());
        assert!(rank == 2 || launches(&gpus) > before);
        ok(cclCommDestroy(child));
    });
    destroy_all(&comms);
}

//! Calls on device memory, whose host address nobody may touch: every result is that of the same call on host memory, bit for
//! bit.

mod common;
mod cuda;
use common::*;
use cuda::collectives::*;
use cuda::*;
use std::ffi::{c_int, c_void};

/// What a call on host memory makes of these bytes.
fn on_host(
    call: &Collective,
    count: usize,
    size: usize,
    dtype: c_int,
    input: &[u8],
    before: &[u8],
    comm: Comm,
) -> Vec<u8> {
    let mut output = before.to_vec();
    assert_eq!((input.len(), output.len()), (call.1 * count * size, call.2 * count * size));
    ok((call.3)(input.as_ptr().cast(), output.as_mut_ptr().cast(), count, dtype, comm, 0));
    output
}

#[test]
fn every_collective_gives_the_bits_of_host_memory() {
    let gpus = Gpus::new(1, "delay 1 200");
    let comms = init_all::<RANKS>();
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for call in &COLLECTIVES {
            for (dtype, size) in [(INT32, 4), (UINT64, 8), (FLOAT16, 2), (FLOAT32, 4), (FLOAT64, 8)] {
                for count in [0, 1, 1000] {
                    let input = if dtype == FLOAT32 {
                        floats(call.1 * count, rank)
                    } else {
                        noise(call.1 * count * size, rank)
                    };
                    let before = noise(call.2 * count * size, 99);
                    let expected = on_host(call, count, size, dtype, &input, &before, comm);
                    let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &before));
                    ok((call.3)(from.send(), into.recv(), count, dtype, comm, queue.handle));
                    queue.finish();
                    assert!(into.bytes() == expected, "{} of {count} of type {dtype} on rank {rank}", call.0);
                    assert!(from.bytes() == input, "{} has written its send buffer", call.0);
                }
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
        let mut device = -1;
        ok(cclCommDevice(comm, &mut device));
        assert_eq!(device, 0);
    });
    destroy_all(&comms);
}

#[test]
fn calls_in_place_give_the_bits_of_host_memory() {
    let gpus = Gpus::new(1, "");
    let comms = init_all::<RANKS>();
    on_threads(&comms, |rank, comm| {
        in_place(&gpus, rank, comm, comm);
    });
    destroy_all(&comms);
}

#[test]
fn uneven_blocks_keep_what_lies_between_them() {
    let gpus = Gpus::new(1, "delay 2 100");
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (counts, gaps) = ([5usize, 3], [1usize, 9]);
        let input = noise(counts[rank] * 8, rank);
        let before = vec![0xee; 16 * 8];
        let mut expected = before.clone();
        let gather = |from: *const c_void, into: *mut c_void, stream| {
            cclAllGatherV(from, counts[rank], into, counts.as_ptr(), gaps.as_ptr(), UINT64, comm, stream)
        };
        ok(gather(input.as_ptr().cast(), expected.as_mut_ptr().cast(), 0));
        let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &before));
        ok(gather(from.send(), into.recv(), queue.handle));
        queue.finish();
        assert_eq!(into.bytes(), expected);
        assert_eq!(expected[..8], before[..8], "a gap");
    });
    destroy_all(&comms);
}

#[test]
fn long_calls_go_in_pieces_that_overlap() {
    for script in ["", "delay 3 2000", "queues 1", "allocations-wait"] {
        let gpus = Gpus::new(2, script);
        let comms = init_all::<2>();
        on_threads(&comms, |rank, comm| {
            let queue = gpus.queue(rank as u32);
            // Seven pieces, the last one short: more than there are slots.
            let count = (6 * (4 << 20) + 1000) / 4;
            let input = floats(count, rank);
            let mut expected = input.clone();
            ok(cclAllReduce(
                input.as_ptr().cast(),
                expected.as_mut_ptr().cast(),
                count,
                FLOAT32,
                SUM,
                comm,
                0,
            ));
            let (from, into) = (gpus.buffer(rank as u32, &input), gpus.buffer(rank as u32, &input));
            ok(cclAllReduce(from.send(), into.recv(), count, FLOAT32, SUM, comm, queue.handle));
            ok(cclBroadcast(from.send(), from.recv(), count, FLOAT32, 0, comm, queue.handle));
            queue.finish();
            assert!(into.bytes() == expected, "with '{script}'");
            assert!(from.bytes() == floats(count, 0), "with '{script}'");
            assert_eq!(async_error(comm), SUCCESS);
        });
        destroy_all(&comms);
    }
}

#[test]
fn ranks_on_devices_and_on_hosts_make_one_call() {
    let gpus = Gpus::new(1, "delay 4 500");
    let comms = init_all::<RANKS>();
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        for (name, count) in [("short", 100), ("long", (9 << 20) / 4)] {
            for call in &COLLECTIVES[..4] {
                let input = floats(call.1 * count, rank);
                let before = noise(call.2 * count * 4, 5);
                let expected = on_host(call, count, 4, FLOAT32, &input, &before, comm);
                if rank == 1 {
                    let again = on_host(call, count, 4, FLOAT32, &input, &before, comm);
                    assert!(again == expected, "{} {name}", call.0);
                    continue;
                }
                let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &before));
                ok((call.3)(from.send(), into.recv(), count, FLOAT32, comm, queue.handle));
                queue.finish();
                assert!(into.bytes() == expected, "{} {name} on rank {rank}", call.0);
            }
        }
    });
    destroy_all(&comms);
}

#[test]
fn a_call_returns_once_it_is_enqueued_and_is_ordered_on_its_stream() {
    let gpus = Gpus::new(1, "");
    let comms = init_all::<2>();
    let gate = gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, 0, 64);
    let queues = [gpus.queue(0), gpus.queue(0)];
    let buffers = [gpus.buffer(0, &floats(100, 0)), gpus.buffer(0, &floats(100, 1))];
    gpus.fake.wait_value(0, queues[0].handle, gate, 1);
    for ((queue, buffer), comm) in queues.iter().zip(&buffers).zip(comms) {
        // The second doubles what the first has left.
        for _ in 0..2 {
            ok(cclAllReduce(buffer.send(), buffer.recv(), 100, FLOAT32, SUM, comm, queue.handle));
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!queues[0].is_done() && !queues[1].is_done(), "what comes before has not ended");
    assert_eq!(buffers[0].bytes(), floats(100, 0));
    gpus.fake.write(gate, &1u32.to_le_bytes());
    queues.iter().for_each(Queue::finish);
    let sum = |i: usize| 2.0 * (float(&floats(100, 0), i) + float(&floats(100, 1), i));
    let expected: Vec<u8> = (0..100).flat_map(|i| sum(i).to_le_bytes()).collect();
    assert!(buffers.iter().all(|buffer| buffer.bytes() == expected));
    gpus.fake.free(ccl_fake_cuda::Memory::Pinned, gate);
    destroy_all(&comms);
}

#[test]
fn calls_on_several_streams_keep_the_communicators_order() {
    let gpus = Gpus::new(1, "delay 6 1000");
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let queues = [gpus.queue(0), gpus.queue(0)];
        let buffers: Vec<_> = (0..10).map(|i| gpus.buffer(0, &noise(4000, 10 * rank + i))).collect();
        for (i, buffer) in buffers.iter().enumerate() {
            let queue = &queues[(i + rank) % 2];
            ok(cclAllReduce(buffer.send(), buffer.recv(), 1000, INT32, MAX, comm, queue.handle));
        }
        // Without a stream, on host memory: after all of them on this communicator.
        let mut host = [1f32];
        ok(all_reduce(&mut host, comm, 0));
        queues.iter().for_each(Queue::finish);
        for (i, buffer) in buffers.iter().enumerate() {
            let int =
                |bytes: &[u8], at: usize| i32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
            let (a, b, c) = (noise(4000, i), noise(4000, 10 + i), buffer.bytes());
            assert!((0..1000).all(|at| int(&c, at) == int(&a, at).max(int(&b, at))), "call {i}");
        }
    });
    destroy_all(&comms);
}

#[test]
fn null_is_the_default_stream_and_pinned_memory_goes_with_all() {
    let gpus = Gpus::new(2, "");
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        // Ranks that share a default stream would wait for each other there.
        let device = rank as u32;
        let (a, b) = (gpus.buffer(device, &floats(50, rank)), gpus.buffer(device, &floats(50, rank)));
        ok(cclAllReduce(a.send(), b.recv(), 50, FLOAT32, SUM, comm, 0));
        wait_for("the default stream", || gpus.fake.is_done(device, 0));
        let expected = b.bytes();
        let at = gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, device, 200);
        let pinned = std::ptr::with_exposed_provenance_mut(at);
        let (queue, host) = (gpus.queue(device), stream());
        for stream in [queue.handle, 0, host] {
            gpus.fake.write(at, &floats(50, rank));
            ok(cclAllReduce(pinned, pinned, 50, FLOAT32, SUM, comm, stream));
            queue.finish();
            ok(cclHostStreamSynchronize(host));
            assert_eq!(gpus.fake.read(at, 200), expected);
        }
        ok(cclBarrier(comm, queue.handle));
        queue.finish();
        ok(cclHostStreamDestroy(host));
        gpus.fake.free(ccl_fake_cuda::Memory::Pinned, at);
    });
    destroy_all(&comms);
}

#[test]
fn a_group_of_transfers_crosses() {
    let gpus = Gpus::new(1, "delay 7 300");
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let (queue, peer) = (gpus.queue(0), 1 - rank);
        let (from, into) = (gpus.buffer(0, &noise(70_000, rank)), gpus.buffer(0, &noise(70_000, 9)));
        ok(cclGroupStart());
        ok(cclSend(from.send(), 70_000, 0, peer as c_int, comm, queue.handle));
        ok(cclRecv(into.recv(), 70_000, 0, peer as c_int, comm, queue.handle));
        ok(cclGroupEnd());
        queue.finish();
        assert!(into.bytes() == noise(70_000, peer));
    });
    destroy_all(&comms);
}

#[test]
fn one_thread_drives_ranks_on_several_devices() {
    let gpus = Gpus::new(2, "");
    let comms = init_all::<2>();
    let queues = [gpus.queue(0), gpus.queue(1)];
    let buffers = [gpus.buffer(0, &noise(4000, 0)), gpus.buffer(1, &noise(4000, 1))];
    ok(cclGroupStart());
    for rank in 0..2 {
        let at = buffers[rank].recv();
        ok(cclAllReduce(at, at, 1000, INT32, MAX, comms[rank], queues[rank].handle));
    }
    ok(cclGroupEnd());
    queues.iter().for_each(Queue::finish);
    assert!(buffers[0].bytes() == buffers[1].bytes() && buffers[0].bytes() != noise(4000, 0));
    destroy_all(&comms);
}

#[test]
fn one_buffer_on_the_device_and_one_pinned() {
    let gpus = Gpus::new(1, "delay 8 300");
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let count = (5 << 20) / 4;
        let input = floats(count, rank);
        let mut expected = vec![0; input.len()];
        ok(cclAllReduce(input.as_ptr().cast(), expected.as_mut_ptr().cast(), count, FLOAT32, SUM, comm, 0));
        let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &noise(4 * count, 3)));
        let at = gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, 0, 4 * count);
        let pinned = std::ptr::with_exposed_provenance_mut(at);
        ok(cclAllReduce(from.send(), pinned, count, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        assert!(gpus.fake.read(at, 4 * count) == expected);
        gpus.fake.write(at, &input);
        ok(cclAllReduce(pinned, into.recv(), count, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        assert!(into.bytes() == expected);
        gpus.fake.free(ccl_fake_cuda::Memory::Pinned, at);
    });
    destroy_all(&comms);
}

//! Communicators of one rank: their calls are copies on the caller's stream, or nothing, and kernels where elements are scaled.

use crate::calls::{TYPES, compare, elements};
use crate::common::*;
use crate::cuda::*;
use crate::uneven::{Uneven, all};
use crate::world::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

/// The mean.
const AVG: c_int = 4;

/// A collective of so many elements.
type Collective = fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;

const COLLECTIVES: [(&str, Collective); 10] = [
    ("all_reduce", |a, b, n, t, c, s| cclAllReduce(a, b, n, t, SUM, c, s)),
    ("all_reduce, a mean", |a, b, n, t, c, s| cclAllReduce(a, b, n, t, AVG, c, s)),
    ("reduce", |a, b, n, t, c, s| cclReduce(a, b, n, t, MAX, 0, c, s)),
    ("broadcast", |a, b, n, t, c, s| cclBroadcast(a, b, n, t, 0, c, s)),
    ("all_gather", |a, b, n, t, c, s| cclAllGather(a, b, n, t, c, s)),
    ("reduce_scatter", |a, b, n, t, c, s| cclReduceScatter(a, b, n, t, SUM, c, s)),
    ("reduce_scatter, a mean", |a, b, n, t, c, s| cclReduceScatter(a, b, n, t, AVG, c, s)),
    ("all_to_all", |a, b, n, t, c, s| cclAlltoAll(a, b, n, t, c, s)),
    ("gather", |a, b, n, t, c, s| cclGather(a, b, n, t, 0, c, s)),
    ("scatter", |a, b, n, t, c, s| cclScatter(a, b, n, t, 0, c, s)),
];

/// What the driver was asked to do for calls: launches of kernels, copies, and what the host has a hand in.
fn done(gpus: &Gpus) -> [u64; 4] {
    ["cuLaunchKernel", "cuMemcpyAsync", "cuStreamWaitValue32", "cuMemHostAlloc"]
        .map(|name| gpus.fake.count(name))
}

/// What came of it since then. The program of a kernel is brought to the device by a copy, the first time.
#[track_caller]
fn since(gpus: &Gpus, before: [u64; 4], kernels: u64, copies: impl Into<Option<u64>>) {
    let now = done(gpus);
    let more: [u64; 4] = std::array::from_fn(|at| now[at] - before[at]);
    let expected = [kernels, copies.into().unwrap_or(more[1]), 0, 0];
    assert_eq!(more, expected, "launches, copies, waits for the host, pinned memory");
}

/// A rank on a device, and one on none.
fn pair(gpus: &Gpus) -> [Comm; 2] {
    let ([comm], [host]) = (on_devices::<1>(gpus), reference::<1>());
    [comm, host]
}

/// An operator that multiplies by 3.
fn threefold(comm: Comm, dtype: c_int) -> c_int {
    let (float, int) = (3f32.to_le_bytes(), 3i32.to_le_bytes());
    let (scalar, mut op) = (if dtype == FLOAT32 { &float } else { &int }, -1);
    ok(cclRedOpCreatePreMulSum(&mut op, scalar.as_ptr().cast(), dtype, 1, comm));
    op
}

#[test]
fn every_collective_is_a_copy_with_the_bits_of_host_memory() {
    let gpus = gpus(1, "delay 1 200");
    let [comm, host] = pair(&gpus);
    let queue = gpus.queue(0);
    for (name, call) in COLLECTIVES {
        for of in TYPES {
            for count in [0, 1, 777] {
                let (input, before) = (elements(count, of, 1), noise(count * of.1, 99));
                let name = format!("{name} of {count} of type {}", of.0);
                let (what, made) = ((name.as_str(), &input[..], &before[..]), done(&gpus));
                compare(&gpus, 0, (comm, host), &queue, what, &|a, b, c, s| call(a, b, count, of.0, c, s));
                since(&gpus, made, 0, u64::from(count > 0));
                // In place there is nothing to do.
                let (at, made) = (gpus.buffer(0, &input), done(&gpus));
                ok(call(at.send(), at.recv(), count, of.0, comm, queue.handle));
                queue.finish();
                assert!(at.bytes() == input, "{name} in place");
                since(&gpus, made, 0, 0);
            }
        }
    }
    for round in 0..2 * TYPES.len() {
        let of = TYPES[round % TYPES.len()];
        for Uneven { name, elements: (sent, received), call } in all(round, (0, 1)) {
            let (input, before) = (elements(sent, of, round), noise(received * of.1, 99));
            let name = format!("{name} of type {} in round {round}", of.0);
            let (what, made) = ((name.as_str(), &input[..], &before[..]), done(&gpus)[0]);
            compare(&gpus, 0, (comm, host), &queue, what, &|a, b, c, s| call(a, b, of.0, c, s));
            assert_eq!(done(&gpus)[0], made, "{name}");
        }
    }
    assert_eq!(async_error(comm), SUCCESS);
    destroy_all(&[comm, host]);
}

#[test]
fn a_sum_that_is_scaled_is_a_kernel() {
    let gpus = gpus(1, "");
    let [comm, host] = pair(&gpus);
    let queue = gpus.queue(0);
    for of in [(FLOAT32, 4, 0xbf), (INT32, 4, 0xff)] {
        let ops = [threefold(comm, of.0), threefold(host, of.0)];
        let op = |of: Comm| ops[usize::from(of == host)];
        for count in [1, 777, 200_003] {
            let (input, before) = (elements(count, of, 5), noise(4 * count, 99));
            let what = ("scaled", &input[..], &before[..]);
            let made = done(&gpus);
            compare(&gpus, 0, (comm, host), &queue, what, &|a, b, c, s| {
                cclAllReduce(a, b, count, of.0, op(c), c, s)
            });
            compare(&gpus, 0, (comm, host), &queue, what, &|a, b, c, s| {
                cclReduceScatter(a, b, count, of.0, op(c), c, s)
            });
            since(&gpus, made, 2, None);
            let at = gpus.buffer(0, &input);
            let mut expected = input.clone();
            let there = expected.as_mut_ptr().cast();
            ok(cclReduce(there, there, count, of.0, ops[1], 0, host, 0));
            ok(cclReduce(at.send(), at.recv(), count, of.0, ops[0], 0, comm, queue.handle));
            queue.finish();
            assert!(at.bytes() == expected, "in place");
        }
        ok(cclRedOpDestroy(ops[0], comm));
        ok(cclRedOpDestroy(ops[1], host));
    }
    assert_eq!(async_error(comm), SUCCESS);
    destroy_all(&[comm, host]);
}

#[test]
fn sends_to_oneself_are_copies_too() {
    let gpus = gpus(1, "delay 2 200");
    let [comm, host] = pair(&gpus);
    let queue = gpus.queue(0);
    let (a, b) = (gpus.buffer(0, &noise(70_000, 1)), gpus.buffer(0, &noise(400, 2)));
    let (x, y) = (gpus.buffer(0, &[0; 70_000]), gpus.buffer(0, &[0; 400]));
    let made = done(&gpus);
    ok(cclGroupStart());
    ok(cclRecv(x.recv(), 70_000, 0, 0, comm, queue.handle));
    ok(cclSend(a.send(), 70_000, 0, 0, comm, queue.handle));
    ok(cclSend(b.send(), 100, FLOAT32, 0, comm, queue.handle));
    ok(cclRecv(y.recv(), 100, FLOAT32, 0, comm, queue.handle));
    // Nothing, and to where it is.
    ok(cclSend(null(), 0, FLOAT32, 0, comm, queue.handle));
    ok(cclRecv(null_mut(), 0, FLOAT32, 0, comm, queue.handle));
    ok(cclSend(b.send(), 100, FLOAT32, 0, comm, queue.handle));
    ok(cclRecv(b.recv(), 100, FLOAT32, 0, comm, queue.handle));
    // Behind them.
    ok(cclAllReduce(x.send(), a.recv(), 100, FLOAT32, SUM, comm, queue.handle));
    ok(cclGroupEnd());
    queue.finish();
    since(&gpus, made, 0, 3);
    assert!(x.bytes() == noise(70_000, 1) && y.bytes() == noise(400, 2) && b.bytes() == noise(400, 2));
    let code = cclSend(a.send(), 4, FLOAT32, 0, comm, queue.handle);
    refused(code, INVALID_ARGUMENT, "sends itself 1 times and receives 0 times");
    let code = cclSend(a.send(), 4, FLOAT32, 1, comm, queue.handle);
    refused(code, INVALID_ARGUMENT, "peer 1 in a communicator of 1");
    assert_eq!(async_error(comm), SUCCESS);
    destroy_all(&[comm, host]);
}

#[test]
fn calls_are_captured_and_replayed() {
    let gpus = gpus(1, "delay 9 200");
    let [comm, host] = pair(&gpus);
    let (queue, op) = (gpus.queue(0), threefold(comm, INT32));
    let [a, b, c, d, e] = [(); 5].map(|()| gpus.buffer(0, &[0; 4000]));
    let made = done(&gpus);
    let graph = queue.capture(|| {
        ok(cclAllReduce(a.send(), a.recv(), 1000, INT32, SUM, comm, queue.handle));
        ok(cclAllGather(a.send(), b.recv(), 1000, INT32, comm, queue.handle));
        ok(cclReduceScatter(b.send(), c.recv(), 1000, INT32, AVG, comm, queue.handle));
        ok(cclAllReduce(c.send(), d.recv(), 1000, INT32, op, comm, queue.handle));
        ok(cclGroupStart());
        ok(cclSend(d.send(), 1000, INT32, 0, comm, queue.handle));
        ok(cclRecv(e.recv(), 1000, INT32, 0, comm, queue.handle));
        ok(cclGroupEnd());
    });
    since(&gpus, made, 1, None);
    for round in 0..10 {
        let own = noise(4000, round);
        gpus.fake.write(a.at, &own);
        graph.replay();
        queue.finish();
        let int = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
        let scaled: Vec<u8> =
            own.chunks_exact(4).flat_map(|one| int(one).wrapping_mul(3).to_le_bytes()).collect();
        assert!([&a, &b, &c].iter().all(|at| at.bytes() == own), "round {round}");
        assert!([&d, &e].iter().all(|at| at.bytes() == scaled), "round {round}");
        if round % 3 == 0 {
            // Between replays come others.
            ok(cclAllReduce(a.send(), b.recv(), 7, INT32, op, comm, queue.handle));
            queue.finish();
        }
    }
    ok(cclRedOpDestroy(op, comm));
    assert_eq!(async_error(comm), SUCCESS);
    destroy_all(&[comm, host]);
}

#[test]
fn calls_return_once_they_are_enqueued_and_keep_their_order() {
    let gpus = gpus(1, "");
    let [comm, host] = pair(&gpus);
    let [one, other] = [gpus.queue(0), gpus.queue(0)];
    let (a, b) = (gpus.buffer(0, &noise(400, 1)), gpus.buffer(0, &[0; 400]));
    let pinned = [(); 2].map(|()| gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, 0, 400));
    let gate = gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, 0, 64);
    gpus.fake.wait_value(0, one.handle, gate, 1);
    let at = |address: usize| std::ptr::with_exposed_provenance_mut(address);
    // To pinned memory, from there to pinned memory, and back; on two streams, in the communicator's order.
    ok(cclAllReduce(a.send(), at(pinned[0]), 100, FLOAT32, SUM, comm, one.handle));
    ok(cclAllReduce(at(pinned[0]), at(pinned[1]), 100, FLOAT32, SUM, comm, other.handle));
    ok(cclAllReduce(at(pinned[1]), b.recv(), 100, FLOAT32, SUM, comm, one.handle));
    // Calls on host memory go beside.
    ok(all_reduce(&mut [1.0], comm, 0));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!one.is_done() && !other.is_done(), "what comes before has not ended");
    gpus.fake.write(gate, &1u32.to_le_bytes());
    one.finish();
    other.finish();
    assert!(b.bytes() == noise(400, 1));
    pinned.into_iter().chain([gate]).for_each(|at| gpus.fake.free(ccl_fake_cuda::Memory::Pinned, at));
    destroy_all(&[comm, host]);
}

#[test]
fn what_is_left_of_a_communicator_is_one_too() {
    let gpus = gpus(2, "");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let device = rank as u32;
        let queue = gpus.queue(device);
        let own = noise(4000, rank);
        let (from, into) = (gpus.buffer(device, &own), gpus.buffer(device, &[0; 4000]));
        let is_captured = |child: Comm| {
            let graph = queue.capture(|| {
                ok(cclAllGather(from.send(), into.recv(), 1000, FLOAT32, child, queue.handle));
            });
            gpus.fake.write(into.at, &[0; 4000]);
            graph.replay();
            queue.finish();
            assert!(into.bytes() == own, "rank {rank}");
            ok(cclCommDestroy(child));
        };
        let mut child = 0;
        ok(cclCommSplit(comm, rank as c_int, 0, &mut child, null()));
        is_captured(child);
        if rank == 1 {
            ok(cclCommAbort(comm));
            return;
        }
        wait_for("the other rank's end", || async_error(comm) != SUCCESS);
        ok(cclCommShrink(comm, null(), 0, &mut child, null(), 0));
        is_captured(child);
        ok(cclCommDestroy(comm));
    });
}

#[test]
fn what_cannot_be_is_refused_and_an_end_is_one() {
    let gpus = gpus(2, "");
    let [comm, host] = pair(&gpus);
    let (queue, there) = (gpus.queue(0), gpus.queue(1));
    let (at, of_other) = (gpus.buffer(0, &noise(400, 1)), gpus.buffer(1, &[0; 64]));
    let code = cclAllReduce(of_other.send(), of_other.recv(), 4, FLOAT32, SUM, comm, there.handle);
    refused(code, INVALID_ARGUMENT, "in a communicator where it is on device 0");
    let code = cclBroadcast(at.send(), at.recv(), 4, FLOAT32, 1, comm, queue.handle);
    refused(code, INVALID_ARGUMENT, "root");
    let code = cclAllReduce(at.send(), at.offset(4), 4, FLOAT32, SUM, comm, queue.handle);
    refused(code, INVALID_ARGUMENT, "overlap");
    let (three, four) = ([3usize], [4usize]);
    let (sent, got) = (three.as_ptr(), four.as_ptr());
    let code =
        cclAlltoAllv(at.send(), sent, null(), at.offset(200), got, null(), FLOAT32, comm, queue.handle);
    assert_ne!(code, SUCCESS, "blocks of two lengths");
    let mut own = 0;
    ok(cclCommRegister(comm, at.recv(), 400, &mut own));
    ok(cclAllReduce(at.send(), at.recv(), 100, FLOAT32, SUM, comm, queue.handle));
    ok(cclCommDeregister(comm, own));
    queue.finish();
    assert!(at.bytes() == noise(400, 1) && async_error(comm) == SUCCESS);
    // An abort does not wait for what is on the stream, which then runs on.
    let gate = gpus.fake.alloc(ccl_fake_cuda::Memory::Pinned, 0, 64);
    gpus.fake.wait_value(0, queue.handle, gate, 1);
    ok(cclAllGather(at.send(), at.offset(200), 50, FLOAT32, comm, queue.handle));
    ok(cclCommAbort(comm));
    assert!(!queue.is_done());
    gpus.fake.write(gate, &1u32.to_le_bytes());
    queue.finish();
    gpus.fake.free(ccl_fake_cuda::Memory::Pinned, gate);
    ok(cclCommDestroy(host));
}

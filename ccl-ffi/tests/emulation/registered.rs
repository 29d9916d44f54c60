//! All-reduces on buffers that the program has registered: made where they lie where all ranks reach all of them, and by slots where not,
//! with the same bits.

use crate::common::*;
use crate::cuda::*;
use crate::failures::{an_abort_ends, ended, within};
use crate::world::*;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Elements from which on ranks ask for registrations, and not a multiple of anything.
pub(crate) const COUNT: usize = (1 << 20) + 13;
const BYTES: usize = 4 * COUNT;
const N: usize = 3;

pub(crate) fn register(comm: Comm, at: *mut c_void, size: usize) -> usize {
    let mut handle = 0;
    ok(cclCommRegister(comm, at, size, &mut handle));
    handle
}

/// How many calls were made on registered buffers: all ranks say the same behind the same call.
pub(crate) fn mapped(comm: Comm) -> u64 {
    dump(comm)["state"]["kernels"]["mapped"].as_u64().unwrap()
}

fn sum(comm: Comm, from: *const c_void, into: *mut c_void, queue: &Queue<'_>) {
    ok(cclAllReduce(from, into, COUNT, FLOAT32, SUM, comm, queue.handle));
    queue.finish();
}

/// Calls again until a call is made on registered buffers: the first one asks for them.
pub(crate) fn until_mapped(comm: Comm, call: impl Fn()) {
    let (before, begin) = (mapped(comm), Instant::now());
    call();
    while mapped(comm) == before {
        assert!(begin.elapsed() < PATIENCE, "no call was made on registered buffers");
        std::thread::sleep(Duration::from_millis(5));
        call();
    }
}

/// What all ranks get.
fn right() -> Vec<u8> {
    let inputs: Vec<_> = (0..N).map(|rank| floats(COUNT, rank)).collect();
    let sum = |i: usize| inputs[1..].iter().fold(float(&inputs[0], i), |sum, other| sum + float(other, i));
    (0..COUNT).flat_map(|i| sum(i).to_le_bytes()).collect()
}

#[test]
fn registered_buffers_are_used_where_they_lie_and_as_long_as_all_are() {
    let gpus = gpus(1, "delay 3 200");
    let (comms, right) = (on_devices::<N>(&gpus), right());
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &floats(COUNT, rank)), gpus.buffer(0, &vec![0xc5; BYTES + 64]));
        let check = |what: &str| {
            assert!(into.bytes()[32..32 + BYTES] == right, "{what} on rank {rank}");
            assert!(into.bytes()[..32] == [0xc5; 32] && into.bytes()[32 + BYTES..] == [0xc5; 32], "{what}");
            gpus.fake.write(into.at, &vec![0xc5; BYTES + 64]);
        };
        let call = || sum(comm, from.send(), into.offset(32), &queue);
        call();
        check("nothing registered");
        let own = [register(comm, from.recv(), BYTES), register(comm, into.recv(), BYTES + 64)];
        until_mapped(comm, || {
            call();
            check("registered");
        });
        let made = mapped(comm);
        call();
        check("mapped");
        assert_eq!(mapped(comm), made + 1, "every call, from then on");
        // On one rank it is none any more; and again, at the same place.
        if rank == 1 {
            ok(cclCommDeregister(comm, own[1]));
        }
        ok(cclBarrier(comm, queue.handle));
        queue.finish();
        call();
        check("not on all ranks");
        assert_eq!(mapped(comm), made + 1);
        let again = if rank == 1 { register(comm, into.recv(), BYTES + 64) } else { own[1] };
        until_mapped(comm, || {
            call();
            check("registered again");
        });
        // In place.
        gpus.fake.write(into.at, &floats(COUNT, rank));
        let made = mapped(comm);
        sum(comm, into.send(), into.recv(), &queue);
        assert!(into.bytes()[..BYTES] == right && mapped(comm) == made + 1, "in place");
        // One that is not inside.
        let made = mapped(comm);
        let outside = gpus.buffer(0, &vec![0; BYTES]);
        sum(comm, from.send(), outside.recv(), &queue);
        assert!(outside.bytes() == right && mapped(comm) == made, "another buffer");
        assert_eq!(async_error(comm), SUCCESS);
        ok(cclCommDeregister(comm, again));
        assert_ne!(cclCommDeregister(comm, again), SUCCESS, "twice");
        // The other one is left to the communicator's end.
        ok(cclCommDestroy(comm));
    });
}

#[test]
fn graphs_find_what_is_registered_when_they_are_replayed() {
    let gpus = gpus(2, "delay 4 100");
    let comms = on_devices::<2>(&gpus);
    on_threads(&comms, |rank, comm| {
        let device = rank as u32;
        let queue = gpus.queue(device);
        let (from, into) = (gpus.buffer(device, &floats(COUNT, rank)), gpus.buffer(device, &vec![0; BYTES]));
        let graph = queue.capture(|| {
            ok(cclAllReduce(from.send(), into.recv(), COUNT, FLOAT32, SUM, comm, queue.handle));
        });
        let round = std::cell::Cell::new(0);
        let replay = || {
            round.set(round.get() + 1);
            gpus.fake.write(from.at, &floats(COUNT, rank + round.get()));
            graph.replay();
            queue.finish();
            let (x, y, got) = (floats(COUNT, round.get()), floats(COUNT, 1 + round.get()), into.bytes());
            assert!((0..COUNT).all(|i| float(&got, i).to_bits() == (float(&x, i) + float(&y, i)).to_bits()));
        };
        replay();
        assert_eq!(mapped(comm), 0);
        let own = [register(comm, from.recv(), BYTES), register(comm, into.recv(), BYTES)];
        until_mapped(comm, replay);
        let made = mapped(comm);
        own.into_iter().for_each(|handle| ok(cclCommDeregister(comm, handle)));
        replay();
        assert_eq!((mapped(comm), async_error(comm)), (made, SUCCESS));
    });
    destroy_all(&comms);
}

#[test]
fn buffers_that_some_ranks_have_registered_change_nothing() {
    let gpus = gpus(1, "");
    let (comms, right) = (on_devices::<N>(&gpus), right());
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &floats(COUNT, rank)), gpus.buffer(0, &vec![0; BYTES]));
        // Rank 0 both, rank 1 one, rank 2 none.
        let buffers = [&from, &into];
        let own: Vec<_> = buffers[rank.min(2)..].iter().map(|of| register(comm, of.recv(), BYTES)).collect();
        for _ in 0..3 {
            sum(comm, from.send(), into.recv(), &queue);
            assert!(into.bytes() == right, "rank {rank}");
        }
        assert_eq!((mapped(comm), async_error(comm)), (0, SUCCESS));
        own.into_iter().for_each(|handle| ok(cclCommDeregister(comm, handle)));
        // More of them than kernels know, one over the other, change nothing either.
        let many: Vec<_> = (0..70).map(|at| register(comm, from.offset(at), BYTES - at)).collect();
        sum(comm, from.send(), into.recv(), &queue);
        assert!(into.bytes() == right);
        many.into_iter().for_each(|handle| ok(cclCommDeregister(comm, handle)));
    });
    destroy_all(&comms);
}

#[test]
fn registered_calls_that_go_wrong_end_as_others_do() {
    an_abort_ends(BYTES, |_, comm, at, queue| {
        register(comm, at.recv(), BYTES);
        (0..3).for_each(|_| ok(cclAllReduce(at.send(), at.recv(), COUNT, FLOAT32, SUM, comm, queue)));
    });
    let gpus = gpus(1, "");
    let comms = within::<2>(&gpus, 60_000);
    on_threads(&comms, |rank, comm| {
        let (queue, at) = (gpus.queue(0), gpus.buffer(0, &vec![0; BYTES]));
        let own = register(comm, at.recv(), BYTES);
        until_mapped(comm, || sum(comm, at.send(), at.recv(), &queue));
        ok(cclAllReduce(at.send(), at.recv(), COUNT - rank, FLOAT32, SUM, comm, queue.handle));
        let text = ended(comm);
        queue.finish();
        assert!(text.contains("all_reduce #") && text.contains("the count"), "{text}");
        ok(cclCommDeregister(comm, own));
    });
    destroy_all(&comms);
}

//! Joining in the background, aborts, splits.

mod common;
use common::*;
use std::ptr::null;
use std::time::{Duration, Instant};

/// Begins to join in the background.
fn begin(id: Id, size: i32, rank: i32, timeout_ms: i32) -> Comm {
    let config = Config { blocking: 0, init_timeout_ms: timeout_ms, ..CONFIG };
    let mut comm = 0;
    assert_eq!(cclCommInitRankConfig(&mut comm, size, id, rank, &config), IN_PROGRESS, "{}", last_error(0));
    comm
}

/// What joining comes to.
fn joined(comm: Comm) -> i32 {
    let begin = Instant::now();
    loop {
        match async_error(comm) {
            IN_PROGRESS if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            code => return code,
        }
    }
}

#[test]
fn one_thread_joins_for_all_ranks_in_the_background() {
    let id = id();
    let comms: Vec<_> = (0..3).map(|rank| begin(id, 3, rank, 20_000)).collect();
    comms.iter().for_each(|comm| assert_eq!(joined(*comm), SUCCESS));
    on_threads(&comms, |_, comm| {
        let mut buffer = [1f32; 10];
        ok(all_reduce(&mut buffer, comm, 0));
        assert_eq!(buffer, [3.0; 10]);
    });
    destroy_all(&comms);
}

#[test]
fn while_it_joins_nothing_else_can_be_done() {
    let id = id();
    let first = begin(id, 2, 0, 20_000);
    let (mut number, mut buffer, stream) = (0, [1f32], stream());
    for code in [
        all_reduce(&mut buffer, first, 0),
        all_reduce(&mut buffer, first, stream),
        cclBarrier(first, 0),
        cclCommCount(first, &mut number),
        cclCommSplit(first, 0, 0, &mut 0, null()),
        cclCommFinalize(first),
        cclCommDestroy(first),
    ] {
        refused(code, INVALID_USAGE, "joining");
    }
    assert_eq!(async_error(first), IN_PROGRESS);
    let second = begin(id, 2, 1, 20_000);
    assert_eq!((joined(first), joined(second)), (SUCCESS, SUCCESS));
    ok(cclHostStreamDestroy(stream));
    destroy_all(&[first, second]);
}

#[test]
fn who_does_not_come_is_named() {
    let comm = begin(id(), 3, 1, 300);
    assert_eq!(joined(comm), REMOTE_ERROR);
    assert!(last_error(comm).contains("absent ranks"), "{}", last_error(comm));
    refused(cclBarrier(comm, 0), INVALID_USAGE, "could not be made");
    ok(cclCommDestroy(comm));
}

#[test]
fn an_abort_ends_joining_at_once() {
    let comm = begin(id(), 2, 0, 60_000);
    let begin = Instant::now();
    ok(cclCommAbort(comm));
    ok(cclCommAbort(comm));
    assert!(begin.elapsed() < Duration::from_secs(30), "it did not wait for the peer");
    refused(cclBarrier(comm, 0), INVALID_ARGUMENT, "no communicator");
}

/// From another thread, in the middle of a call whose peer never comes; the peer's own call ends with an error too.
#[test]
fn an_abort_ends_a_call_and_the_peers_calls() {
    let (id, mut comms) = (id(), [0; 3]);
    let config = Config { timeout_ms: 50_000, ..CONFIG };
    ok(cclGroupStart());
    for (rank, comm) in comms.iter_mut().enumerate() {
        ok(cclCommInitRankConfig(comm, 3, id, rank as i32, &config));
    }
    ok(cclGroupEnd());
    let [aborted, peer, idle] = comms;
    let stream = stream();
    let mut queued = [1f32; 10];
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for comm in [aborted, peer] {
            scope.spawn(move || {
                let mut buffer = [1f32; 10];
                assert_ne!(all_reduce(&mut buffer, comm, 0), SUCCESS);
            });
        }
        // Until both are in their calls, or nearly: either way they must end.
        std::thread::sleep(Duration::from_millis(20));
        ok(all_reduce(&mut queued, aborted, stream));
        scope.spawn(move || ok(cclCommAbort(aborted)));
        ok(cclCommAbort(aborted));
    });
    assert_ne!(cclHostStreamSynchronize(stream), SUCCESS);
    assert!(begin.elapsed() < Duration::from_secs(40), "nobody waited for the time limit");
    assert_eq!(queued, [1.0; 10]);
    ok(cclHostStreamDestroy(stream));
    ok(cclCommAbort(peer));
    ok(cclCommAbort(idle));
}

/// The calls wait on a stream that is held up by another communicator; an abort does not wait for that.
#[test]
fn an_abort_does_not_wait_for_streams() {
    let (held, aborted) = (init_all::<2>(), init_all::<2>());
    let stream = stream();
    let (mut a, mut b) = ([1f32], [1f32]);
    ok(all_reduce(&mut a, held[0], stream));
    ok(all_reduce(&mut b, aborted[0], stream));
    ok(cclCommAbort(aborted[0]));
    ok(cclCommAbort(aborted[1]));
    assert_eq!(cclHostStreamQuery(stream), IN_PROGRESS);
    ok(all_reduce(&mut [2f32], held[1], 0));
    refused(cclHostStreamSynchronize(stream), INVALID_USAGE, "abort");
    assert_eq!((a, b), ([3.0], [1.0]));
    ok(cclHostStreamDestroy(stream));
    destroy_all(&held);
}

#[test]
fn a_split_numbers_by_key_then_by_rank() {
    let comms = init_all::<5>();
    on_threads(&comms, |rank, comm| {
        // Ranks 0, 2 and 4 by falling rank, 1 and 3 by rank.
        let (color, key) = (rank as i32 % 2, if rank % 2 == 0 { -(rank as i32) } else { 7 });
        let mut child = 0;
        let config =
            Config { name: c"half".as_ptr(), algorithm: c"ring".as_ptr(), timeout_ms: 9000, ..CONFIG };
        ok(cclCommSplit(comm, color, key, &mut child, &config));
        let (mut size, mut number) = (0, 0);
        ok(cclCommCount(child, &mut size));
        ok(cclCommUserRank(child, &mut number));
        assert_eq!((number, size), ([2, 0, 1, 1, 0][rank], [3, 2][rank % 2]));
        let mut buffer = [rank as f32];
        ok(all_reduce(&mut buffer, child, 0));
        assert_eq!(buffer[0], [6.0, 4.0][rank % 2]);
        ok(all_reduce(&mut buffer, comm, 0));
        assert_eq!(buffer[0], 26.0);
        ok(cclCommDestroy(child));
        refused(cclCommSplit(comm, -2, 0, &mut child, null()), INVALID_ARGUMENT, "colour -2");
    });
    destroy_all(&comms);
}

#[test]
fn init_all_takes_devices_as_numbers() {
    let mut comms = [0; 2];
    ok(cclCommInitAll(comms.as_mut_ptr(), 2, [0, 1].as_ptr()));
    destroy_all(&comms);
    refused(cclCommInitAll(comms.as_mut_ptr(), 2, [0, 3].as_ptr()), INVALID_ARGUMENT, "devlist[1] = 3");
    refused(cclCommInitAll(comms.as_mut_ptr(), 0, null()), INVALID_ARGUMENT, "ndev = 0");
    refused(cclCommInitAll(std::ptr::null_mut(), 1, null()), INVALID_ARGUMENT, "NULL");
}

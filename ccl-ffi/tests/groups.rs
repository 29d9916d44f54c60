//! Groups: patterns that would wait for ever one by one, several communicators, and one thread that drives all ranks.

mod common;
use common::*;

/// More than the links of a pair hold, so that a send alone cannot return.
const MANY: usize = 3 << 20;

fn grouped(calls: impl FnOnce()) {
    ok(cclGroupStart());
    calls();
    ok(cclGroupEnd());
}

#[test]
fn everybody_sends_before_anybody_receives() {
    let comms = init_all::<3>();
    on_threads(&comms, |rank, comm| {
        let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
        let send = vec![rank as f32; MANY];
        let mut recv = vec![-1f32; MANY];
        grouped(|| {
            ok(cclSend(send.as_ptr().cast(), MANY, FLOAT32, next as i32, comm, 0));
            ok(cclRecv(recv.as_mut_ptr().cast(), MANY, FLOAT32, previous as i32, comm, 0));
        });
        assert!(recv.iter().all(|value| *value == previous as f32));
    });
    destroy_all(&comms);
}

/// What is longer than a link holds lets the next on it wait; the others go their way. The same groups again and again are made in a
/// shorter way than the first.
#[test]
fn the_same_exchange_again_and_again() {
    let comms = init_all::<3>();
    on_threads(&comms, |rank, comm| {
        let neighbours = [(rank + 1) % 3, (rank + 2) % 3];
        for round in 0..12 {
            let lengths = [5, if round % 4 == 3 { MANY } else { 3000 }, 70];
            let sent = |from: usize, to: usize, at: usize| (100 * round + 30 * from + 10 * to + at) as f32;
            let pieces = || neighbours.iter().flat_map(|peer| (0..3).map(move |at| (*peer, at)));
            let send: Vec<Vec<f32>> =
                pieces().map(|(peer, at)| vec![sent(rank, peer, at); lengths[at]]).collect();
            let mut recv: Vec<Vec<f32>> = pieces().map(|(_, at)| vec![-1f32; lengths[at]]).collect();
            grouped(|| {
                for (((peer, _), from), into) in pieces().zip(&send).zip(&mut recv) {
                    ok(cclRecv(into.as_mut_ptr().cast(), into.len(), FLOAT32, peer as i32, comm, 0));
                    ok(cclSend(from.as_ptr().cast(), from.len(), FLOAT32, peer as i32, comm, 0));
                }
            });
            for ((peer, at), into) in pieces().zip(&recv) {
                assert!(into.iter().all(|value| *value == sent(peer, rank, at)), "{round} {peer} {at}");
            }
        }
    });
    destroy_all(&comms);
}

/// A communicator that takes no calls says so when they are issued; one that ends before its group does, when they are made.
#[test]
fn what_ends_before_or_in_a_group_is_found() {
    let comms = init_all::<1>();
    let mut a = [1f32; 4];
    ok(cclGroupStart());
    ok(all_reduce(&mut a, comms[0], 0));
    ok(cclCommFinalize(comms[0]));
    refused(all_reduce(&mut a, comms[0], 0), INVALID_USAGE, "finalized");
    refused(cclGroupEnd(), INVALID_USAGE, "finalized");
    ok(cclGroupStart());
    refused(cclSend(a.as_ptr().cast(), 4, FLOAT32, 0, comms[0], 0), INVALID_USAGE, "finalized");
    refused(cclGroupEnd(), INVALID_USAGE, "finalized");
    destroy_all(&comms);
    for finalized in [true, false] {
        let comms = init_all::<1>();
        ok(cclGroupStart());
        ok(all_reduce(&mut a, comms[0], 0));
        if finalized {
            ok(cclCommFinalize(comms[0]));
            refused(cclGroupEnd(), INVALID_USAGE, "finalized");
            destroy_all(&comms);
        } else {
            destroy_all(&comms);
            refused(cclGroupEnd(), INVALID_ARGUMENT, "no communicator");
        }
        ok(cclGroupStart());
        refused(cclBarrier(comms[0], 0), INVALID_ARGUMENT, "no communicator");
        refused(cclGroupEnd(), INVALID_ARGUMENT, "no communicator");
        // The slot's next communicator is another one.
        let comms = init_all::<1>();
        grouped(|| ok(all_reduce(&mut a, comms[0], 0)));
        destroy_all(&comms);
    }
}

#[test]
fn one_thread_drives_all_ranks() {
    let comms = init_all::<4>();
    let mut sums = [[0f32; 1000]; 4];
    let sent = [1f32, 2.0, 3.0, 4.0];
    let mut received = [0f32; 4];
    for round in 1..=3 {
        sums.iter_mut().for_each(|sum| sum.fill(round as f32));
        grouped(|| {
            for (rank, comm) in comms.iter().copied().enumerate() {
                ok(all_reduce(&mut sums[rank], comm, 0));
                ok(cclSend(&raw const sent[rank] as _, 1, FLOAT32, (rank as i32 + 1) % 4, comm, 0));
                ok(cclRecv(&raw mut received[rank] as _, 1, FLOAT32, (rank as i32 + 3) % 4, comm, 0));
                ok(cclBarrier(comm, 0));
            }
        });
        assert!(sums.iter().flatten().all(|value| *value == 4.0 * round as f32));
        assert_eq!(received, [4.0, 1.0, 2.0, 3.0]);
    }
    destroy_all(&comms);
}

/// Each rank names the two communicators in another order.
#[test]
fn the_order_of_communicators_does_not_matter() {
    let (one, two) = (init_all::<2>(), init_all::<2>());
    on_threads(&[0, 0], |rank, _| {
        for round in 0..50 {
            let (mut a, mut b) = ([round as f32; 64], [1f32; 64]);
            let mut calls = [(&mut a, one[rank]), (&mut b, two[rank])];
            if rank == 1 {
                calls.reverse();
            }
            grouped(|| calls.into_iter().for_each(|(buffer, comm)| ok(all_reduce(buffer, comm, 0))));
            assert_eq!((a[63], b[63]), (2.0 * round as f32, 2.0));
        }
    });
    destroy_all(&one);
    destroy_all(&two);
}

#[test]
fn nested_groups_are_one() {
    let comms = init_all::<2>();
    let (mut a, mut b) = ([1f32; 4], [2f32; 4]);
    grouped(|| {
        grouped(|| ok(all_reduce(&mut a, comms[0], 0)));
        assert_eq!(a, [1.0; 4], "nothing is made before the outermost end");
        grouped(|| ok(all_reduce(&mut b, comms[1], 0)));
    });
    assert_eq!((a, b), ([3.0; 4], [3.0; 4]));
    refused(cclGroupEnd(), INVALID_USAGE, "without its cclGroupStart");
    destroy_all(&comms);
}

#[test]
fn a_refused_call_takes_its_group_with_it() {
    let comms = init_all::<2>();
    let (mut a, mut b) = ([1f32; 4], [2f32; 4]);
    ok(cclGroupStart());
    ok(all_reduce(&mut a, comms[0], 0));
    refused(cclSend(std::ptr::null(), 1, FLOAT32, 0, comms[1], 0), INVALID_ARGUMENT, "NULL");
    refused(cclRecv(b.as_mut_ptr().cast(), 1, FLOAT32, 7, comms[1], 0), INVALID_ARGUMENT, "peer 7");
    ok(all_reduce(&mut b, comms[1], 0));
    refused(cclGroupEnd(), INVALID_ARGUMENT, "NULL");
    assert_eq!((a, b), ([1.0; 4], [2.0; 4]));
    grouped(|| {
        ok(all_reduce(&mut a, comms[0], 0));
        ok(all_reduce(&mut b, comms[1], 0));
    });
    assert_eq!((a, b), ([3.0; 4], [3.0; 4]));
    let (mut never, id) = (1, id());
    ok(cclGroupStart());
    ok(all_reduce(&mut a, comms[0], 0));
    refused(cclCommInitRank(&mut never, 2, id, 2), INVALID_ARGUMENT, "rank 2 of 2");
    refused(cclGroupEnd(), INVALID_ARGUMENT, "rank 2 of 2");
    assert_eq!((a, never), ([3.0; 4], 0));
    ok(cclGroupStart());
    ok(cclGroupEnd());
    destroy_all(&comms);
}

#[test]
fn of_a_failed_group_each_communicator_has_its_own_cause() {
    let (one, two) = (init_all::<2>(), init_all::<2>());
    let (mut a, mut b) = ([1f32; 4], [2f32; 4]);
    let both = |comms: [Comm; 2], a: &mut [f32; 4], b: &mut [f32; 4]| {
        ok(cclGroupStart());
        ok(all_reduce(a, comms[0], 0));
        ok(all_reduce(b, comms[1], 0));
        cclGroupEnd()
    };
    // Once with all there, so that the second group is not refused while it is prepared.
    on_threads(&[0, 1], |rank, _| {
        let (mut a, mut b) = ([1f32; 4], [2f32; 4]);
        ok(both([one[rank], two[rank]], &mut a, &mut b));
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| both([one[0], two[0]], &mut a, &mut b));
        wait_for("the group", || running(two[0]).is_some());
        ok(cclCommRevoke(two[1], 0));
        assert_eq!(waits.join().expect("no panic"), REMOTE_ERROR);
    });
    let cause = "rank 1 has revoked the communicator";
    assert_eq!(async_error(two[0]), REMOTE_ERROR);
    assert!(last_error(two[0]).starts_with(cause), "{}", last_error(two[0]));
    assert_eq!(async_error(one[0]), INVALID_USAGE);
    let beside = format!("the communicator is unusable since: a call of the same group failed: {cause}");
    assert!(last_error(one[0]).starts_with(&beside), "{}", last_error(one[0]));
    refused(all_reduce(&mut [0f32; 4], one[0], 0), INVALID_USAGE, &beside);
    destroy_all(&one);
    destroy_all(&two);
}

#[test]
fn one_thread_joins_and_splits_for_all_ranks() {
    let (mut comms, mut children, mut twice) = ([0; 4], [1; 4], [1; 4]);
    let id = id();
    grouped(|| {
        for (rank, comm) in comms.iter_mut().enumerate() {
            ok(cclCommInitRank(comm, 4, id, rank as i32));
            assert_eq!(*comm, 0, "not made before the end");
        }
    });
    grouped(|| {
        for (rank, comm) in comms.iter().copied().enumerate() {
            let color = if rank == 3 { -1 } else { 0 };
            ok(cclCommSplit(comm, color, -(rank as i32), &mut children[rank], std::ptr::null()));
            ok(cclCommSplit(comm, rank as i32 % 2, 0, &mut twice[rank], std::ptr::null()));
        }
    });
    assert_eq!(children[3], 0);
    let mut ranks = [-1; 3];
    for (rank, child) in ranks.iter_mut().zip(children) {
        ok(cclCommUserRank(child, rank));
    }
    assert_eq!(ranks, [2, 1, 0]);
    let mut buffers = [[1f32; 10]; 7];
    let all = children[..3].iter().chain(&twice).copied();
    grouped(|| all.zip(&mut buffers).for_each(|(comm, buffer)| ok(all_reduce(buffer, comm, 0))));
    assert_eq!(buffers.map(|buffer| buffer[9]), [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0]);
    destroy_all(&children[..3]);
    destroy_all(&twice);
    destroy_all(&comms);
}

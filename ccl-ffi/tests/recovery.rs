//! Time limits, ends that peers are told of, and going on with those who are left.

mod common;
use common::*;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

const INTO_ABORT: i32 = 1;

fn shrunk(comm: Comm, flags: i32) -> Comm {
    let mut child = 0;
    ok(cclCommShrink(comm, null(), 0, &mut child, null(), flags));
    child
}

/// Each rank gives its number plus one; the sum of all.
#[track_caller]
fn sums(comm: Comm, expected: f32) {
    let mut rank = -1;
    ok(cclCommUserRank(comm, &mut rank));
    let mut buffer = [rank as f32 + 1.0; 1000];
    ok(all_reduce(&mut buffer, comm, 0));
    assert_eq!(buffer, [expected; 1000]);
}

/// Alone, on a stream and in a group, a call gives up when the limit that was set before it has passed.
#[test]
fn a_limit_is_that_of_the_calls_after_it() {
    for way in 0..3 {
        let comms = init_all::<2>();
        on_threads(&comms, |_, comm| sums(comm, 3.0));
        let stream = stream();
        let mut buffer = [1f32];
        ok(cclCommSetTimeout(comms[0], 40));
        let begin = Instant::now();
        let code = match way {
            0 => all_reduce(&mut buffer, comms[0], 0),
            1 => {
                ok(all_reduce(&mut buffer, comms[0], stream));
                // Not the limit of what was issued already.
                ok(cclCommSetTimeout(comms[0], 600_000));
                cclHostStreamSynchronize(stream)
            }
            _ => {
                ok(cclGroupStart());
                ok(all_reduce(&mut buffer, comms[0], 0));
                ok(cclCommSetTimeout(comms[0], 600_000));
                cclGroupEnd()
            }
        };
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert_eq!(code, REMOTE_ERROR, "{}", last_error(0));
        assert!(last_error(0).contains("rank 1"), "{}", last_error(0));
        // The peer, which never came, is told between its calls.
        wait_for("the verdict", || async_error(comms[1]) == REMOTE_ERROR);
        ok(cclHostStreamDestroy(stream));
        destroy_all(&comms);
    }
}

#[test]
fn a_limit_can_be_longer_than_the_communicators() {
    let comms = impatient();
    comms.iter().for_each(|comm| ok(cclCommSetTimeout(*comm, 1)));
    comms.iter().for_each(|comm| ok(cclCommSetTimeout(*comm, i32::MAX)));
    on_threads(&comms, |rank, comm| {
        std::thread::sleep(Duration::from_millis(100 * rank as u64)); // a slow rank
        sums(comm, 3.0);
    });
    destroy_all(&comms);
}

#[test]
fn a_revoke_ends_the_calls_of_all() {
    let comms = init_all::<3>();
    on_threads(&comms, |_, comm| sums(comm, 6.0));
    on_threads(&comms, |rank, comm| {
        if rank == 2 {
            wait_for("the others' call", || running(comms[0]).is_some());
            ok(cclCommRevoke(comm, 0));
            ok(cclCommRevoke(comm, 0));
        }
        let code = all_reduce(&mut [1f32], comm, 0);
        assert_eq!(code, REMOTE_ERROR, "{}", last_error(0));
        assert!(last_error(0).contains("rank 2 has revoked"), "{}", last_error(0));
        assert_eq!(async_error(comm), REMOTE_ERROR);
        assert_ne!(all_reduce(&mut [1f32], comm, 0), SUCCESS);
        // What is left is to agree, and to go on.
        let mut flags = !(1 << rank);
        ok(cclCommAgree(comm, &mut flags));
        assert_eq!(flags, !0b111);
        let child = shrunk(comm, 0);
        ok(cclCommDestroy(comm));
        sums(child, 6.0);
        ok(cclCommDestroy(child));
    });
}

#[test]
fn those_who_are_left_go_on_without_the_others() {
    let comms = init_all::<4>();
    on_threads(&comms, |_, comm| sums(comm, 10.0));
    on_threads(&comms, |rank, comm| {
        if rank == 1 {
            return ok(cclCommAbort(comm));
        }
        // Nobody looks for it by a call.
        wait_for("the news", || async_error(comm) != SUCCESS);
        assert!(last_error(comm).contains("rank 1 has aborted"), "{}", last_error(comm));
        let child = shrunk(comm, 0);
        ok(cclCommDestroy(comm));
        let (mut count, mut number) = (0, 0);
        ok(cclCommCount(child, &mut count));
        ok(cclCommUserRank(child, &mut number));
        assert_eq!((count, number), (3, [0, -1, 1, 2][rank]));
        sums(child, 6.0);
        // Then all but one, and that one alone.
        if number > 0 {
            return ok(cclCommAbort(child));
        }
        wait_for("the news", || async_error(child) != SUCCESS);
        let last = shrunk(child, INTO_ABORT);
        ok(cclCommDestroy(child));
        sums(last, 1.0);
        ok(cclCommDestroy(last));
    });
}

/// Ranks that are excluded do not call it; the others need not come out of their calls by themselves.
#[test]
fn a_shrink_ends_calls_and_leaves_ranks_behind() {
    let comms = init_all::<4>();
    on_threads(&comms, |_, comm| sums(comm, 10.0));
    std::thread::scope(|scope| {
        // Rank 3 is stuck, and so is rank 0 in another thread.
        let stuck = [0, 3].map(|rank| scope.spawn(move || all_reduce(&mut [1f32], comms[rank], 0)));
        for comm in [comms[0], comms[3]] {
            wait_for("the call", || running(comm).is_some());
        }
        for comm in &comms[..3] {
            scope.spawn(move || {
                let (mut child, behind) = (0, [3]);
                ok(cclCommShrink(*comm, behind.as_ptr(), 1, &mut child, null(), INTO_ABORT));
                sums(child, 6.0);
                ok(cclCommDestroy(child));
            });
        }
        stuck.into_iter().for_each(|call| assert_eq!(call.join().expect("no panic"), REMOTE_ERROR));
    });
    wait_for("the news", || async_error(comms[3]) == REMOTE_ERROR);
    destroy_all(&comms);
}

#[test]
fn one_thread_shrinks_for_all_ranks_and_what_is_well_goes_on() {
    let comms = init_all::<3>();
    let mut children = [0; 3];
    let config = Config { name: c"smaller".as_ptr(), timeout_ms: 9000, ..CONFIG };
    ok(cclGroupStart());
    for (comm, child) in comms.iter().zip(&mut children) {
        ok(cclCommShrink(*comm, null(), 0, child, &config, 0));
    }
    ok(cclGroupEnd());
    // SAFETY: a text, or NULL, which would fail here.
    let text = unsafe { std::ffi::CStr::from_ptr(cclCommDescribe(children[0])) };
    assert!(text.to_string_lossy().contains(r#""name":"smaller""#));
    on_threads(&comms, |_, comm| sums(comm, 6.0));
    on_threads(&children, |_, comm| sums(comm, 6.0));
    destroy_all(&children);
    destroy_all(&comms);
}

/// While a call is stuck, from another thread.
#[test]
fn a_dump_says_what_a_rank_waits_for() {
    let comms = init_all::<2>();
    on_threads(&comms, |_, comm| sums(comm, 3.0));
    std::thread::scope(|scope| {
        scope.spawn(|| ok(all_reduce(&mut [1f32; 7], comms[0], 0)));
        wait_for("the wait", || dump(comms[0])["state"]["waits"][0]["peers"][0] == 1);
        let stuck = dump(comms[0]);
        assert_eq!((&stuck["state"]["rank"], &stuck["state"]["ranks"]), (&0.into(), &2.into()));
        let call = &stuck["state"]["running"][0];
        assert_eq!((&call["name"], &call["count"]), (&"all_reduce".into(), &7.into()));
        assert_eq!((&stuck["cause"], &stuck["calls"][0]["count"]), (&serde_json::Value::Null, &1000.into()));
        assert_eq!(running(comms[1]), None);
        ok(all_reduce(&mut [1f32; 7], comms[1], 0));
    });
    let mut size = 0;
    ok(cclCommDump(comms[0], null_mut(), &mut size));
    let mut room = vec![7 as std::ffi::c_char; size + 500];
    let exactly = {
        let mut length = room.len();
        ok(cclCommDump(comms[0], room.as_mut_ptr(), &mut length));
        length
    };
    assert_eq!((room[exactly - 1], room[exactly]), (0, 7), "it writes no more than it says");
    destroy_all(&comms);
}

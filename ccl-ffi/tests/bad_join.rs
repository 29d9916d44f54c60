//! Ids that are none, or of another job, and ranks that do not fit together: who is wrong is told, and so are those who wait
//! for it.

mod common;
use common::*;
use std::ffi::c_int;

/// Joins with a limit in milliseconds, in a thread of its own; the code, and the words of the error.
fn join(id: Id, ranks: c_int, rank: c_int, limit: c_int) -> std::thread::JoinHandle<(c_int, String)> {
    std::thread::spawn(move || {
        let (config, mut comm) = (Config { init_timeout_ms: limit, ..CONFIG }, 1);
        let code = cclCommInitRankConfig(&mut comm, ranks, id, rank, &config);
        let words = last_error(0);
        if code == SUCCESS {
            ok(all_reduce(&mut [1f32], comm, 0));
            ok(cclCommDestroy(comm));
        } else {
            assert_eq!(comm, 0, "no handle of what was not made");
        }
        (code, words)
    })
}

#[track_caller]
fn fails(joining: std::thread::JoinHandle<(c_int, String)>, code: c_int, words: &[&str]) {
    let (came, text) = joining.join().expect("no panic");
    assert_eq!(came, code, "{text}");
    for words in words {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
}

#[track_caller]
fn joins(joining: impl IntoIterator<Item = std::thread::JoinHandle<(c_int, String)>>) {
    let all: Vec<_> = joining.into_iter().map(|rank| rank.join().expect("no panic")).collect();
    assert!(all.iter().all(|(code, _)| *code == SUCCESS), "{all:?}");
}

#[test]
fn bytes_that_are_no_id() {
    let good = id();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.bytes;
        bytes[at] = to;
        Id { bytes }
    };
    let (zeros, garbage) = (Id { bytes: [0; 128] }, Id { bytes: [0xa5; 128] });
    for ranks in [1, 2] {
        fails(join(zeros, ranks, 0, 5000), INVALID_ARGUMENT, &["all zeros", "send the bytes to all ranks"]);
        fails(join(garbage, ranks, 0, 5000), INVALID_ARGUMENT, &["not a unique id"]);
        fails(join(changed(4, 77), ranks, 0, 5000), INVALID_ARGUMENT, &["version 77", "this library makes"]);
        let bit = changed(60, good.bytes[60] ^ 1);
        fails(join(bit, ranks, 0, 5000), INVALID_ARGUMENT, &["checksum", "changed on its way"]);
    }
    joins([join(good, 2, 0, 60_000), join(good, 2, 1, 60_000)]);
}

/// Nobody waits there any more: the root ends when all have come.
#[test]
fn an_id_is_used_once() {
    let id = id();
    joins([join(id, 2, 0, 60_000), join(id, 2, 1, 60_000)]);
    fails(join(id, 2, 1, 300), REMOTE_ERROR, &["rank 1 of 2", "rank 0's root service was not reached"]);
}

#[test]
fn a_rank_that_comes_twice() {
    let id = id();
    let first = join(id, 3, 0, 60_000);
    let (one, two) = (join(id, 3, 1, 60_000), join(id, 3, 1, 60_000));
    // Whichever of the two came second is refused, with the other named; then the job can still begin.
    let third = loop {
        let (done, other) = if one.is_finished() {
            (one, two)
        } else if two.is_finished() {
            (two, one)
        } else {
            std::thread::yield_now();
            continue;
        };
        fails(done, SYSTEM_ERROR, &["rank 1", "is there already", "its own rank"]);
        break [other, join(id, 3, 2, 60_000)];
    };
    joins(third.into_iter().chain([first]));
}

#[test]
fn ranks_that_count_differently() {
    let id = id();
    let all = [join(id, 3, 0, 60_000), join(id, 3, 1, 60_000), join(id, 4, 2, 60_000)];
    for joining in all {
        fails(joining, SYSTEM_ERROR, &["as one of 3", "as one of 4", "the same size"]);
    }
}

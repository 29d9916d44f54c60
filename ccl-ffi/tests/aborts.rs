//! Aborts: from another thread, in everything that waits, more than once. Whoever waits comes back soon, and the peers are
//! told.

mod common;
use common::*;
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Far more than an abort takes, and far less than any time limit here.
const SOON: Duration = Duration::from_secs(10);

#[track_caller]
fn soon<T>(what: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = what();
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    done
}

/// Threads of this name in this process.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|task| task.trim() == name).count()
}

/// `ranks` ranks whose calls would wait for ten minutes.
fn patient<const N: usize>() -> [Comm; N] {
    let (id, mut comms) = (id(), [0; N]);
    let config = Config { timeout_ms: 600_000, init_timeout_ms: 600_000, ..CONFIG };
    ok(cclGroupStart());
    for (rank, comm) in (0..).zip(&mut comms) {
        ok(cclCommInitRankConfig(comm, N as i32, id, rank, &config));
    }
    ok(cclGroupEnd());
    comms
}

/// The peers of a rank that has aborted know it without a call, and can destroy theirs.
#[track_caller]
fn told(peers: &[Comm], aborted: usize) {
    for peer in peers {
        wait_for("the news", || async_error(*peer) != SUCCESS);
        assert_eq!(async_error(*peer), REMOTE_ERROR);
        let words = last_error(*peer);
        assert!(words.contains(&format!("rank {aborted} has aborted")), "{words}");
        soon(|| assert_eq!(all_reduce(&mut [1f32], *peer, 0), REMOTE_ERROR));
        soon(|| ok(cclCommDestroy(*peer)));
    }
}

/// One test, since it counts threads.
#[test]
fn of_joining() {
    // In the background: the thread that joins ends, and does not wait for its deadline.
    let config = Config { blocking: 0, init_timeout_ms: 600_000, ..CONFIG };
    let mut comm = 0;
    assert_eq!(cclCommInitRankConfig(&mut comm, 2, id(), 0, &config), IN_PROGRESS);
    wait_for("the joining thread", || threads("ccl-init") == 1);
    soon(|| ok(cclCommAbort(comm)));
    ok(cclCommAbort(comm));
    soon(|| wait_for("the end of the joining thread", || threads("ccl-init") == 0));
    refused(cclCommCount(comm, &mut 0), INVALID_ARGUMENT, "no communicator");

    // In the foreground: the handle is there for other threads while the call waits.
    let handle = AtomicUsize::new(0);
    for in_group in [false, true] {
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| {
                let config = Config { init_timeout_ms: 600_000, ..CONFIG };
                let into = handle.as_ptr();
                if in_group {
                    ok(cclGroupStart());
                    ok(cclCommInitRankConfig(into, 2, id(), 0, &config));
                    return (cclGroupEnd(), last_error(0));
                }
                (cclCommInitRankConfig(into, 2, id(), 0, &config), last_error(0))
            });
            wait_for("the handle", || handle.load(Ordering::Acquire) != 0);
            let comm = handle.load(Ordering::Acquire);
            refused(cclCommCount(comm, &mut 0), INVALID_USAGE, "still joining");
            assert_eq!(dump(comm)["joining"], true);
            soon(|| ok(cclCommAbort(comm)));
            ok(cclCommAbort(comm));
            let (code, words) = soon(|| joining.join().expect("no panic"));
            assert_eq!(code, INVALID_USAGE, "{words}");
            assert!(words.contains("aborted"), "{words}");
            assert_eq!(handle.load(Ordering::Acquire), 0);
        });
    }
}

#[test]
fn of_a_call_from_many_threads() {
    let comms = patient::<3>();
    std::thread::scope(|scope| {
        let call = scope.spawn(move || (all_reduce(&mut [1f32; 10], comms[1], 0), last_error(0)));
        wait_for("the call", || running(comms[1]).is_some());
        for _ in 0..4 {
            scope.spawn(move || soon(|| ok(cclCommAbort(comms[1]))));
        }
        let (code, words) = soon(|| call.join().expect("no panic"));
        assert_eq!((code, words.contains("aborted")), (INVALID_USAGE, true), "{words}");
    });
    ok(cclCommAbort(comms[1]));
    refused(all_reduce(&mut [1f32], comms[1], 0), INVALID_ARGUMENT, "no communicator");
    told(&[comms[0], comms[2]], 1);
}

#[test]
fn of_a_stream_and_of_a_group() {
    let comms = patient::<2>();
    let stream = stream();
    let mut buffers = [[1f32; 10]; 3];
    buffers.iter_mut().for_each(|buffer| ok(all_reduce(buffer, comms[0], stream)));
    wait_for("the first call", || running(comms[0]).is_some());
    soon(|| ok(cclCommAbort(comms[0])));
    soon(|| refused(cclHostStreamSynchronize(stream), INVALID_USAGE, "aborted"));
    assert_eq!(buffers, [[1f32; 10]; 3]);
    ok(cclHostStreamDestroy(stream));
    told(&comms[1..], 0);

    // A group over two communicators: it ends, and the other of the two is told why it is of no use any more.
    let (one, two) = (patient::<2>(), patient::<2>());
    std::thread::scope(|scope| {
        let group = scope.spawn(move || {
            ok(cclGroupStart());
            ok(all_reduce(&mut [1f32; 10], one[0], 0));
            ok(cclRecv([0f32; 4].as_mut_ptr().cast(), 4, FLOAT32, 1, two[0], 0));
            (cclGroupEnd(), last_error(0))
        });
        wait_for("the group", || running(one[0]).is_some());
        soon(|| ok(cclCommAbort(one[0])));
        let (code, words) = soon(|| group.join().expect("no panic"));
        assert_eq!((code, words.contains("aborted")), (INVALID_USAGE, true), "{words}");
    });
    told(&one[1..], 0);
    wait_for("the other's news", || async_error(two[1]) == REMOTE_ERROR);
    two.into_iter().for_each(|comm| soon(|| ok(cclCommDestroy(comm))));
}

#[test]
fn of_a_split_and_of_a_shrink() {
    let ways: [fn(Comm, &mut Comm) -> i32; 2] = [
        |comm, child| cclCommSplit(comm, 0, 0, child, null()),
        |comm, child| cclCommShrink(comm, null(), 0, child, null(), 0),
    ];
    for make in ways {
        // Alone in it, and then with one who waits in it as well for the third.
        for inside in [1, 2] {
            let comms = patient::<3>();
            std::thread::scope(|scope| {
                let waiting: Vec<_> = comms[..inside]
                    .iter()
                    .map(|comm| {
                        scope.spawn(move || {
                            let mut child = 1;
                            (make(*comm, &mut child), child)
                        })
                    })
                    .collect();
                // Until they are in it, or nearly: either way they must end.
                std::thread::sleep(Duration::from_millis(20));
                soon(|| ok(cclCommAbort(comms[0])));
                ok(cclCommAbort(comms[2]));
                for waiting in waiting {
                    let (code, child) = soon(|| waiting.join().expect("no panic"));
                    // Who is left alone shrinks to one; who splits with one who has gone cannot.
                    assert_eq!(code == SUCCESS, child != 0);
                    if child != 0 {
                        ok(cclCommDestroy(child));
                    }
                }
            });
            soon(|| ok(cclCommDestroy(comms[1])));
        }
    }
}

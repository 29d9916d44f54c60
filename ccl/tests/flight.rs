//! The page of flight records, as others see it.

use ccl::flight::{Page, RankState};
use ccl::{Communicator, Config, ReduceOp};
use std::time::{Duration, Instant};

fn own_page() -> Option<Page> {
    Page::of_process(std::process::id()).expect("one's own process can be looked at")
}

/// The ranks of a communicator that this process's page shows, by rank.
fn shown(communicator: u64) -> Vec<RankState> {
    let states = own_page().map(|page| page.states()).unwrap_or_default();
    let mut states: Vec<RankState> = states.into_iter().filter(|s| s.communicator == communicator).collect();
    states.sort_by_key(|state| state.rank);
    states
}

#[test]
fn a_communicator_is_in_the_page_while_it_lives() {
    let mut comms = Communicator::local(2).expect("two ranks");
    let name = comms[0].state().communicator;
    assert_eq!(comms[1].state().communicator, name);
    assert!(shown(name).iter().all(|state| state.calls == 0 && state.last.is_none()));
    std::thread::scope(|scope| {
        for comm in &mut comms {
            scope.spawn(|| {
                let mut small = [1.0f32; 4];
                comm.all_reduce_in_place(&mut small, ReduceOp::Sum).expect("all_reduce");
                let mut large = vec![1.0f64; 1 << 16];
                comm.all_reduce_in_place(&mut large, ReduceOp::Max).expect("all_reduce");
            });
        }
    });
    let states = shown(name);
    assert_eq!(states.iter().map(|s| (s.rank, s.ranks, s.calls)).collect::<Vec<_>>(), [(0, 2, 2), (1, 2, 2)]);
    for state in states {
        assert_eq!(state.pid, std::process::id());
        assert!(state.running.is_empty() && state.broken.is_none());
        let last = state.last.expect("two calls were made");
        assert_eq!((last.name.as_str(), last.sequence, last.count), ("all_reduce", 1, 1 << 16));
        assert_eq!((last.dtype.as_str(), last.op.as_deref(), last.bytes), ("double", Some("max"), 8 << 16));
        assert!(last.started_ns.is_some() && last.started_ns < last.ended_ns, "a large call has stamps");
    }
    drop(comms);
    assert!(shown(name).is_empty(), "they are gone");
}

/// Rank 0's state once it is what the test waits for.
fn watched(communicator: u64, until: impl Fn(&RankState) -> bool) -> RankState {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let state = shown(communicator).swap_remove(0);
        if until(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "{state:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_rank_that_waits_says_for_what() {
    let mut comms = Communicator::local(2).expect("two ranks");
    let name = comms[0].state().communicator;
    let late = comms.pop().expect("rank 1");
    let mut early = comms.pop().expect("rank 0");
    std::thread::scope(move |scope| {
        // Dropped if the test fails, so that rank 0 need not wait for it.
        let mut late = late;
        let waiting = scope.spawn(move || {
            for _ in 0..2 {
                early.all_reduce_in_place(&mut [1i32; 3], ReduceOp::Sum).expect("all_reduce");
            }
        });
        let state = watched(name, |state| !state.running.is_empty());
        assert_eq!((state.calls, state.running[0].sequence), (1, 0), "it connects for its first call");
        late.all_reduce_in_place(&mut [1i32; 3], ReduceOp::Sum).expect("now both are there");

        // Until rank 0 runs again it may still be seen waiting in the first call.
        let state = watched(name, |state| state.calls == 2 && !state.waits.is_empty());
        assert_eq!((state.running.len(), state.running[0].sequence), (1, 1));
        assert!(state.running[0].started_ns.is_some(), "who waits looks at the clock");
        assert_eq!(
            (state.waits[0].peers.as_slice(), state.waits[0].on),
            (&[1][..], ccl::flight::WaitFor::Piece)
        );
        assert!(state.waits[0].since_ns <= state.now_ns && state.progress.is_some());
        late.all_reduce_in_place(&mut [1i32; 3], ReduceOp::Sum).expect("now both are there");
        waiting.join().expect("no panic");
        assert!(shown(name).is_empty() || shown(name)[0].waits.is_empty());
    });
}

#[test]
fn transfers_of_a_link_that_is_not_open_yet_have_their_numbers() {
    let mut comms = Communicator::local(2).expect("two ranks");
    let name = comms[0].state().communicator;
    let mut late = comms.pop().expect("rank 1");
    let mut early = comms.pop().expect("rank 0");
    std::thread::scope(|scope| {
        scope.spawn(move || early.batch().send(&[0u8; 2], 1).send(&[0i32; 3], 1).run().expect("sends"));
        let state = watched(name, |state| state.running.len() == 2);
        let mut running: Vec<_> = state.running.iter().map(|call| (call.sequence, call.count)).collect();
        running.sort_unstable();
        assert_eq!(running, [(0, 2), (1, 3)]);
        late.batch().receive(&mut [0u8; 2], 0).receive(&mut [0i32; 3], 0).run().expect("receives");
    });
}

#[test]
fn more_communicators_than_the_page_holds_keep_their_records_to_themselves() {
    let config = Config::from_vars([("RDMACCL_FLIGHT_CALLS".into(), "4096".into())]).expect("a power of two");
    let one = || Communicator::builder().config(config.clone()).build().expect("one rank");
    let mut many: Vec<Communicator> = (0..40).map(|_| one()).collect();
    for comm in &mut many {
        comm.barrier().expect("alone");
        assert_eq!(comm.state().calls, 1);
    }
    let names: Vec<u64> = many.iter().map(|comm| comm.state().communicator).collect();
    let in_page = names.iter().filter(|name| !shown(**name).is_empty()).count();
    assert!((20..40).contains(&in_page), "{in_page} of 40 have room");
    drop(many);
    let again = one();
    assert_eq!(shown(again.state().communicator).len(), 1, "the room is free again");
}

#[test]
fn a_forked_child_does_not_write_into_its_parents_page() {
    let mut comm = Communicator::builder().build().expect("one rank");
    comm.barrier().expect("alone");
    let name = comm.state().communicator;
    // SAFETY: the child makes a call that takes no lock and allocates nothing, looks at its memory, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = comm.barrier().is_ok() && comm.barrier().is_ok();
        // SAFETY: no handler or destructor of the parent shall run here.
        unsafe { libc::_exit(if done { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: the child from above, which nobody else waits for.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, libc::WEXITSTATUS(status)), (child, 7));
    assert_eq!(shown(name).iter().map(|state| state.calls).collect::<Vec<_>>(), [1]);
    comm.barrier().expect("alone");
    assert_eq!(shown(name)[0].calls, 2);
}

#[test]
fn a_process_without_communicators_has_no_page_and_one_that_is_not_there_is_an_error() {
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
    let page = Page::of_process(sleeper.id());
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    assert!(page.expect("it can be looked at").is_none());
    let error = Page::of_process(u32::MAX).expect_err("no such process");
    assert!(error.to_string().contains("descriptors of process 4294967295"), "{error}");
}

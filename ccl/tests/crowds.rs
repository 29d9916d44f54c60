//! Ranks that share cores and are all on one of them spread.

#![allow(clippy::print_stdout)]

use ccl::{Communicator, Config, ReduceOp, UniqueId};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static MOVES: AtomicU32 = AtomicU32::new(0);

/// Counts what the library says of ranks that move.
struct Listener;

impl Visit for Listener {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("moved to a core") {
            MOVES.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.target().starts_with("ccl_core::communicator")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Listener);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whether threads of other programs keep wanting the cores, while this one sleeps.
fn others_run() -> bool {
    let busy = (0..20).filter(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let load = std::fs::read_to_string("/proc/loadavg").expect("the load");
        let running = load.split([' ', '/']).nth(3).and_then(|running| running.parse().ok());
        running.is_some_and(|running: u32| running > 1)
    });
    busy.count() > 10
}

/// Whoever else runs at that moment may keep the ranks where they are, and the kernel may be sooner: so it is tried until it is seen.
#[test]
fn ranks_on_one_core_go_to_others_and_keep_their_affinity() {
    let allowed = sched_getaffinity(None).expect("an affinity");
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.len() < 2 {
        println!("skipped: one core has no other to go to");
        return;
    }
    let mut first = CpuSet::new();
    cores[..2].iter().for_each(|core| first.set(*core));
    let mut only = CpuSet::new();
    only.set(cores[0]);
    tracing::subscriber::set_global_default(Listener).expect("the only listener");

    const RANKS: u32 = 4;
    let id = UniqueId::create(&Config::default()).expect("an id");
    let (begin, is_over) = (Instant::now(), AtomicBool::new(false));
    let together = Barrier::new(RANKS as usize);
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (together, id, first, only, is_over) = (&together, &id, &first, &only, &is_over);
            scope.spawn(move || {
                // The communicator counts two cores: there are more ranks.
                sched_setaffinity(None, first).expect("two cores");
                let builder = Communicator::builder().rank(rank).size(RANKS).unique_id(*id);
                let mut comm = builder.build().expect("a communicator");
                loop {
                    sched_setaffinity(None, only).expect("one core");
                    together.wait();
                    sched_setaffinity(None, first).expect("two cores");
                    let mut sums = [0];
                    for _ in 0..1000 {
                        sums = [rank];
                        comm.all_reduce_in_place(&mut sums, ReduceOp::Sum).expect("a sum");
                    }
                    assert_eq!(sums, [6]);
                    let after = sched_getaffinity(None).expect("an affinity");
                    assert_eq!(after, *first, "it was bound for a moment only");
                    if together.wait().is_leader() {
                        let is_late = begin.elapsed() > Duration::from_secs(60);
                        is_over.store(is_late || MOVES.load(Ordering::Relaxed) > 0, Ordering::Relaxed);
                    }
                    together.wait();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
    });
    if MOVES.load(Ordering::Relaxed) == 0 && others_run() {
        println!("skipped: other programs want the cores, so ranks stay where they are");
        return;
    }
    assert!(MOVES.load(Ordering::Relaxed) > 0, "no rank has moved in {:?}", begin.elapsed());
}

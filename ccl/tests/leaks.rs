//! What remains of communicators that were made and used, broken, aborted, revoked, or never came to be: no thread,
//! descriptor or mapping. Alone in its process, since it counts them.

use ccl::{Communicator, Config, ReduceOp, Result, UniqueId};
use std::time::{Duration, Instant};

/// How a job of two ends, or fails to begin.
type Way = (&'static str, fn());

const WAYS: [Way; 8] = [
    ("in order", || on_both(|comm| sum(comm).expect("a sum"))),
    ("aborted", || {
        on_both(|comm| {
            sum(comm).expect("a sum");
            match comm.rank() {
                0 => comm.abort_handle().abort(),
                _ => drop(sum(comm).expect_err("its peer has gone")),
            }
        });
    }),
    ("aborted in a call", || {
        on_both(|comm| match comm.rank() {
            0 => std::thread::scope(|scope| {
                let abort = comm.abort_handle();
                scope.spawn(move || abort.abort());
                drop(sum(comm));
            }),
            _ => drop(sum(comm)),
        });
    }),
    ("of different calls", || {
        on_both(|comm| {
            let len = 10 + comm.rank() as usize;
            drop(comm.all_reduce_in_place(&mut vec![1f32; len], ReduceOp::Sum).expect_err("they differ"));
        });
    }),
    ("timed out", || {
        on_both(|comm| {
            sum(comm).expect("a sum");
            comm.set_timeout(Duration::from_millis(10));
            if comm.rank() == 0 {
                drop(sum(comm).expect_err("its peer does not come"));
            }
        });
    }),
    ("revoked and shrunk", || {
        on_both(|comm| {
            if comm.rank() == 0 {
                comm.revoke("on purpose");
            }
            let mut child = comm.shrink(&[]).expect("both are left");
            sum(&mut child).expect("a sum");
            let mut half = child.split(Some(child.rank()), 0).expect("a split").expect("a half");
            sum(&mut half).expect("a sum");
        });
    }),
    ("aborted while it joins", || {
        let mut builder = Communicator::builder().rank(0).size(2).unique_id(id());
        let abort = builder.abort_handle();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(builder.build().expect_err("nobody else comes")));
            abort.abort();
        });
    }),
    ("alone at its deadline", || {
        let builder = Communicator::builder().rank(1).size(2).unique_id(id());
        drop(builder.init_timeout(Duration::from_millis(50)).build().expect_err("nobody else comes"));
    }),
];

/// An id whose root waits for ranks as long as a test does.
fn id() -> UniqueId {
    let vars = [("RDMACCL_INIT_TIMEOUT".to_string(), "2".to_string())];
    UniqueId::create(&Config::from_vars(vars).expect("a configuration")).expect("an id")
}

fn on_both(work: impl Fn(&mut Communicator) + Sync) {
    let ranks = Communicator::local(2).expect("two ranks");
    std::thread::scope(|scope| {
        let work = &work;
        ranks.into_iter().for_each(|mut comm| drop(scope.spawn(move || work(&mut comm))));
    });
}

/// More than fits a slot, so that links of every kind are used.
fn sum(comm: &mut Communicator) -> Result<()> {
    comm.all_reduce_in_place(&mut vec![1f32; 100_000], ReduceOp::Sum)
}

/// What this process has: names of threads, and what its descriptors and shared mappings are of.
fn held() -> Vec<String> {
    let list = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("it is there").flatten();
    let threads = list("task").filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    // The folder that is being read here is one of them, and each socket has a number of its own.
    let kind = |target: std::path::PathBuf| target.to_string_lossy().split(':').next().map(str::to_string);
    let files = list("fd").filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter_map(kind);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let shared = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.ends_with('s')));
    let names = shared.map(|line| line.rsplit(' ').next().unwrap_or_default().to_string());
    let names: Vec<_> = names.collect();
    let mut held: Vec<_> = threads.map(|name| format!("thread {}", name.trim())).collect();
    held.extend(files.map(|name| format!("file {name}")));
    held.extend(names.into_iter().map(|name| format!("mapping {name}")));
    held.sort();
    held
}

#[test]
fn nothing_remains() {
    // What a process makes once and keeps.
    WAYS.iter().for_each(|(_, way)| way());
    let patience = Duration::from_secs(60);
    let settled = |expected: Option<&Vec<String>>| {
        let begin = Instant::now();
        loop {
            let now = held();
            let ours = |what: &str| what.starts_with("thread ccl-") || what.starts_with("thread rdmaccl-");
            let still = now.iter().any(|what| ours(what));
            let is_done = expected.map_or(!still, |expected| *expected == now);
            if is_done || begin.elapsed() > patience {
                return now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let before = settled(None);
    for (name, way) in WAYS {
        for _ in 0..10 {
            way();
        }
        assert_eq!(settled(Some(&before)), before, "after jobs that were {name}");
    }
}

//! Alone in its process, because it counts the process's descriptors and threads.

use ccl_core::bootstrap::{Bootstrap, UniqueId};
use ccl_core::config::Config;
use ccl_core::control::EndKind;
use std::time::{Duration, Instant};

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn a_job_leaves_no_descriptor_and_no_thread() {
    let config = Config::default();
    let before = (count("fd"), count("task"));
    let deadline = Instant::now() + Duration::from_secs(60);
    for orderly in [true, false] {
        let id = UniqueId::create(&config).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..6 {
                let (id, config) = (&id, &config);
                scope.spawn(move || {
                    let joined = Bootstrap::join(id, rank, 6, config, deadline).unwrap();
                    if !orderly {
                        joined.health().end(EndKind::Failed, "on purpose");
                    }
                });
            }
        });
    }
    // The root's thread ends by itself, a little later.
    while (count("fd"), count("task")) != before {
        assert!(Instant::now() < deadline, "left: {:?}, before: {before:?}", (count("fd"), count("task")));
        std::thread::yield_now();
    }
}

//! Time limits of single calls.

use ccl::{Communicator, Config, ErrorKind, ReduceOp, UniqueId};
use std::time::{Duration, Instant};

/// Two ranks whose calls may wait so long.
fn pair(timeout: Duration) -> [Communicator; 2] {
    let id = UniqueId::create(&Config::from_env().expect("a configuration")).expect("an id");
    std::thread::scope(|scope| {
        let join = |rank| {
            let builder = Communicator::builder().rank(rank).size(2).unique_id(id).timeout(timeout);
            scope.spawn(move || builder.build().expect("joined"))
        };
        [join(0), join(1)].map(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn a_call_gives_up_before_its_communicator_would() {
    let [mut one, mut other] = pair(Duration::from_secs(600));
    // The first call connects, the second has nothing to do but to wait for its peer.
    std::thread::scope(|scope| {
        scope.spawn(|| other.barrier().expect("a barrier"));
        one.barrier().expect("a barrier");
    });
    let begin = Instant::now();
    let (send, mut recv) = ([1u32], [0u32]);
    let batch = one.batch().all_reduce(&send, &mut recv, ReduceOp::Sum).timeout(Duration::from_millis(50));
    let error = batch.run().expect_err("nobody comes");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. } | ErrorKind::Verdict(_)), "{error}");
    assert!(error.to_string().contains("rank 1") || error.to_string().contains("ranks: 1"), "{error}");
}

#[test]
fn a_call_waits_longer_than_its_communicator_would() {
    let [mut one, mut other] = pair(Duration::from_millis(20));
    let patient = Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200)); // slower than the other's patience
            let (send, mut recv) = ([2u32], [0u32]);
            let batch = other.batch().all_reduce(&send, &mut recv, ReduceOp::Sum).timeout(patient);
            batch.run().expect("in time");
        });
        let (send, mut recv) = ([1u32], [0u32]);
        let batch = one.batch().all_reduce(&send, &mut recv, ReduceOp::Sum).timeout(patient);
        batch.run().expect("it waits");
        assert_eq!(recv, [3]);
    });
    // The limit was that call's only.
    let (send, mut recv) = ([1u32], [0u32]);
    assert!(one.all_reduce(&send, &mut recv, ReduceOp::Sum).is_err());
}

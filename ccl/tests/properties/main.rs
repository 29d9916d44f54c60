//! Random groups of calls against plain arithmetic: collectives, uneven blocks and transfers of every type and
//! operator, any root, in place and not, by any algorithm, several in a group, on 1 to 6 ranks.
//!
//! One thread drives all ranks of a case over shared memory, so that a case takes microseconds. `PROPTEST_CASES` sets
//! how many there are.

mod case;
mod value;

use case::{Draw, Job};
use ccl::{Builder, Communicator, Config, Operation, UniqueId, run_together};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::collections::HashMap;

/// Lengths of tiles: what the cost function takes, and short ones, so that small buffers have many.
const TILES: [Option<usize>; 3] = [None, Some(8), Some(96)];

/// Ranks that can be driven together, made once and used for many cases.
#[derive(Default)]
struct Jobs(HashMap<(u32, usize), Vec<Communicator>>);

fn make(ranks: u32, tile: usize) -> Vec<Communicator> {
    let mut config = Config::default();
    (config.tile_bytes, config.credits) = (TILES[tile], Some(8));
    let id = UniqueId::create(&config).expect("an id");
    std::thread::scope(|scope| {
        let join = |rank| {
            let builder = Builder::default().rank(rank).size(ranks).unique_id(id).config(config.clone());
            scope.spawn(move || builder.build().expect("a communicator"))
        };
        let threads: Vec<_> = (0..ranks).map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Makes the calls and compares the results. Ranks that failed are not used again.
fn run(jobs: &mut Jobs, ranks: u32, tile: usize, algorithm: usize, draws: &[Draw]) -> Result<(), String> {
    let mut ranks_of_job = jobs.0.remove(&(ranks, tile)).unwrap_or_else(|| make(ranks, tile));
    let mut calls: Vec<Job> = draws.iter().flat_map(|draw| Job::of(draw, ranks)).collect();
    let named =
        ccl::algorithm_names().nth(algorithm).filter(|name| calls.iter().all(|call| call.allows(name)));

    let mut operations: Vec<Vec<Operation<'_>>> = (0..ranks).map(|_| Vec::new()).collect();
    for call in &mut calls {
        for (all, own) in operations.iter_mut().zip(call.operations()) {
            all.extend(own);
        }
    }
    let mut batches = Vec::new();
    for (comm, own) in ranks_of_job.iter_mut().zip(operations) {
        comm.set_algorithm(named).map_err(|error| error.to_string())?;
        let mut batch = comm.batch();
        own.into_iter().for_each(|operation| batch.push(operation));
        batches.push(batch);
    }
    run_together(batches).map_err(|error| format!("{error} with {named:?}"))?;
    jobs.0.insert((ranks, tile), ranks_of_job);
    calls.iter().try_for_each(|call| call.check().map_err(|why| format!("{why} with {named:?}")))
}

fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..20usize, 2 => 20..300usize]
}

fn draws() -> impl Strategy<Value = Draw> {
    let lengths = proptest::collection::vec(counts(), 0..6);
    let numbers =
        (any::<u8>(), 0..14usize, 0..9usize, counts(), 0..6u32, any::<bool>(), any::<u64>(), lengths);
    numbers.prop_map(|(kind, dtype, op, count, root, in_place, seed, lengths)| Draw {
        kind,
        dtype,
        op,
        count,
        root,
        in_place,
        seed,
        lengths,
    })
}

#[test]
fn groups_of_calls_do_what_plain_arithmetic_does() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut runner = TestRunner::new(Cases { cases, failure_persistence: None, ..Cases::default() });
    let group = proptest::collection::vec(draws(), 1..4);
    let jobs = RefCell::new(Jobs::default());
    let result =
        runner.run(&(1..=6u32, 0..TILES.len(), 0..24usize, group), |(ranks, tile, algorithm, draws)| {
            run(&mut jobs.borrow_mut(), ranks, tile, algorithm, &draws).map_err(TestCaseError::fail)
        });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

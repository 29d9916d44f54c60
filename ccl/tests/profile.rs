//! Ranks choose alike, whatever profile each of them has.

use ccl::config::Profile;
use ccl::cost::Constants;
use ccl::{Call, Collective, Communicator, Config, DataType, Explanation, ReduceOp, UniqueId};
use std::path::{Path, PathBuf};

const RANKS: u32 = 3;

/// A profile of this machine whose messages take so long.
fn profile(name: &str, alpha_ns: f64) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rdmaccl-ranks-{}-{name}.json", std::process::id()));
    let constants = Constants { alpha_ns, ..Constants::default() };
    std::fs::write(&path, Profile::new(constants).text()).expect("a temporary file");
    path
}

/// What each rank would choose, where rank 0 and the others have these profiles.
fn explained(first: Option<&Path>, others: Option<&Path>) -> Vec<ccl::Result<Vec<Explanation>>> {
    let config = |path: Option<&Path>| {
        let mut config = Config::from_env().expect("a right environment");
        config.profile = Some(path.map_or("none".to_string(), |path| path.display().to_string()));
        config
    };
    let id = UniqueId::create(&config(None)).expect("an id");
    let rank = |rank: u32| {
        let config = config(if rank == 0 { first } else { others });
        let mut comm = Communicator::builder().rank(rank).size(RANKS).unique_id(id).config(config).build()?;
        let mut explained = Vec::new();
        for bits in 0..24 {
            let (dtype, op) = (DataType::U8, ReduceOp::Sum);
            let call = Call { collective: Collective::AllReduce, count: 1 << bits, dtype, op, root: 0 };
            explained.push(comm.explain(&call, false)?);
        }
        let mut sum = [1i64];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [i64::from(RANKS)]);
        Ok(explained)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS).map(|r| scope.spawn(move || rank(r))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn the_profile_of_rank_0_counts_for_all() {
    let (quick, slow) = (profile("quick", 30.0), profile("slow", 30_000.0));
    let of =
        |first, others| -> Vec<_> { explained(first, others).into_iter().map(ccl::Result::unwrap).collect() };
    let (mixed, same) = (of(Some(&slow), Some(&quick)), of(Some(&slow), None));
    assert!(mixed.iter().all(|rank| *rank == mixed[0]), "all ranks expect the same");
    assert_eq!(mixed[0], same[0], "the others' profiles do not count");
    assert_ne!(mixed[0], of(None, Some(&slow))[0], "rank 0's does");
    for path in [quick, slow] {
        std::fs::remove_file(path).expect("it is there");
    }
}

#[test]
fn a_profile_that_was_named_and_cannot_be_used_ends_the_joining() {
    let results = explained(Some(Path::new("/nonexistent/profile.json")), None);
    let first = results[0].as_ref().unwrap_err().to_string();
    assert!(first.contains("RDMACCL_PROFILE=/nonexistent/profile.json: it cannot be read"), "{first}");
    assert!(results.iter().all(Result::is_err), "nobody goes on without rank 0");
}

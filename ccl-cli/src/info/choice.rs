//! Which algorithm would carry out which call.

use crate::plan::{Machine, blocks};
use ccl::config::Tuned;
use ccl::cost::Candidates;
use ccl::{Collective, Config};
use serde::Serialize;

/// For ranks on this machine.
#[derive(Serialize)]
pub(super) struct Choices {
    pub(super) ranks: u32,
    /// Where the constants of the cost function come from.
    pub(super) constants: String,
    /// Counted as in the perf programs.
    pub(super) sizes: [usize; 4],
    pub(super) collectives: Vec<Chosen>,
}

/// For one collective.
#[derive(Serialize)]
pub(super) struct Chosen {
    pub(super) collective: &'static str,
    /// One per size.
    pub(super) algorithms: Vec<String>,
}

const SIZES: [usize; 4] = [8, 32 << 10, 1 << 20, 64 << 20];

/// Asks the cost function, as a communicator would.
pub(super) fn look(config: &Config, ranks: u32) -> Result<Choices, ccl::Error> {
    let constants = origin(config);
    let machine = Machine::here(config.clone(), ranks).or_else(|_| {
        // What is wrong with the profile is told; here it counts as none.
        let mut config = config.clone();
        config.profile = Some("none".to_string());
        Machine::here(config, ranks)
    })?;
    let chosen = |collective: Collective| {
        let candidates = Candidates::new(collective, ranks, 0)?;
        let block = |size: usize| size / blocks(collective, ranks);
        let name = |size| match machine.choose(&candidates, block(size), false, None) {
            Ok(choice) => choice.algorithm.name().to_string(),
            // A wish that cannot be granted, which the call itself would refuse.
            Err(error) => format!("error: {error}"),
        };
        Ok(Chosen { collective: collective.name(), algorithms: SIZES.into_iter().map(name).collect() })
    };
    let collectives = Collective::ALL.into_iter().map(chosen).collect::<Result<_, ccl::Error>>()?;
    Ok(Choices { ranks, constants, sizes: SIZES, collectives })
}

fn origin(config: &Config) -> String {
    match config.tuned() {
        Err(error) => format!("error: {error}"),
        Ok(Tuned { warning: Some(why), .. }) => format!("built in: {why}"),
        Ok(Tuned { profile: Some(path), .. }) => format!("from {}", path.display()),
        Ok(_) => "built in; `rdmaccl tune` measures this machine's".to_string(),
    }
}

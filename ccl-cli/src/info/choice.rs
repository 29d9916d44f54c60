//! Which algorithm would carry out which call.

use crate::plan::{Machine, blocks};
use ccl::cost::Candidates;
use ccl::{Collective, Config};
use serde::Serialize;

/// For ranks on this machine.
#[derive(Serialize)]
pub(super) struct Choices {
    pub(super) ranks: u32,
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
    let machine = Machine::new(config.clone(), None, ranks);
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
    Ok(Choices { ranks, sizes: SIZES, collectives })
}

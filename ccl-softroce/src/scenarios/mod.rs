//! The scenarios, in the order in which they run: what the others rest on first.

mod compare;
mod counts;
mod devices;
mod links;
mod outages;
mod programs;
mod rails;
mod rdma;

use crate::network::Network;
use crate::report::Outcome;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Something that must be so, and the hosts that it needs.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) proves: &'static str,
    hosts: usize,
    rails: usize,
    /// How long it may take, in an emulated guest on a busy machine.
    limit: Duration,
    run: fn(&mut Stage<'_>) -> Result<(), String>,
}

/// What a scenario plays on.
pub(crate) struct Stage<'a> {
    network: Network,
    /// The folder of the library's programs.
    programs: &'a Path,
    deadline: Instant,
    values: Map<String, Value>,
}

impl Stage<'_> {
    /// Keeps something measured for the report.
    fn measured(&mut self, name: &str, value: f64) {
        self.values.insert(name.into(), json!(value));
    }
}

/// Those that run where they are named only.
pub(crate) const NAMED: &[Scenario] = &[compare::FULL];

/// Those that run where none is named.
pub(crate) const ALL: &[Scenario] = &[
    devices::APPEAR,
    devices::GIDS,
    links::EACH_PAIR,
    links::PORT_FOLLOWS,
    links::FLAP,
    links::SILENT_PATH,
    links::LOSS,
    links::PATH_MTU,
    devices::LOCKED_MEMORY,
    links::PERFTEST,
    devices::VERBS,
    programs::ONE_HOST,
    programs::KILLED,
    rdma::TWO_HOSTS,
    rdma::SIZES,
    counts::COUNTED,
    rdma::HYBRID,
    rdma::C_PROGRAM,
    rdma::FOUR_HOSTS,
    outages::RESUMES,
    outages::ONE_RAIL_LONG,
    outages::RAIL_OUT_AND_IN,
    outages::SILENT_RAIL,
    outages::RAIL_OUT_FOR_GOOD,
    outages::CUT,
    rails::SHARES,
    rails::FLAPS,
    rdma::LOSSY,
    rdma::KILLED,
    rdma::REFUSALS,
    rdma::SMALLER_MTU,
    compare::SHORT,
];

/// Makes the network, runs it, and removes the network.
pub(crate) fn run(scenario: &Scenario, programs: &Path) -> Outcome {
    let start = Instant::now();
    let mut values = Map::new();
    let result = Network::new(scenario.hosts, scenario.rails, crate::network::MTU).and_then(|network| {
        let deadline = Instant::now() + scenario.limit;
        let mut stage = Stage { network, programs, deadline, values: Map::new() };
        let result = (scenario.run)(&mut stage);
        values = std::mem::take(&mut stage.values);
        result
    });
    Outcome { name: scenario.name, proves: scenario.proves, took: start.elapsed(), result, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = ALL.iter().chain(NAMED).map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len() + NAMED.len());
    }
}

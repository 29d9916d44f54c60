//! What the fuzzers run: one function per kind of bytes that come from outside.
//!
//! Each takes any bytes and panics where a promise is broken; `fuzz/` makes libFuzzer targets of them, and the tests
//! here replay the corpora, so that whatever was found once is looked for by `cargo test`. Inputs that mean several
//! things are read as a script, by [`Script`]; what comes after its end is zeros, so every input means something.

mod plan;
mod script;
mod settings;

use crate::bootstrap::fuzzing as bootstrap;
use crate::flight::fuzzing as flight;

pub use bootstrap::{message, node, session, unique_id};
pub use flight::{flight, record, verdict};
pub use plan::plan;
pub use script::Script;
pub use settings::{config, launch};

use std::path::Path;

/// A target: its name, what it does with an input, and good inputs to start from, by name.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<(String, Vec<u8>)>);

/// Every target of this crate.
pub const TARGETS: [Target; 10] = [
    ("config", config, settings::config_seeds),
    ("flight", flight, flight::flight_seeds),
    ("launch", launch, settings::launch_seeds),
    ("message", message, bootstrap::message_seeds),
    ("node", node, bootstrap::node_seeds),
    ("plan", plan, plan::seeds),
    ("record", record, flight::record_seeds),
    ("session", session, bootstrap::session_seeds),
    ("unique_id", unique_id, bootstrap::unique_id_seeds),
    ("verdict", verdict, flight::verdict_seeds),
];

/// Runs every input that is kept in a folder of this one, and every good one.
pub fn replay(targets: &[Target], corpora: &str) {
    for (name, run, seeds) in targets {
        let folder = Path::new(corpora).join(name);
        let kept = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut inputs: Vec<_> = kept.map(|entry| entry.expect("an entry of the corpus").path()).collect();
        inputs.sort();
        let kept = inputs
            .into_iter()
            .map(|path| (path.display().to_string(), std::fs::read(&path).expect("an input of the corpus")));
        for (input, bytes) in kept.chain(seeds()) {
            let passed = std::panic::catch_unwind(|| run(&bytes));
            assert!(passed.is_ok(), "{name} fails with the input {input}");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kept_input_passes() {
        super::replay(&super::TARGETS, concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    }
}

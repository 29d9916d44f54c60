//! Every fuzz target for a fixed number of inputs, from a fixed seed. fuzz/README.md says how to run one for longer.

use crate::cores::by_all;
use crate::shell::{command, root, run, target};
use crate::tally::{Outcome, tail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Inputs for each target: some seconds of each.
pub(crate) const RUNS: u64 = 5_000;

/// What libFuzzer and AddressSanitizer want of the compiler: where the program goes, and what it compares, told at each step
/// (<https://llvm.org/docs/LibFuzzer.html>, <https://clang.llvm.org/docs/SanitizerCoverage.html>). It is what cargo-fuzz, with
/// which people fuzz for longer, passes too; building that takes a minute.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=16";

fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

pub(crate) fn check(runs: u64) -> Outcome {
    match all(runs) {
        Ok((passed, wrong)) => Outcome::tests(passed, wrong),
        Err(why) => Outcome::Failed(why),
    }
}

/// Builds all of them.
pub(crate) fn build() -> Command {
    let line = format!(
        "cargo build --manifest-path fuzz/Cargo.toml --locked --release --bins --target {}",
        triple()
    );
    let mut build = command(&line);
    // With the compiler in use: the sanitizer's flag is unstable, which the bootstrap variable allows.
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", folder());
    build
}

/// Where they are built.
fn folder() -> PathBuf {
    target().join("fuzz")
}

/// How many targets have passed, and what is wrong with the others.
fn all(runs: u64) -> Result<(u64, Vec<String>), String> {
    run(&mut build())?;
    let built = folder();
    let seeds = built.join("seeds");
    // Not of the fuzzers' package: libFuzzer would be compiled once more.
    run(&mut command("cargo build --workspace --locked --example seeds"))?;
    run(command(&target().join("debug/examples/seeds").display().to_string()).arg(&seeds))?;
    let names = targets()?;
    let ended = by_all(&names, |name| one(name, &built, &seeds, runs));
    let wrong: Vec<String> = ended.into_iter().filter_map(Result::err).collect();
    Ok(((names.len() - wrong.len()) as u64, wrong))
}

/// The targets, by the names of their files.
fn targets() -> Result<Vec<String>, String> {
    let folder = root().join("fuzz/fuzz_targets");
    let files = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let stem = |file: std::fs::DirEntry| Some(file.path().file_stem()?.to_string_lossy().into_owned());
    let mut names: Vec<String> = files.filter_map(|file| stem(file.ok()?)).collect();
    names.sort();
    Ok(names)
}

/// Runs a target from its good inputs and from those that are kept; what it finds on the way is not kept.
fn one(name: &str, built: &Path, seeds: &Path, runs: u64) -> Result<(), String> {
    let (work, artifacts) = (built.join("corpus").join(name), root().join("fuzz/artifacts").join(name));
    // What an earlier run has found would make this one another.
    let _ = std::fs::remove_dir_all(&work);
    for folder in [&work, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut fuzzer = command(&built.join(triple()).join("release").join(name).display().to_string());
    fuzzer.args([work, seeds.join(name), root().join("fuzz/corpus").join(name)]);
    fuzzer.args([format!("-runs={runs}"), format!("-artifact_prefix={}/", artifacts.display())]);
    fuzzer.args("-seed=1 -max_len=2048 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1".split(' '));
    let start = Instant::now();
    let output = fuzzer.output().map_err(|e| format!("cannot run the target {name}: {e}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let executed = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executed: u64 = executed.and_then(|n| n.trim().parse().ok()).unwrap_or_default();
    let enough = executed >= runs;
    let mut report = format!("{name}: {executed} inputs, {:.0} s", start.elapsed().as_secs_f64());
    let right = output.status.success() && enough;
    if !right {
        report.push_str(&tail(&log));
    }
    // At one go: other targets run meanwhile.
    println!("{report}");
    if right {
        return Ok(());
    }
    let place = artifacts.display();
    Err(format!("{name}: {} after {executed} inputs; the input is in {place}", output.status))
}

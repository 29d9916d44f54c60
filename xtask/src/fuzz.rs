//! Every fuzz target for a fixed number of inputs, from a fixed seed. fuzz/README.md says how to run one for longer.

use crate::shell::{command, root, run, target};
use crate::tally::Outcome;
use crate::tools;
use std::path::Path;
use std::time::Instant;

/// Inputs for each target: some seconds of each.
pub(crate) const RUNS: u64 = 5_000;

/// With the compiler in use: the sanitizer's flag is unstable, which the bootstrap variable allows.
pub(crate) fn check(runs: u64) -> Outcome {
    match all(runs) {
        Ok((passed, wrong)) => Outcome::tests(passed, wrong),
        Err(why) => Outcome::Failed(why),
    }
}

/// How many targets have passed, and what is wrong with the others.
fn all(runs: u64) -> Result<(u64, Vec<String>), String> {
    let built = target().join("fuzz");
    let cargo_fuzz = tools::need_crate("cargo-fuzz")?;
    let mut build = command(&format!("{} fuzz build --target-dir", cargo_fuzz.display()));
    // cargo-fuzz would have each crate made as one unit, by one core.
    run(build.arg(&built).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Ccodegen-units=16"))?;
    let seeds = built.join("seeds");
    // Not of the fuzzers' package: libFuzzer would be compiled once more.
    run(&mut command("cargo build --workspace --locked --example seeds"))?;
    run(command(&target().join("debug/examples/seeds").display().to_string()).arg(&seeds))?;
    let (mut passed, mut wrong) = (0, Vec::new());
    for name in targets()? {
        match one(&name, &built, &seeds, runs) {
            Ok(()) => passed += 1,
            Err(why) => wrong.push(why),
        }
    }
    Ok((passed, wrong))
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
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let (work, artifacts) = (built.join("corpus").join(name), root().join("fuzz/artifacts").join(name));
    // What an earlier run has found would make this one another.
    let _ = std::fs::remove_dir_all(&work);
    for folder in [&work, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut fuzzer = command(&built.join(triple).join("release").join(name).display().to_string());
    fuzzer.args([work, seeds.join(name), root().join("fuzz/corpus").join(name)]);
    fuzzer.args([format!("-runs={runs}"), format!("-artifact_prefix={}/", artifacts.display())]);
    fuzzer.args("-seed=1 -max_len=2048 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1".split(' '));
    let start = Instant::now();
    let output = fuzzer.output().map_err(|e| format!("cannot run the target {name}: {e}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let executed = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executed: u64 = executed.and_then(|n| n.trim().parse().ok()).unwrap_or_default();
    let enough = executed >= runs;
    println!("{name}: {executed} inputs, {:.0} s", start.elapsed().as_secs_f64());
    if output.status.success() && enough {
        return Ok(());
    }
    let tail: Vec<&str> = log.lines().rev().take(60).collect();
    for line in tail.into_iter().rev() {
        println!("    {line}");
    }
    let place = artifacts.display();
    Err(format!("{name}: {} after {executed} inputs; the input is in {place}", output.status))
}

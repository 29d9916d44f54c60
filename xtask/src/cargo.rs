//! The checks that are one or two calls of cargo.

use crate::programs::test;
use crate::shell::{Printed, command, root, run, target, tee};
use crate::tally::{Outcome, count_tests, tail};
use crate::tools;
use std::process::Command;

pub(crate) fn fmt() -> Outcome {
    Outcome::of(run(&mut command("cargo fmt --all --check")))
}

pub(crate) fn clippy() -> Outcome {
    // What `cargo test` leaves to a check of its own is not among all targets.
    let all = ["--all-targets", "--test emulation"];
    let each = all.map(|targets| {
        run(&mut command(&format!("cargo clippy --workspace {targets} --locked -- -D warnings")))
    });
    Outcome::of(each.into_iter().collect())
}

/// Debug assertions and overflow checks are on.
pub(crate) fn unit() -> Outcome {
    test(command("cargo test --workspace --all-targets --locked"), &[])
}

pub(crate) fn docs() -> Outcome {
    let mut documentation = command("cargo doc --workspace --no-deps --locked --document-private-items");
    if let Err(why) = run(documentation.env("RUSTDOCFLAGS", "-D warnings")) {
        return Outcome::Failed(why);
    }
    match tee(&mut command("cargo test --workspace --doc --locked")) {
        Err(why) => Outcome::Failed(why),
        Ok(Printed { success, output, errors }) => match count_tests(&output) {
            Outcome::Tests { failed, .. } if failed.is_empty() && !success => Outcome::Failed(tail(&errors)),
            Outcome::Tests { passed: 0, .. } => Outcome::Failed("no test ran".into()),
            counted => counted,
        },
    }
}

/// Compiles C, where the unit tests alone would do without: every machine can run those.
pub(crate) fn verbs() -> Outcome {
    if let Err(why) = tools::need_all(&[("/usr/include/infiniband/verbs.h", "libibverbs-dev")]) {
        return Outcome::Skipped(why);
    }
    // The whole workspace's, or it would be built once more: with other features than the unit tests.
    let mut comparison = command("cargo test --workspace --lib --locked");
    comparison.env("RDMACCL_VERBS_HEADER", "required");
    test(comparison, &["header_tests"])
}

/// Optimised, and with the counts on the terminal: plans proved, mutations caught, faults that found their culprit;
/// and of what unit tests sample, all.
pub(crate) fn proofs() -> Outcome {
    test(proving(), &["--nocapture"])
}

/// What builds and runs the proofs.
pub(crate) fn proving() -> Command {
    command(
        "cargo test --profile fast --workspace --test verify_* --test cluster_* --test control_* --locked",
    )
}

pub(crate) fn loom() -> Outcome {
    test(under_loom(), &[])
}

/// In a target folder of its own: by other flags everything would be built twice in the common one.
pub(crate) fn under_loom() -> Command {
    // No model computes with these, and most of the build is to optimise them.
    let line = "cargo test --profile fast --config profile.fast.package.ccl-core.opt-level=0 \
                --config profile.fast.package.ccl-kernels.opt-level=0 --package ccl-transport-shm --package ccl --lib --locked";
    let mut tests = command(line);
    tests.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
    tests
}

pub(crate) fn tsan() -> Outcome {
    test(under_tsan(), &[])
}

/// With the compiler in use: the sanitizer's flags are unstable, which the bootstrap variable allows, and the standard
/// library stays without it, which the suppressions make up for. A nightly that builds its own is not needed.
pub(crate) fn under_tsan() -> Command {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let line = format!(
        "cargo test --target {triple} --profile fast --package ccl-transport-shm --package ccl --package ccl-ffi --locked \
         --lib --test threads --test processes --test collectives --test groups --test mapped"
    );
    let suppressions = root().join("ccl-transport-shm/tsan-suppressions.txt");
    let mut tests = command(&line);
    tests
        .env("RUSTC_BOOTSTRAP", "1")
        // The sanitizer sees only libc's calls; of memory that is unmapped by others, it takes what comes to lie there for the same.
        .env(
            "RUSTFLAGS",
            "--cfg tsan --cfg rustix_use_libc -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
        )
        // Suppressions name functions that are inlined.
        .env("CARGO_PROFILE_FAST_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_FAST_STRIP", "none")
        // A report makes the test program exit with an error at its end.
        .env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()))
        // One at a time: the harness itself then shares less between threads.
        .env("RUST_TEST_THREADS", "1")
        // Eight threads by four communicators, in seconds.
        .env("SOAK_SECONDS", "10")
        .env("CARGO_TARGET_DIR", target().join("tsan"));
    tests
}

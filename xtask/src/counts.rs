//! What a small collective costs, in counts that do not depend on how busy the machine is:
//! system calls, of which there are none, and instructions. Allocations are counted in `ccl/tests/counts.rs`.
//!
//! All are differences between a long and a short run of `ccl/examples/small_all_reduce.rs`, so that what
//! starting and ending costs cancels out.

use crate::shell::{command, read, root, run, target};
use crate::tally::Outcome;
use crate::tools;

const SHORT: u64 = 1000;
const LONG: u64 = 3000;
/// Where the measured instruction count stands, for people and for comparison.
const RECORD: &str = "benches/instructions.txt";

pub(crate) fn check() -> Outcome {
    for tool in ["strace", "valgrind"] {
        if let Err(why) = tools::need(tool) {
            return Outcome::Skipped(why);
        }
    }
    match counted() {
        Ok(passed) => Outcome::Tests { passed, failed: 0, skipped: 0 },
        Err(why) => Outcome::Failed(why),
    }
}

fn counted() -> Result<u64, String> {
    run(&mut command("cargo build --release --locked --package ccl --example small_all_reduce"))?;
    let calls = (system_calls(SHORT)?, system_calls(LONG)?);
    println!(
        "system calls (yields apart) of {SHORT} and {LONG} all_reduces of 8 bytes: {} and {}",
        calls.0, calls.1
    );
    // A call of the path itself would be there 2000 times. Heartbeats, and parking where the machine is busy with
    // something else, come to a few.
    if calls.1 > calls.0 + (LONG - SHORT) / 10 {
        return Err(format!("{} system calls in {} small all_reduces", calls.1 - calls.0, LONG - SHORT));
    }
    let each = (instructions(LONG)? - instructions(SHORT)?) / (LONG - SHORT);
    println!("instructions of an all_reduce of 8 bytes on one rank alone: {each}");
    let path = root().join(RECORD);
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let before: Option<u64> = recorded.split_whitespace().next().and_then(|word| word.parse().ok());
    match before {
        // A tenth is more than compilers differ by, and less than a needless step costs.
        Some(before) if each > before + before / 10 => Err(format!(
            "{each} instructions where {RECORD} says {before}: find out why, or record the new number"
        )),
        Some(_) => Ok(2),
        None => Err(format!("{RECORD} does not begin with a number")),
    }
}

fn example() -> String {
    target().join("release/examples/small_all_reduce").to_string_lossy().into_owned()
}

/// Of all threads, in a run with so many collectives. Yielding is left out: that is how a rank waits for a peer that
/// the kernel has put aside, and strace, which stops a thread at each call that it sees, would cause it.
fn system_calls(collectives: u64) -> Result<u64, String> {
    let log = target().join("strace.txt");
    let line = format!("strace -f --seccomp-bpf -c -e trace=!sched_yield -o {} {}", log.display(), example());
    run(command(&line).args(["2", &collectives.to_string()]))?;
    let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    total_calls(&text).ok_or_else(|| format!("strace's summary has no total:\n{text}"))
}

/// The calls column of the line `total`.
fn total_calls(summary: &str) -> Option<u64> {
    let total = summary.lines().find(|line| line.trim_end().ends_with("total"))?;
    total.split_whitespace().nth(3)?.parse().ok()
}

/// Of one rank that is alone: waiting for peers would count how long they took.
fn instructions(collectives: u64) -> Result<u64, String> {
    let out = target().join("callgrind.out");
    let line = format!(
        "valgrind --tool=callgrind --callgrind-out-file={} {} 1 {collectives}",
        out.display(),
        example()
    );
    read(&mut command(&line))?;
    let text = std::fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    totals.and_then(|n| n.trim().parse().ok()).ok_or_else(|| "callgrind wrote no totals".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_straces_summary_is_found() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ----------------\n\
                        50.00    0.000010           5         2           read\n\
                       ------ ----------- ----------- --------- --------- ----------------\n\
                       100.00    0.000020           3         6         1 total\n";
        assert_eq!(total_calls(summary), Some(6));
        assert_eq!(total_calls("nothing"), None);
    }
}

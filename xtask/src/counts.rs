//! What a small collective costs, in counts that do not depend on how busy the machine is, and repeat from run to
//! run: system calls, of which there are none, and instructions. Allocations are counted in
//! `ccl/tests/counts.rs`.
//!
//! What is counted is `ccl/examples/two_ranks.rs`, in which one thread steps two ranks in turn and nothing waits.

use crate::shell::{command, read, root, run, target};
use crate::tally::Outcome;
use crate::tools;
use std::fmt::Write as _;

/// Bytes, and a number of calls that is a multiple of how often slots and credits come round.
const SIZES: [(u64, u64); 3] = [(8, 512), (1024, 512), (65536, 128)];
const RANKS: u64 = 2;
/// Where the instructions of each size stand, for people and for comparison.
const RECORD: &str = "benches/instructions.txt";
const HEADER: &str = "\
# Instructions of an all_reduce on one of two ranks, counted by callgrind: `cargo xtask counts` fails where one of
# them is 5 % above its number here. The difference between runs of 3N and of N calls of ccl/examples/two_ranks.rs,
# release profile, x86-64, halved: it holds the engine, the reduction and the shared-memory links, no waiting, and
# no argument checks of the communicator. It repeats to within one instruction. It depends on the kernels, which valgrind's own idea of
# the CPU decides (valgrind 3.19 has no AVX-512), and a little on the compiler and on the C library's memcpy.
#
# kernels  bytes  instructions
";

pub(crate) fn check() -> Outcome {
    for tool in ["strace", "valgrind"] {
        if let Err(why) = tools::need(tool) {
            return Outcome::Skipped(why);
        }
    }
    let counted = run(&mut command("cargo build --release --locked --package ccl --example two_ranks"))
        .and_then(|()| system_calls())
        .and_then(|calls| Ok(calls + instructions()?));
    match counted {
        Ok(passed) => Outcome::tests(passed, Vec::new()),
        Err(why) => Outcome::Failed(why),
    }
}

fn example() -> String {
    target().join("release/examples/two_ranks").to_string_lossy().into_owned()
}

/// There are none, yielding included, in any number of calls: so N and 3N give the same.
fn system_calls() -> Result<u64, String> {
    let log = target().join("strace.txt");
    for (bytes, calls) in SIZES {
        for calls in [calls, 3 * calls] {
            let line = format!("strace -f -o {} {}", log.display(), example());
            read(command(&line).args(["--iterations", &calls.to_string(), "--bytes", &bytes.to_string()]))?;
            let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
            let made = between_marks(&text).ok_or("strace did not see the example's begin and end")?;
            println!("system calls in {calls} all_reduces of {bytes} bytes: {}", made.len());
            if !made.is_empty() {
                return Err(format!("system calls in an all_reduce of {bytes} bytes:\n{}", made.join("\n")));
            }
        }
    }
    Ok(SIZES.len() as u64)
}

/// The lines between the one that writes `begin` and the one that writes `end`.
fn between_marks(log: &str) -> Option<Vec<&str>> {
    let writes = |what: &str| log.lines().position(|line| line.contains(&format!("write(1, \"{what}\\n\"")));
    let (begin, end) = (writes("begin")?, writes("end")?);
    Some(log.lines().skip(begin + 1).take(end.checked_sub(begin + 1)?).collect())
}

fn instructions() -> Result<u64, String> {
    let path = root().join(RECORD);
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut passed, mut now) = (0, HEADER.to_string());
    let mut worse = Vec::new();
    for (bytes, calls) in SIZES {
        let (kernels, short) = total(calls, bytes)?;
        let (_, long) = total(3 * calls, bytes)?;
        let each = (long - short) / (2 * calls * RANKS);
        println!("instructions of an all_reduce of {bytes} bytes on each of two ranks: {each} ({kernels})");
        let _ = writeln!(now, "{kernels:<9}  {bytes:>5}  {each:>12}");
        match number(&recorded, &kernels, bytes) {
            // A twentieth is more than compilers differ by, and less than a needless step costs.
            Some(before) if each * 20 > before * 21 => {
                worse.push(format!("{each} for {bytes} bytes where it says {before}"));
            }
            Some(_) => passed += 1,
            // Another CPU, or another valgrind: nothing is wrong, and there is nothing to compare with.
            None => println!("not compared: {RECORD} has no number for {bytes} bytes with {kernels} kernels"),
        }
    }
    let fresh = target().join("instructions.txt");
    std::fs::write(&fresh, now).map_err(|e| format!("{}: {e}", fresh.display()))?;
    if worse.is_empty() {
        return Ok(passed);
    }
    Err(format!("{RECORD}: {}; find out why, or copy {} there", worse.join(", "), fresh.display()))
}

/// The recorded number of a size.
fn number(recorded: &str, kernels: &str, bytes: u64) -> Option<u64> {
    let lines = recorded.lines().filter(|line| !line.starts_with('#'));
    let mut rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() == 3 && row[0] == kernels && row[1] == bytes.to_string())?;
    row[2].parse().ok()
}

/// Which kernels ran, and the instructions of all warm-up and counted calls on both ranks, without the set-up.
fn total(calls: u64, bytes: u64) -> Result<(String, u64), String> {
    let out = target().join("callgrind.out");
    let line = format!(
        "valgrind --tool=callgrind --toggle-collect=two_ranks::all_reduces --callgrind-out-file={} {} \
         --iterations {calls} --bytes {bytes}",
        out.display(),
        example()
    );
    // Valgrind counts each byte of a `rep movsb`: keep the C library from copying that way.
    let tunable = "glibc.cpu.x86_rep_movsb_threshold=1073741824";
    let printed = read(command(&line).env("GLIBC_TUNABLES", tunable))?;
    let kernels = printed.lines().find_map(|line| line.strip_prefix("kernels ")).ok_or("no kernels named")?;
    let text = std::fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|n| n.trim().parse().ok()).ok_or("callgrind wrote no totals")?;
    Ok((kernels.to_string(), total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_the_marks_are_found() {
        let log = "7 brk(0) = 0\n7 write(1, \"begin\\n\", 6) = 6\n7 sched_yield() = 0\n7 write(1, \"end\\n\", 4) = 4\n";
        assert_eq!(between_marks(log), Some(vec!["7 sched_yield() = 0"]));
        assert_eq!(between_marks("7 brk(0) = 0\n"), None);
    }

    #[test]
    fn recorded_numbers_are_found_by_kernels_and_size() {
        let recorded = "# avx2 8 1\navx2      8  1544\navx2  1024  1884\n";
        assert_eq!(number(recorded, "avx2", 8), Some(1544));
        assert_eq!(number(recorded, "avx512", 8), None);
    }
}

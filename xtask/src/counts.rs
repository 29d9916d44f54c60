//! What a collective costs, in counts that do not depend on how busy the machine is, and repeat from run to
//! run: system calls of a small one, of which there are none, its instructions, and [`copies`] of a larger one.
//! Allocations are counted in `ccl/tests/counts.rs`.
//!
//! Whose system calls and instructions are counted is `ccl/examples/two_ranks.rs`, in which one thread steps two ranks in turn and nothing waits.

use crate::copies;
use crate::shell::{command, read, root, run, target};
use crate::tally::Outcome;
use crate::tools;
use std::fmt::Write as _;
use std::process::Command;
use std::str::FromStr;

/// Links, bytes, and a number of calls that is a multiple of how often slots, credits, receives and completions come round.
const CASES: [(&str, u64, u64); 5] =
    [("shm", 8, 512), ("shm", 1024, 512), ("shm", 65536, 128), ("ib", 8, 512), ("ib", 1024, 512)];
const RANKS: u64 = 2;
/// What counts: the calls, and not what the fake libibverbs does in them. Callgrind turns over at begin and end of each.
const COUNTED: [&str; 4] = [
    "two_ranks::all_reduces*",
    "ccl_fake_ibverbs::ffi::queue_pair::post_send",
    "ccl_fake_ibverbs::ffi::queue_pair::post_recv",
    "ccl_fake_ibverbs::ffi::queue_pair::poll_cq",
];
/// Valgrind counts each byte of a `rep movsb`: keeps the C library from copying that way.
pub(crate) const NO_REP_MOVSB: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1073741824");
/// Where the instructions of each case stand, for people and for comparison.
const RECORD: &str = "benches/instructions.txt";
const HEADER: &str = "\
# Instructions of an all_reduce on one of two ranks, counted by callgrind: `cargo xtask counts` fails where one of
# them is 5 % above its number here. The difference between runs of 3N and of N calls of ccl/examples/two_ranks.rs,
# release profile, x86-64, halved: it holds the engine, the reduction and the links (shared memory, or queue pairs without
# what libibverbs does: one post, and a poll and a half), no waiting, and no argument checks of the communicator. It repeats to
# within one instruction. It depends on the kernels, which valgrind's own idea of the CPU decides (valgrind 3.19 has no
# AVX-512), and a little on the compiler and on the C library's memcpy.
#
# links  kernels  bytes  instructions
";

pub(crate) fn check() -> Outcome {
    for tool in ["strace", "valgrind"] {
        if let Err(why) = tools::need(tool) {
            return Outcome::Skipped(why);
        }
    }
    let counted = run(&mut build())
        .and_then(|()| system_calls())
        .and_then(|calls| Ok(calls + instructions()? + copies::check()?));
    match counted {
        Ok(passed) => Outcome::tests(passed, Vec::new()),
        Err(why) => Outcome::Failed(why),
    }
}

/// Builds the program whose system calls and instructions are counted.
pub(crate) fn build() -> Command {
    command("cargo build --release --locked --workspace --example two_ranks")
}

fn example(links: &str, bytes: u64, calls: u64) -> String {
    let program = target().join("release/examples/two_ranks");
    format!("{} --links {links} --iterations {calls} --bytes {bytes}", program.display())
}

/// There are none, yielding included, in any number of calls: so N and 3N give the same. A fake libibverbs makes its own.
fn system_calls() -> Result<u64, String> {
    let log = target().join("strace.txt");
    let cases = || CASES.into_iter().filter(|(links, ..)| *links == "shm");
    for (links, bytes, calls) in cases() {
        for calls in [calls, 3 * calls] {
            let line = format!("strace -f -o {} {}", log.display(), example(links, bytes, calls));
            read(&mut command(&line))?;
            let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
            let made = between_marks(&text).ok_or("strace did not see the example's begin and end")?;
            println!("system calls in {calls} all_reduces of {bytes} bytes: {}", made.len());
            if !made.is_empty() {
                return Err(format!("system calls in an all_reduce of {bytes} bytes:\n{}", made.join("\n")));
            }
        }
    }
    Ok(cases().count() as u64)
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
    for (links, bytes, calls) in CASES {
        let (kernels, short) = total(links, bytes, calls)?;
        let (_, long) = total(links, bytes, 3 * calls)?;
        let each = (long - short) / (2 * calls * RANKS);
        println!(
            "instructions of an all_reduce of {bytes} bytes on each of two ranks over {links}: {each} ({kernels})"
        );
        let _ = writeln!(now, "{links:<7}  {kernels:<7}  {bytes:>5}  {each:>12}");
        match number(&recorded, [links, &kernels, &bytes.to_string()]) {
            // A twentieth is more than compilers differ by, and less than a needless step costs.
            Some(before) if each * 20 > before * 21 => {
                worse.push(format!("{each} for {bytes} bytes over {links} where it says {before}"));
            }
            Some(_) => passed += 1,
            // Another CPU, or another valgrind: nothing is wrong, and there is nothing to compare with.
            None => println!(
                "not compared: {RECORD} has no number for {bytes} bytes over {links} with {kernels} kernels"
            ),
        }
    }
    let fresh = target().join("instructions.txt");
    std::fs::write(&fresh, now).map_err(|e| format!("{}: {e}", fresh.display()))?;
    if worse.is_empty() {
        return Ok(passed);
    }
    Err(format!("{RECORD}: {}; find out why, or copy {} there", worse.join(", "), fresh.display()))
}

/// The recorded number of links, kernels and bytes.
fn number(recorded: &str, case: [&str; 3]) -> Option<u64> {
    numbers(recorded, &case).map(|[number]| number)
}

/// What a record's line says after the words that name a case, if it is so many numbers.
pub(crate) fn numbers<T: FromStr, const N: usize>(recorded: &str, case: &[&str]) -> Option<[T; N]> {
    let mut rows = recorded.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.starts_with(case))?;
    let numbers: Option<Vec<T>> = row[case.len()..].iter().map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Which kernels ran, and the instructions of all warm-up and counted calls on both ranks, without the set-up.
fn total(links: &str, bytes: u64, calls: u64) -> Result<(String, u64), String> {
    let out = target().join("callgrind.out");
    let toggles: String = COUNTED.iter().map(|function| format!(" --toggle-collect={function}")).collect();
    let line = format!(
        "valgrind --tool=callgrind{toggles} --callgrind-out-file={} {}",
        out.display(),
        example(links, bytes, calls)
    );
    let printed = read(command(&line).envs([NO_REP_MOVSB]))?;
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
    fn recorded_numbers_are_found_by_links_kernels_and_bytes() {
        let recorded = "# shm avx2 8 1\nib avx2 8 3\nshm    avx2      8  1544\nshm avx2  1024  1884\n";
        assert_eq!(number(recorded, ["shm", "avx2", "8"]), Some(1544));
        assert_eq!(number(recorded, ["ib", "avx2", "8"]), Some(3));
        assert_eq!(number(recorded, ["shm", "avx512", "8"]), None);
    }
}

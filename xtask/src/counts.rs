//! What a collective costs, in counts that do not depend on how busy the machine is, and repeat from run to
//! run: system calls of a small one, of which there are none, its instructions, and [`copies`] of a larger one.
//! Allocations are counted in `ccl/tests/counts.rs`.
//!
//! Whose system calls and instructions are counted are two programs in which one thread has two ranks in turn and nothing waits: the engine's calls
//! in `ccl/examples/two_ranks.rs`, and those of the C ABI in `ccl-ffi/examples/calls_in_turn.rs`.

use crate::copies;
use crate::shell::{command, read, root, run, target};
use crate::tally::Outcome;
use crate::tools;
use std::fmt::{self, Write as _};
use std::process::Command;
use std::str::FromStr;

/// What is made: all-reduces of the engine over some links, or a call of the C ABI; bytes; and a number of calls that is a multiple of how
/// often slots, credits, receives and completions come round.
const CASES: [(What, u64, u64); 9] = [
    (What::Links("shm"), 8, 512),
    (What::Links("shm"), 1024, 512),
    (What::Links("shm"), 65536, 128),
    (What::Links("ib"), 8, 512),
    (What::Links("ib"), 1024, 512),
    (What::Call("broadcast"), 8, 512),
    (What::Call("send"), 8, 512),
    (What::Call("exchange"), 8, 512),
    (What::Call("exchange"), 1024, 512),
];

#[derive(Clone, Copy, PartialEq)]
enum What {
    Links(&'static str),
    Call(&'static str),
}

impl What {
    /// As the record has it.
    fn name(self) -> &'static str {
        match self {
            What::Links(name) | What::Call(name) => name,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Links(links) => write!(f, "an all_reduce over {links}"),
            What::Call(call) => write!(f, "the C ABI's {call}"),
        }
    }
}

const RANKS: u64 = 2;
/// What counts: the calls, and not what the fake libibverbs does in them. Callgrind turns over at begin and end of each.
const COUNTED: [&str; 5] = [
    "two_ranks::all_reduces*",
    "calls_in_turn::calls",
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
# Instructions on one of two ranks, counted by callgrind: `cargo xtask counts` fails where one of them is 5 % above its number here. The
# difference between runs of 3N and of N calls, release profile, x86-64, halved. It repeats to within one instruction, and depends on the kernels,
# which valgrind's own idea of the CPU decides (valgrind 3.19 has no AVX-512), and a little on the compiler and on the C library's memcpy.
#
# shm, ib: an all_reduce in ccl/examples/two_ranks.rs: the engine, the reduction and the links (shared memory, or queue pairs without
# what libibverbs does: one post, and a poll and a half), no waiting, and no argument checks of the communicator.
# broadcast, send, exchange: all of a call of the C ABI in ccl-ffi/examples/calls_in_turn.rs, over shared memory. Of a broadcast and of a send and its receive
# the mean of both ranks; an exchange is a group of a send and a receive.
#
# what       kernels  bytes  instructions
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
    command("cargo build --release --locked --workspace --example two_ranks --example calls_in_turn")
}

fn example(what: What, bytes: u64, calls: u64) -> String {
    let (program, option) = match what {
        What::Links(_) => ("two_ranks", "--links"),
        What::Call(_) => ("calls_in_turn", "--call"),
    };
    let program = target().join("release/examples").join(program);
    format!("{} {option} {} --iterations {calls} --bytes {bytes}", program.display(), what.name())
}

/// There are none, yielding included, in any number of calls: so N and 3N give the same. A fake libibverbs makes its own.
fn system_calls() -> Result<u64, String> {
    let log = target().join("strace.txt");
    let cases = || CASES.into_iter().filter(|(what, ..)| *what != What::Links("ib"));
    for (what, bytes, calls) in cases() {
        for calls in [calls, 3 * calls] {
            let line = format!("strace -f -o {} {}", log.display(), example(what, bytes, calls));
            read(&mut command(&line))?;
            let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
            let made = between_marks(&text).ok_or("strace did not see the example's begin and end")?;
            println!("system calls in {calls} times {what} of {bytes} bytes: {}", made.len());
            if !made.is_empty() {
                return Err(format!("system calls in {what} of {bytes} bytes:\n{}", made.join("\n")));
            }
        }
    }
    Ok(cases().count() as u64)
}

/// The lines of a thread between the one that writes `begin` and the one that writes `end`.
fn between_marks(log: &str) -> Option<Vec<&str>> {
    let writes = |what: &str| log.lines().position(|line| line.contains(&format!("write(1, \"{what}\\n\"")));
    let (begin, end) = (writes("begin")?, writes("end")?);
    let thread = |line: &str| line.split_whitespace().next().map(str::to_string);
    let own = thread(log.lines().nth(begin)?);
    let between = log.lines().skip(begin + 1).take(end.checked_sub(begin + 1)?);
    Some(between.filter(|line| thread(line) == own).collect())
}

fn instructions() -> Result<u64, String> {
    let path = root().join(RECORD);
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut passed, mut now) = (0, HEADER.to_string());
    let mut worse = Vec::new();
    for (what, bytes, calls) in CASES {
        let (kernels, short) = total(what, bytes, calls)?;
        let (_, long) = total(what, bytes, 3 * calls)?;
        let each = (long - short) / (2 * calls * RANKS);
        println!("instructions of {what} of {bytes} bytes on each of two ranks: {each} ({kernels})");
        let name = what.name();
        let _ = writeln!(now, "{name:<11}  {kernels:<7}  {bytes:>5}  {each:>12}");
        match number(&recorded, [name, &kernels, &bytes.to_string()]) {
            // A twentieth is more than compilers differ by, and less than a needless step costs.
            Some(before) if each * 20 > before * 21 => {
                worse.push(format!("{each} for {what} of {bytes} bytes where it says {before}"));
            }
            Some(_) => passed += 1,
            // Another CPU, or another valgrind: nothing is wrong, and there is nothing to compare with.
            None => println!(
                "not compared: {RECORD} has no number for {what} of {bytes} bytes with {kernels} kernels"
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

/// The recorded number of links or a call, kernels and bytes.
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
fn total(what: What, bytes: u64, calls: u64) -> Result<(String, u64), String> {
    let out = target().join("callgrind.out");
    let toggles: String = COUNTED.iter().map(|function| format!(" --toggle-collect={function}")).collect();
    let line = format!(
        "valgrind --tool=callgrind{toggles} --callgrind-out-file={} {}",
        out.display(),
        example(what, bytes, calls)
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
        let log = "7 brk(0) = 0\n7 write(1, \"begin\\n\", 6) = 6\n8 brk(0) = 0\n7 sched_yield() = 0\n7 write(1, \"end\\n\", 4) = 4\n";
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

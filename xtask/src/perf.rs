//! The perf programs as users run them: between processes and between threads, all types and operators.
//! They check their own data and say so by their exit status.

use crate::shell::{Printed, command, run, target, tee};
use crate::tally::Outcome;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The one that is built: a link to it is another, by its name.
pub(crate) const PROGRAM: &str = "all_reduce_perf";
/// The others that move data.
const SIBLINGS: [&str; 9] = [
    "all_gather_perf",
    "reduce_scatter_perf",
    "broadcast_perf",
    "reduce_perf",
    "alltoall_perf",
    "alltoallv_perf",
    "gather_perf",
    "scatter_perf",
    "sendrecv_perf",
];

/// The names of the others; the last is the first one's other spelling.
pub(crate) fn links() -> impl Iterator<Item = &'static str> {
    SIBLINGS.into_iter().chain(["barrier_perf", "allreduce_perf"])
}

pub(crate) fn check() -> Outcome {
    let build = format!("cargo build --profile fast --locked --workspace --bin {PROGRAM}");
    if let Err(why) = run(&mut command(&build)) {
        return Outcome::Failed(why);
    }
    let programs = match programs() {
        Ok(folder) => folder,
        Err(why) => return Outcome::Failed(why),
    };
    let (mut passed, mut wrong) = (0, Vec::new());
    for line in lines() {
        match right(&programs, &line) {
            Ok(()) => passed += 1,
            Err(why) => wrong.push(why),
        }
    }
    println!("perf programs: {passed} runs with verified data, {} not", wrong.len());
    Outcome::tests(passed, wrong)
}

fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for program in [PROGRAM].into_iter().chain(SIBLINGS) {
        for ranks in [1, 2, 3, 4, 5, 8] {
            // 4, 28, 196, … bytes: no power of two, so that nothing divides evenly.
            lines.push(format!("{program} -g {ranks} -b 4 -e 4M -f 7 -n 2 -w 1"));
            lines.push(format!("{program} -g 1 -t {ranks} -b 1 -e 3K -f 5 -n 1 -w 0 -d all -o all -r -1"));
        }
        lines.push(format!("{program} -g 3 -b 1 -e 3K -f 5 -n 1 -w 0 -d all -o all -r -1"));
        lines.push(format!("{program} -g 4 -b 4 -e 64M -f 8 -n 2 -w 1"));
    }
    // Over sockets, and over sockets and shared memory at once.
    for program in [PROGRAM].into_iter().chain(SIBLINGS) {
        lines.push(format!("{program} -g 2 --hosts 2 -b 4 -e 16M -f 7 -n 2 -w 1"));
        lines.push(format!("{program} -g 4 --hosts 2 -b 1 -e 16M -f 13 -n 2 -w 1 -d uint8"));
        lines.push(format!("{program} -g 5 --hosts 3 -b 1 -e 3K -f 5 -n 1 -w 0 -d all -o all"));
    }
    for ranks in ["-g 1", "-g 4", "-g 8", "-t 4", "-g 4 --hosts 2"] {
        lines.push(format!("barrier_perf {ranks} -n 200 -c 20"));
    }
    lines
}

/// Links to the program that was built; their folder.
fn programs() -> Result<PathBuf, String> {
    let folder = target().join("perf");
    // What an earlier run has left.
    let _ = std::fs::remove_dir_all(&folder);
    let program = target().join("fast").join(PROGRAM);
    let link = |name| symlink(&program, folder.join(name));
    std::fs::create_dir_all(&folder)
        .and_then(|()| [PROGRAM].into_iter().chain(links()).try_for_each(link))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

fn right(programs: &Path, line: &str) -> Result<(), String> {
    let program = programs.join(line);
    let Printed { success, output, .. } = tee(&mut command(&program.to_string_lossy()))?;
    if !success || !output.contains("# Out of bounds values : 0 OK") {
        return Err(format!("{line}: {}", output.lines().last().unwrap_or("no output")));
    }
    Ok(())
}

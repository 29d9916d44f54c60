//! # ccl-gpu-check: the kernels on a machine with one GPU
//!
//! Proves and measures what no CPU can show: `ccl-gpu-check all` runs every step in a process of its own, each with a deadline, writes what
//! each found as JSON, and prints one short table. A step alone runs by its name. `gpu/check.sh` is the command for people; docs/gpu-check.md says what
//! each step proves.
//!
//! No step asserts a time: a measurement is printed, and a wrong result or a wait without end is a failure.

// A command-line program talks to people, and ends with a code.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![deny(unsafe_code)]

mod abort;
mod all;
mod bench;
mod beside;
mod case;
mod correct;
mod graphs;
mod large;
mod outcome;
mod pairs;
mod probe;
mod processes;
#[path = "../../ccl-transport-cuda/tests/emulation/random.rs"]
mod random;
mod rank;
mod short;
mod threads;
mod time;
#[path = "../../ccl-transport-cuda/tests/emulation/ways.rs"]
mod ways;

use bench::Bench;
use clap::{Args, Parser, ValueEnum};
use outcome::Outcome;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Proves and measures the kernels on a machine with one GPU")]
struct Arguments {
    /// What to do: a step, all of them one after the other, or the table of those that were done
    what: What,
    #[command(flatten)]
    options: Options,
}

/// How.
#[derive(Args, Clone, Debug)]
struct Options {
    /// Where the JSON goes
    #[arg(long, default_value = "target/gpu")]
    out: PathBuf,
    /// The device's number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Few ranks, threads and bytes, for the kernels on threads of a CPU
    #[arg(long)]
    small: bool,
    /// Only the cases whose name holds this text
    #[arg(long)]
    only: Option<String>,
    /// Seconds for a step, in place of its own deadline
    #[arg(long)]
    seconds: Option<u64>,
    /// Be this one of the ranks that the step `processes` starts
    #[arg(long, hide = true, requires = "ranks")]
    rank: Option<usize>,
    /// How many there are
    #[arg(long, hide = true)]
    ranks: Option<usize>,
    /// Be the side of the step `nccl` that calls this library
    #[arg(long, hide = true, requires = "prefix", requires = "ranks")]
    library: Option<String>,
    /// What its functions' names begin with
    #[arg(long, hide = true)]
    prefix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Every step below, one after the other, and the table
    All,
    /// The table of what was found until now
    Table,
    /// What the machine is and can do; how long its compiler takes for the kernels
    Probe,
    /// Every kernel, and every plan by the interpreter, gives the bits of the host's engine
    Correct,
    /// A thousand launches of recorded graphs, each result checked
    Graphs,
    /// Kernels that wait for a rank which never comes end by the alarm and by the clock, and say for whom they waited
    Abort,
    /// Ranks as threads, each with launches and a stream of its own
    Threads,
    /// Ranks as processes, each with memory of its own that the others open
    Processes,
    /// How long everything takes
    Time,
    /// The library's calls beside those of NCCL, where that is found
    Nccl,
}

impl What {
    /// The steps in their order, with the seconds that each may take. All together fit into ten minutes.
    const STEPS: [(What, u64); 8] = [
        (What::Probe, 35),
        (What::Correct, 90),
        (What::Graphs, 45),
        (What::Abort, 30),
        (What::Threads, 40),
        (What::Processes, 35),
        (What::Time, 115),
        (What::Nccl, 80),
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    fn seconds(self, options: &Options) -> u64 {
        let own = What::STEPS.iter().find(|(step, _)| *step == self).map_or(600, |(_, seconds)| *seconds);
        options.seconds.unwrap_or(own)
    }
}

/// What the driver reads once: all code is loaded before anything runs, and each stream has a queue of its own, or ranks as
/// threads would wait for each other in vain.
const SETTINGS: [(&str, &str); 2] = [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];

fn main() -> ExitCode {
    let Arguments { what, options } = Arguments::parse();
    let ok = match what {
        What::All => all::run(&options),
        What::Table => all::table(&options),
        step => {
            if SETTINGS.iter().any(|(name, _)| std::env::var_os(name).is_none()) {
                let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
                let error = Command::new(program).args(std::env::args_os().skip(1)).envs(SETTINGS).exec();
                eprintln!("cannot start again with the driver's settings: {error}");
                return ExitCode::FAILURE;
            }
            one(step, &options)
        }
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A step in this process.
fn one(step: What, options: &Options) -> bool {
    let seconds = step.seconds(options);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds));
        eprintln!("{}: not done in {seconds} s", step.name());
        // The same code as timeout(1).
        std::process::exit(124);
    });
    if let (Some(rank), Some(ranks)) = (options.rank, options.ranks) {
        rank::run(options, seconds, rank, ranks);
    }
    if let (Some(library), Some(prefix), Some(ranks)) = (&options.library, &options.prefix, options.ranks) {
        beside::side(options, library, prefix, ranks);
    }
    let mut outcome = Outcome::new(&step.name(), &options.out);
    let result = Bench::open(options, seconds).and_then(|bench| match step {
        What::Probe => probe::run(&bench, &mut outcome),
        What::Correct => correct::run(&bench, &mut outcome),
        What::Graphs => graphs::run(&bench, &mut outcome),
        What::Abort => abort::run(&bench, &mut outcome),
        What::Threads => threads::run(&bench, &mut outcome),
        What::Processes => processes::run(&bench, options, seconds, &mut outcome),
        What::Time => time::run(&bench, &mut outcome),
        What::Nccl => beside::run(&bench, options, seconds, &mut outcome),
        What::All | What::Table => Ok(()),
    });
    if let Err(error) = result {
        outcome.fail(error.to_string());
    }
    outcome.finish()
}

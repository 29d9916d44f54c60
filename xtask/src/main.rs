//! # xtask: the development commands
//!
//! `cargo xtask test` runs every check of this repository; each is also a command of its own. A check
//! passes, fails with a reason, or is skipped with a reason; a skip is said aloud, and with `--no-skip` it
//! is a failure. What a check needs (valgrind, strace, cmake) is installed where that is allowed.
//!
//! `cargo xtask install --prefix DIR` installs the C library, its headers and the programs.
//! `cargo xtask gpu` builds what `gpu/check.sh` runs on a machine with a GPU; `docs/gpu-check.md` says what it shows.
//! `cargo xtask chaos` runs as many random faults as it is told to; `docs/chaos.md` says how.
//! `cargo xtask softroce` runs the RDMA tests in a guest or natively; `docs/softroce.md` says how.
//! `cargo xtask gen` writes the generated files; `gen --check` only compares them.

// A command-line program talks to people.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod abi;
mod ahead;
mod arrows;
mod cargo;
mod chaos;
mod copies;
mod cores;
mod counts;
mod functions;
mod fuzz;
mod generate;
mod gpu;
mod install;
mod kernels;
mod licences;
mod nccl;
mod peers;
mod perf;
mod programs;
mod readme;
mod shell;
mod softroce;
mod tally;
mod tools;
mod torch;

use ahead::Ahead;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;
use tally::{Outcome, Tally};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The development commands of rdmaccl")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
    /// Count a check that cannot run as failed
    #[arg(long, global = true)]
    no_skip: bool,
}

#[derive(Subcommand)]
enum Task {
    /// Every check below
    Test {
        /// Remove what a check that passed has built or downloaded for itself alone: half of the disk space does then
        #[arg(long)]
        sweep: bool,
    },
    /// Write the generated files
    Gen {
        /// Only compare them with what would be written
        #[arg(long)]
        check: bool,
    },
    /// Build librdmaccl and the programs, and install them with the headers; DESTDIR is put before the prefix
    Install {
        /// Where to, like /usr/local
        #[arg(long)]
        prefix: PathBuf,
        /// Cargo's profile to build with
        #[arg(long, default_value = "release")]
        profile: String,
        /// With the kernels as machine code for sm_75 to sm_120, by the pinned assembler from PyPI: drivers need not compile them then
        #[arg(long)]
        device_code: bool,
    },
    /// Build the program that checks the kernels on a GPU into gpu/bin, for gpu/check.sh on a machine without Rust
    Gpu {
        /// Bring NCCL along, to be measured beside: from PyPI, cut down to devices of this compute capability, like 90
        #[arg(long, value_name = "CAPABILITY")]
        nccl: Option<u32>,
        /// Bring the Python package along for the step `torch`, which builds its backend for the torch that is there
        #[arg(long)]
        torch: bool,
    },
    /// Random faults in real processes, every outcome checked: --seed S --faults N; --help has all options
    Chaos {
        /// Options of the runner
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// The RDMA tests on the kernel's software RDMA device
    Softroce {
        /// In this machine's kernel, in a guest, or where it can be
        #[arg(long, value_enum, default_value = "auto")]
        place: softroce::Place,
        /// Options of the tests: names of scenarios, --list, --help
        #[arg(last = true)]
        options: Vec<String>,
    },
    #[command(flatten)]
    One(Check),
}

/// The checks, in the order in which `test` runs them: the quick ones first, and those that wait a lot before those whose
/// builds can be made meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Subcommand)]
enum Check {
    /// The code is formatted
    Fmt,
    /// Crates and modules know each other only as the architecture says
    Arrows,
    /// Dependencies have licences and sources that deny.toml allows
    Deny,
    /// No clippy warnings
    Clippy,
    /// Unit and integration tests
    Unit,
    /// Doc tests, and docs without warnings or broken links
    Docs,
    /// Generated files are up to date
    Generated,
    /// Our C types of libibverbs are what its header says
    Verbs,
    /// The installed C library: its symbols, headers and examples, by pkg-config and CMake, under memcheck
    Abi,
    /// The perf programs between processes and threads, every type and operator
    Perf,
    /// The benchmark beside the peers: its tests, and ours through its driver
    Peers,
    /// Random faults in real processes: a part of what `chaos` does, with a fixed seed
    ChaosPart,
    /// RDMA on the kernel's software device, in a guest where this kernel has none: what `softroce` does
    SoftrocePart,
    /// The CUDA kernels without a GPU: fresh PTX, assembled for every device, and run on threads under ThreadSanitizer
    Kernels {
        /// Write the PTX anew, and run nothing
        #[arg(long)]
        write: bool,
    },
    /// The PyTorch backend: PyTorch's own tests and ours, the wheel, the examples
    Torch,
    /// The verifier over every plan, and over mutated ones, optimised and with its counts
    Proofs,
    /// The shared-memory ring and the turnstile under loom: every interleaving
    Loom,
    /// The shared-memory transport, all collectives over it, and many threads at the C ABI under ThreadSanitizer
    Tsan,
    /// What comes from outside, under libFuzzer
    Fuzz {
        /// Inputs for each target
        #[arg(long, default_value_t = fuzz::RUNS)]
        runs: u64,
    },
    /// No system call in a small collective; its instructions; how often larger ones copy a byte
    Counts,
    /// The README's commands
    Readme,
}

const ALL: [Check; 21] = [
    Check::Fmt,
    Check::Arrows,
    Check::Deny,
    Check::Clippy,
    Check::Unit,
    Check::Docs,
    Check::Generated,
    Check::Verbs,
    Check::Abi,
    Check::Perf,
    Check::Peers,
    Check::ChaosPart,
    Check::SoftrocePart,
    Check::Kernels { write: false },
    Check::Torch,
    Check::Proofs,
    Check::Loom,
    Check::Tsan,
    Check::Fuzz { runs: fuzz::RUNS },
    Check::Counts,
    Check::Readme,
];

impl Check {
    fn run(self) -> Outcome {
        match self {
            Check::Fmt => cargo::fmt(),
            Check::Arrows => arrows::check(),
            Check::Deny => licences::check(),
            Check::Clippy => cargo::clippy(),
            Check::Unit => cargo::unit(),
            Check::Docs => cargo::docs(),
            Check::Generated => generate::check(),
            Check::Verbs => cargo::verbs(),
            Check::Proofs => cargo::proofs(),
            Check::Loom => cargo::loom(),
            Check::Tsan => cargo::tsan(),
            Check::Fuzz { runs } => fuzz::check(runs),
            Check::Abi => abi::check(),
            Check::Perf => perf::check(),
            Check::Peers => peers::check(),
            Check::ChaosPart => chaos::check(),
            Check::SoftrocePart => softroce::check(),
            Check::Kernels { write } => kernels::check(write),
            Check::Torch => torch::check(),
            Check::Counts => counts::check(),
            Check::Readme => readme::check(),
        }
    }

    /// What it builds in its turn for itself alone, as the very same command.
    fn build(self) -> Option<Command> {
        match self {
            Check::Proofs => Some(programs::build(cargo::proving())),
            Check::Loom => Some(programs::build(cargo::under_loom())),
            Check::Tsan => Some(programs::build(cargo::under_tsan())),
            Check::Fuzz { .. } => Some(fuzz::build()),
            Check::Counts => Some(counts::build()),
            Check::Readme => readme::build(),
            _ => None,
        }
    }

    /// The folder in the target folder that it shares with no other check.
    fn folder(self) -> Option<&'static str> {
        match self {
            Check::Loom => Some("loom"),
            Check::Tsan => Some("tsan"),
            Check::Fuzz { .. } => Some("fuzz"),
            Check::Abi => Some("abi"),
            Check::SoftrocePart => Some("softroce"),
            Check::Kernels { .. } => Some("kernels"),
            Check::Torch => Some("torch"),
            _ => None,
        }
    }

    fn sweep(self) -> Result<(), String> {
        let Some(folder) = self.folder().map(|name| shell::target().join(name)).filter(|f| f.exists()) else {
            return Ok(());
        };
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let checks: &[Check] = match &arguments.command {
        Task::Test { .. } => &ALL,
        Task::Gen { check: true } => &[Check::Generated],
        Task::Gen { check: false } => return written("generated", generate::write()),
        Task::Install { prefix, profile, device_code } => {
            let placed =
                install::staged(prefix).and_then(|folder| install::install(&folder, profile, *device_code));
            return written("installed", placed.map(|p| p.iter().map(|p| p.display().to_string()).collect()));
        }
        Task::Gpu { nccl, torch } => {
            let placed = gpu::place().and_then(|()| nccl.map_or(Ok(()), nccl::place));
            return succeeded(placed.and_then(|()| if *torch { gpu::place_package() } else { Ok(()) }));
        }
        Task::Chaos { options } => return succeeded(chaos::with(options)),
        Task::Softroce { place, options } => return succeeded(softroce::with(*place, options)),
        Task::One(check) => &[*check],
    };
    let mut total = Tally::default();
    // The first one's turn is now.
    let later = checks.iter().skip(1);
    let ahead = Ahead::start(later.filter_map(|check| Some((*check, check.build()?))));
    for check in checks {
        println!("==> {check:?}");
        let start = Instant::now();
        ahead.turn_of(*check);
        let mut outcome = check.run();
        if matches!(arguments.command, Task::Test { sweep: true })
            && outcome.is_clean()
            && let Err(why) = check.sweep()
        {
            outcome = Outcome::Failed(why);
        }
        println!("<== {check:?}: {outcome} ({:.0} s)\n", start.elapsed().as_secs_f64());
        total.add(&format!("{check:?}"), outcome, arguments.no_skip);
    }
    total.close()
}

fn succeeded(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn written(how: &str, result: Result<Vec<String>, String>) -> ExitCode {
    match result {
        Ok(files) => {
            println!("{} files {how}:\n{}", files.len(), files.join("\n"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

//! # ccl-chaos: faults in real processes
//!
//! A *trial* is a few ranks, each a process, a random script of collectives whose results every rank checks against plain
//! arithmetic, and a fault at a random moment: a signal, an exit, an abort, a disagreement, a rank that does not come. A
//! seed and a number determine it. The ranks tell the runner what they got, and the judge compares it with what
//! `docs/failures.md` promises: an error that names the culprit, in time, in the same words where it is a verdict;
//! right results where there is no error; an end; and nothing left behind.
//!
//! `cargo xtask chaos` builds and starts it.

// A command-line program talks to people.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod event;
mod fault;
mod judge;
mod lag;
mod random;
mod report;
mod runner;
mod step;
mod trial;
mod value;
mod worker;

use clap::{Args, Parser, Subcommand};
use fault::Kind;
use std::path::PathBuf;
use std::process::ExitCode;
use trial::Trial;

#[derive(Parser)]
#[command(name = "ccl-chaos", about = "Random faults in real processes, and a judge of every outcome")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Subcommand)]
enum Command {
    /// One rank of a trial; the runner starts it
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        number: u64,
        #[arg(long, value_parser = kind)]
        kind: Kind,
        #[arg(long)]
        rank: u32,
        #[arg(long)]
        runner: i32,
    },
}

/// What to run, and where to write it.
#[derive(Args)]
pub(crate) struct RunOptions {
    /// What all random choices come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many trials, each with one kind of fault
    #[arg(long, default_value_t = 100)]
    faults: u64,
    /// Run this trial only, and show all that its ranks said
    #[arg(long)]
    only: Option<u64>,
    /// Run trials of this kind only
    #[arg(long, value_parser = kind)]
    kind: Option<Kind>,
    /// Trials at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Milliseconds from a death to the error of every other rank that are still in time
    #[arg(long, default_value_t = judge::AT_ONCE.as_millis() as u64)]
    at_once_ms: u64,
    /// Stop after so many trials that went wrong
    #[arg(long, default_value_t = 20)]
    give_up: usize,
    /// Write the outcome as JSON into this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the tables of failures.md and chaos.md in this folder, between their marks
    #[arg(long, num_args = 0..=1, default_missing_value = "docs")]
    write_tables: Option<PathBuf>,
}

fn kind(name: &str) -> Result<Kind, String> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Worker { seed, number, kind, rank, runner }) => {
            worker::run(&Trial::draw(seed, number, Some(kind)), rank, runner)
        }
        None => match report::run(&arguments.run) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(why) => {
                eprintln!("error: {why}");
                ExitCode::from(2)
            }
        },
    }
}

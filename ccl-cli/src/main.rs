//! # rdmaccl: the command for everything that is not a benchmark
//!
//! `rdmaccl plan …` lists, shows, draws, proves and prices plans; `rdmaccl info` says what is here, what would be
//! chosen, and where every setting comes from. `rdmaccl top` shows what communicators do now, `rdmaccl flight` what those
//! that broke have left behind, and `rdmaccl tune` measures what things take on this machine and keeps it in a profile. It
//! knows the crate `ccl` only, as a user of the library would, and changes nothing on the machine but that one file.
//!
//! Exit status: 0; 1 where the answer is bad news (a plan that is refused, a setting that is wrong, ranks that hang); 2 for an
//! error.

mod answer;
mod flight;
mod info;
mod plan;
mod size;
mod table;
mod top;
mod tune;

use answer::Answer;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "rdmaccl",
    version,
    about = "Looks into rdmaccl: its plans, this machine, the settings in force; tunes it to this machine",
    after_help = "Exit status: 0; 1 where the answer is bad news (a plan that is refused, a setting that is \
                  wrong, ranks that hang); 2 for an error.\nThe benchmarks are programs of their own: all_reduce_perf, alltoall_perf, …",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What every rank does in a collective: list, show, draw, prove, price
    #[command(subcommand)]
    Plan(plan::Command),
    /// What is here, what would be chosen, and every setting with its origin
    Info(info::Arguments),
    /// Measures what things take on this machine, for the choice of algorithms
    Tune(tune::Arguments),
    /// What the communicators of this host's processes do, also of those that are stopped or stuck
    Top(top::Arguments),
    /// What the flight records of all ranks say together: verdict, table, timeline
    Flight(flight::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Plan(command) => plan::run(&command),
        Command::Info(arguments) => info::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Flight(arguments) => flight::run(&arguments),
    };
    match done.and_then(Answer::give) {
        Ok(status) => status,
        Err(failure) => failure.tell(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}

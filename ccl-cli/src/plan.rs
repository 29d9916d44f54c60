//! `rdmaccl plan`: plans to look at, to draw, to prove and to price.

mod list;
mod price;
mod show;
mod subject;
mod verify;

use crate::answer::{Answer, Failure};
use clap::Subcommand;

pub(crate) use subject::{MOST_RANKS, Machine, blocks};

/// The commands under `rdmaccl plan`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Which algorithm does which collective, in how many parts, and where also in place
    List(list::Arguments),
    /// A plan as text, as a plan file (JSON), or drawn (DOT, SVG)
    Show(show::Arguments),
    /// Proves plans: those of a collective, or one in a file; status 1 with the fault of a wrong one
    Verify(verify::Arguments),
    /// What each algorithm should take over sizes, and which one is chosen
    Price(price::Arguments),
}

/// Runs one of them.
pub(crate) fn run(command: &Command) -> Result<Answer, Failure> {
    match command {
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Price(arguments) => price::run(arguments),
    }
}

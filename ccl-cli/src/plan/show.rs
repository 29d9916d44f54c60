//! `rdmaccl plan show`: a plan as text, as a file, as a picture.

use super::subject::{self, COLLECTIVES, MOST_RANKS, Machine, Named};
use crate::answer::{Answer, Failure};
use crate::size;
use ccl::algorithms::{self, Algorithm};
use ccl::cost::Candidates;
use ccl::plan::{Placement, Plan, Program, Spec};
use ccl::{Collective, Config, Rank};
use clap::ValueEnum;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_parser = subject::collective, help = COLLECTIVES)]
    collective: Collective,
    /// Ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks: u32,
    /// Hosts on which the ranks lie, in equal numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts: u32,
    /// Algorithm; without it the one that would be chosen for --bytes
    #[arg(short, long, value_name = "NAME", value_parser = subject::algorithm)]
    algorithm: Option<Named>,
    /// Root of a collective that has one [default: 0]
    #[arg(long, value_name = "RANK")]
    root: Option<Rank>,
    /// Only what this rank does, as text
    #[arg(long, value_name = "RANK")]
    rank: Option<Rank>,
    /// Size for which an algorithm is chosen, counted as in the perf programs
    #[arg(short, long, value_name = "SIZE", default_value = "1M", value_parser = size::parse, conflicts_with = "algorithm")]
    bytes: usize,
    #[arg(short, long, value_enum, default_value_t = Format::Text, help = "text, json (a plan file), dot (Graphviz) or svg",
          hide_possible_values = true)]
    format: Format,
    /// Into this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Dot,
    Svg,
}

pub(super) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let Arguments { collective, ranks, rank, format, .. } = *arguments;
    let placement = subject::placement(ranks, arguments.hosts)?;
    let root = subject::root(collective, ranks, arguments.root)?;
    let algorithm = match arguments.algorithm {
        Some(Named(algorithm)) => algorithm,
        None => chosen(arguments, placement, root)?,
    };
    subject::able(algorithm, collective, placement)?;
    let text = match rank {
        Some(_) if format != Format::Text => {
            return Err("--rank shows text; a picture or a plan file holds all ranks".to_string().into());
        }
        Some(rank) if rank >= ranks => {
            return Err(format!("--rank {rank} with {ranks} ranks: it is one of 0 to {}", ranks - 1).into());
        }
        Some(rank) => one(algorithm, (collective, placement), root, rank)?,
        None => {
            subject::whole(ranks)?;
            let plan =
                algorithms::plan(algorithm, collective, placement, root).ok_or("no plan".to_string())?;
            match format {
                Format::Text => plan.to_string(),
                Format::Json => plan.to_json() + "\n",
                Format::Dot => plan.to_dot(),
                Format::Svg => plan.to_svg(),
            }
        }
    };
    Ok(Answer::new(text).into_file(arguments.output.as_deref()))
}

fn chosen(
    arguments: &Arguments,
    placement: Placement,
    root: Rank,
) -> Result<&'static dyn Algorithm, Failure> {
    let Arguments { collective, ranks, bytes, .. } = *arguments;
    let machine = Machine::here(Config::from_env()?, placement)?;
    let candidates = Candidates::new(collective, placement, root)?;
    let block = bytes / subject::blocks(collective, ranks);
    Ok(machine.choose(&candidates, block, false, None)?.algorithm)
}

/// The program of one rank, without writing those of the others.
fn one(
    algorithm: &dyn Algorithm,
    (collective, placement): (Collective, Placement),
    root: Rank,
    rank: Rank,
) -> Result<String, Failure> {
    let parts = algorithm.parts(collective, placement).ok_or("no plan".to_string())?;
    let spec = Spec::placed(collective, placement, root, parts);
    let mut programs = vec![Program::default(); placement.ranks as usize];
    programs[rank as usize] = algorithm.program(&spec, rank);
    let plan = Plan { spec, algorithm: algorithm.name().to_string(), programs };
    Ok(format!("{}\n{}", plan.title(), plan.text_of(rank)))
}

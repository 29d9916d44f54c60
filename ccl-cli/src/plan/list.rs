//! `rdmaccl plan list`: who does what.

use crate::answer::{Answer, Failure};
use crate::plan::subject::{self, MOST_RANKS};
use crate::table::Table;
use ccl::plan::Placement;
use ccl::{Collective, algorithms};
use serde::Serialize;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// For this many ranks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks: u32,
    /// Hosts on which the ranks lie, in equal numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// What an algorithm does with a collective.
#[derive(Serialize)]
struct Entry {
    algorithm: &'static str,
    collective: &'static str,
    /// Parts into which it cuts a block.
    parts: u32,
    in_place: bool,
    /// About how many messages wait for each other in a row.
    depth: u32,
}

pub(super) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let placement = subject::placement(arguments.ranks, arguments.hosts)?;
    if arguments.json {
        let entries: Vec<_> = algorithms::all()
            .iter()
            .flat_map(|algorithm| Collective::ALL.into_iter().filter_map(|c| entry(*algorithm, c, placement)))
            .collect();
        let text = serde_json::to_string_pretty(&entries).map_err(|e| e.to_string())?;
        return Ok(Answer::new(text + "\n"));
    }
    let names = Collective::ALL.iter().map(|c| c.name().to_string());
    let mut table = Table::with(std::iter::once(subject::words(placement)).chain(names).collect(), 1);
    for algorithm in algorithms::all() {
        let cells =
            Collective::ALL.into_iter().map(|collective| match entry(*algorithm, collective, placement) {
                None => "-".to_string(),
                Some(entry) => format!("{}{}", entry.parts, if entry.in_place { "" } else { "*" }),
            });
        table.row(std::iter::once(algorithm.name().to_string()).chain(cells));
    }
    let text = table.text(0);
    let place = if text.contains('*') { "*: not in place. " } else { "All also in place. " };
    let legend = format!(
        "\nA number: the parts into which the algorithm cuts a block. {place}-: it does not do this for these ranks.\n"
    );
    Ok(Answer::new(text + &legend))
}

fn entry(
    algorithm: &dyn algorithms::Algorithm,
    collective: Collective,
    placement: Placement,
) -> Option<Entry> {
    Some(Entry {
        algorithm: algorithm.name(),
        collective: collective.name(),
        parts: algorithm.parts(collective, placement)?,
        in_place: algorithm.in_place_safe(collective, placement),
        depth: algorithm.depth(collective, placement),
    })
}

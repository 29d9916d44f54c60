//! `rdmaccl plan price`: what each algorithm should take, and which one is chosen.

use super::subject::{self, COLLECTIVES, MOST_RANKS, Machine, Named};
use crate::answer::{Answer, Failure};
use crate::size::{self, Sizes};
use crate::table::Table;
use ccl::cost::{Candidates, Choice};
use ccl::plan::Placement;
use ccl::{Collective, Config, Rank};
use serde::Serialize;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_parser = subject::collective, help = COLLECTIVES)]
    collective: Collective,
    /// Ranks, on this machine or --hosts of its kind
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks: u32,
    /// Hosts on which the ranks lie, in equal numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts: u32,
    /// Sizes, counted as in the perf programs: one, or a range in steps of a factor of 4
    #[arg(short, long, value_name = "SIZES", default_value = "8..64M")]
    bytes: Sizes,
    /// Only this algorithm
    #[arg(short, long, value_name = "NAME", value_parser = subject::algorithm)]
    algorithm: Option<Named>,
    /// Root of a collective that has one [default: 0]
    #[arg(long, value_name = "RANK")]
    root: Option<Rank>,
    /// Price for so many cores with the built-in constants [default: this machine, with its profile]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    cores: Option<u32>,
    /// With one buffer for input and output
    #[arg(long)]
    in_place: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// One size.
#[derive(Serialize)]
struct Row {
    size: usize,
    /// Bytes of one block.
    block: usize,
    chosen: &'static str,
    tile_bytes: usize,
    /// What decided on the tile.
    tile_from: &'static str,
    prices: Vec<Price>,
}

/// What an algorithm should take.
#[derive(Serialize)]
struct Price {
    algorithm: &'static str,
    predicted_us: f64,
}

pub(super) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let Arguments { collective, ranks, in_place, .. } = *arguments;
    let placement = subject::placement(ranks, arguments.hosts)?;
    let root = subject::root(collective, ranks, arguments.root)?;
    let only = arguments.algorithm.map(|Named(algorithm)| algorithm);
    if let Some(algorithm) = only {
        subject::able(algorithm, collective, placement)?;
    }
    let config = Config::from_env()?;
    let machine = match arguments.cores {
        Some(cores) => Machine::built_in(config, cores, placement),
        None => Machine::here(config, placement)?,
    };
    let candidates = Candidates::new(collective, placement, root)?;
    let rows: Vec<_> = arguments
        .bytes
        .0
        .iter()
        .map(|&size| row(&machine, &candidates, size, in_place, only.map(|a| a.name())))
        .collect::<Result<_, ccl::Error>>()?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|e| e.to_string())?;
        return Ok(Answer::new(text + "\n"));
    }
    Ok(Answer::new(head(arguments, placement, &machine) + &body(&rows)))
}

fn row(
    machine: &Machine,
    candidates: &Candidates,
    size: usize,
    in_place: bool,
    only: Option<&str>,
) -> Result<Row, ccl::Error> {
    let (collective, placement) = (candidates.collective(), candidates.placement());
    let block = size / subject::blocks(collective, placement.ranks);
    let chosen = machine.choose(candidates, block, in_place, only)?;
    let fits = candidates.algorithms().filter(|a| {
        (!in_place || a.in_place_safe(collective, placement)) && only.is_none_or(|name| a.name() == name)
    });
    let price = |algorithm: &'static str| {
        let Choice { predicted_ns, .. } = machine.choose(candidates, block, in_place, Some(algorithm))?;
        Ok(Price { algorithm, predicted_us: predicted_ns / 1e3 })
    };
    let prices = fits.map(|a| price(a.name())).collect::<Result<_, ccl::Error>>()?;
    let tile_from = match machine.config.tile_bytes {
        Some(_) => "RDMACCL_TILE_BYTES",
        None if chosen.tile_bytes == machine.model.slot_bytes => "the slot",
        None => "the price",
    };
    let (chosen, tile_bytes) = (chosen.algorithm.name(), chosen.tile_bytes);
    Ok(Row { size, block, chosen, tile_bytes, tile_from, prices })
}

fn head(arguments: &Arguments, placement: Placement, machine: &Machine) -> String {
    let Arguments { collective, in_place, .. } = *arguments;
    let model = &machine.model;
    let constants = &model.constants;
    let place = if in_place { ", in place" } else { "" };
    let wanted = match machine.config.algorithm_for(collective, placement) {
        Some(name) if arguments.algorithm.is_none() => format!("RDMACCL_ALGO wants {name}.\n"),
        _ => String::new(),
    };
    let net = match placement.hosts {
        1 => String::new(),
        _ => format!(
            "Between hosts a message takes {:.1} us; a host sends {:.0} GB/s.\n",
            model.net.latency_ns / 1e3,
            1.0 / model.net.ns_per_byte
        ),
    };
    let (ranks, each) = (subject::words(placement), if placement.hosts == 1 { "" } else { " each" });
    format!(
        "{collective} of {ranks}{place} on {} cores{each}: predicted µs; * is chosen.\n\
         A message takes {:.0} ns, a move {:.0} ns; a byte {:.4} ns to write ({:.4} out of cache), {:.4} ns to read from a \
         peer.\n{net}{wanted}\n",
        model.cores,
        constants.alpha_ns,
        constants.step_ns,
        constants.beta_ns_per_byte,
        constants.far_beta_ns_per_byte,
        constants.gamma_ns_per_byte
    )
}

fn body(rows: &[Row]) -> String {
    let algorithms = rows.first().map_or(&[][..], |row| &row.prices);
    let names =
        ["size", "block"].into_iter().chain(algorithms.iter().map(|p| p.algorithm)).chain(["tile", "from"]);
    let mut table = Table::with(names.map(str::to_string).collect(), 0);
    for row in rows {
        let prices = row.prices.iter().map(|price| {
            let mark = if price.algorithm == row.chosen { "*" } else { " " };
            format!("{:.2}{mark}", price.predicted_us)
        });
        let lead = [size::short(row.size), size::short(row.block)];
        let tile = [size::short(row.tile_bytes), row.tile_from.to_string()];
        table.row(lead.into_iter().chain(prices).chain(tile));
    }
    table.text(0)
}

//! `--compare`: every algorithm and length of pieces, measured in turns beside the one that is chosen.

use crate::buffers::Pair;
use crate::sizes;
use crate::work::Work;
use crate::{ranks, table};
use ccl::{Communicator, ReduceOp, Result};
use std::fmt::Write as _;
use std::time::Instant;

/// Shortest pieces that take part.
const SHORTEST_TILE: usize = 8 << 10;
/// Times that everybody has its turn.
const TURNS: usize = 9;
/// Microseconds that a turn should last.
const TURN_US: f64 = 1000.0;
/// Who takes so many times as long as the fastest in the first turn has no more turns.
const HOPELESS: f64 = 2.0;

/// One way to make a call.
struct Entrant {
    algorithm: &'static str,
    tile_bytes: usize,
    predicted_us: f64,
    /// What a call took on the slowest rank, one for each turn, in microseconds.
    turns: Vec<f64>,
}

impl Entrant {
    fn median(&self) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns[turns.len() / 2]
    }
}

/// Measures all of them. Returns what rank 0 prints: a line for each, the fastest first, with a `*` for the one that is
/// chosen, and above it what was chosen against the fastest.
pub(crate) fn run(comm: &mut Communicator, work: &Work, memory: &mut Pair, in_place: bool) -> Result<String> {
    let chosen = comm.explain(work.call(), in_place)?;
    let mut entrants = entrants(comm, work, in_place)?;
    for turn in 0..TURNS {
        for entrant in &mut entrants {
            comm.set_algorithm(Some(entrant.algorithm))?;
            comm.set_tile_bytes(Some(entrant.tile_bytes));
            let calls = entrant.turns.last().map_or(1, |us| (TURN_US / us).clamp(1.0, 5000.0) as u32);
            let time = time(comm, work, memory, in_place, calls)?;
            entrant.turns.push(time);
        }
        if turn == 0 {
            let fastest = entrants.iter().map(Entrant::median).fold(f64::INFINITY, f64::min);
            entrants.retain(|e| e.median() <= HOPELESS * fastest || is(e, &chosen));
        }
    }
    comm.set_algorithm(None)?;
    comm.set_tile_bytes(None);
    for entrant in &mut entrants {
        // One call alone says who is hopeless, and how many make a turn.
        entrant.turns.remove(0);
    }
    entrants.sort_by(|a, b| a.median().total_cmp(&b.median()));
    Ok(told(&entrants, &chosen, in_place))
}

fn is(entrant: &Entrant, chosen: &ccl::Explanation) -> bool {
    let same_pieces = entrant.tile_bytes == chosen.tile_bytes || chosen.tiles == 1;
    entrant.algorithm == chosen.algorithm && same_pieces
}

/// All that differ: a piece that is longer than what there is to cut is no shorter one.
fn entrants(comm: &mut Communicator, work: &Work, in_place: bool) -> Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    for name in ccl::algorithm_names() {
        if !ccl::algorithm_does(name, work.call().collective, comm.placement(), in_place) {
            continue;
        }
        comm.set_algorithm(Some(name))?;
        let mut wanted = usize::MAX;
        loop {
            comm.set_tile_bytes(Some(wanted));
            let plan = comm.explain(work.call(), in_place)?;
            let (algorithm, tile_bytes) = (plan.algorithm, plan.tile_bytes);
            if plan.tiles > 1 || wanted == usize::MAX {
                let predicted_us = plan.predicted_ns / 1e3;
                entrants.push(Entrant { algorithm, tile_bytes, predicted_us, turns: Vec::new() });
            }
            wanted = tile_bytes / 2;
            if wanted < SHORTEST_TILE {
                break;
            }
        }
    }
    Ok(entrants)
}

/// Microseconds of a call on the slowest rank, so many in a row.
fn time(comm: &mut Communicator, work: &Work, memory: &mut Pair, in_place: bool, calls: u32) -> Result<f64> {
    let layout = work.layout();
    // The first one prepares the call, the second one finds it prepared.
    for _ in 0..2 {
        work.run(comm, memory.for_call(&layout, in_place))?;
    }
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..calls {
        work.run(comm, memory.for_call(&layout, in_place))?;
    }
    let own = start.elapsed().as_nanos() as u64;
    Ok(ranks::reduce(comm, own, ReduceOp::Max)? as f64 / f64::from(calls) / 1e3)
}

fn told(entrants: &[Entrant], chosen: &ccl::Explanation, in_place: bool) -> String {
    let name = |e: &Entrant| format!("{}/{}", e.algorithm, sizes::short(e.tile_bytes as u64));
    let mut text = String::new();
    let (Some(fastest), Some(own)) = (entrants.first(), entrants.iter().find(|e| is(e, chosen))) else {
        return text;
    };
    let _ = writeln!(
        text,
        "#   {}: chosen {}, {:.2} us; fastest {}, {:.2} us: ratio {:.2}",
        table::place(in_place),
        name(own),
        own.median(),
        name(fastest),
        fastest.median(),
        own.median() / fastest.median(),
    );
    for entrant in entrants {
        let _ = writeln!(
            text,
            "#     {} {:<14} measured {:>9.2} us  predicted {:>9.2} us  ratio {:.2}",
            if is(entrant, chosen) { '*' } else { ' ' },
            name(entrant),
            entrant.median(),
            entrant.predicted_us,
            entrant.median() / entrant.predicted_us,
        );
    }
    text
}

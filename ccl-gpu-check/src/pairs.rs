//! What ranks have for each other pair by pair: all-to-alls of uneven blocks, and sends and receives.

use crate::bench::{Bench, check, fill, verdict};
use crate::outcome::Outcome;
use crate::random::Random;
use crate::time::microseconds;
use crate::ways::Ways;
use ccl_core::algorithms;
use ccl_core::engine::{Blocks, Layout};
use ccl_core::{Collective, DataType};
use ccl_transport_cuda::gang::{Gang, GangError, Shape, Work};
use ccl_transport_cuda::program::{Geometry, Program, Rule};
use serde_json::json;

/// A call of all ranks.
struct Pairs {
    /// Of an all-to-all each rank's to each, by rank.
    ways: Ways,
    is_all_to_all: bool,
    geometry: Geometry,
    threads: u32,
}

impl Pairs {
    fn name(&self) -> String {
        let what = if self.is_all_to_all { "all_to_all of uneven blocks" } else { "sends and receives" };
        format!("{what}, {:?}, {:?}", self.ways, self.geometry)
    }

    fn inputs(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let len = |rank| self.ways.lens(rank).0;
        (0..self.ways.ranks).map(|rank| random.elements(DataType::U8, None, len(rank))).collect()
    }

    fn program(&self, rank: usize) -> Result<Program, GangError> {
        let (ranks, tile_bytes) = (self.ways.ranks as u32, self.geometry.slot_bytes);
        if !self.is_all_to_all {
            let queues = self.ways.queues(rank);
            return Ok(Program::queues((rank as u32, ranks), &queues, tile_bytes, self.geometry)?);
        }
        let exchange = algorithms::by_name("exchange").expect("an algorithm of the library");
        let plan = algorithms::plan(exchange, Collective::AllToAll, ranks, 0).expect("it makes all-to-alls");
        let mut lens = (Vec::new(), Vec::new());
        for &(from, to, len) in &self.ways.all {
            lens.0.extend((from == rank).then_some(len));
            lens.1.extend((to == rank).then_some(len));
        }
        let blocks = Blocks { input: Blocks::packed(&lens.0), output: Blocks::packed(&lens.1) };
        let layout = Layout::uneven(&plan.spec, rank as u32, &blocks, DataType::U8, tile_bytes)?;
        Ok(Program::encode(&plan.programs[rank], &layout, self.geometry)?)
    }

    fn gang(&self, bench: &Bench) -> Result<Gang, GangError> {
        let programs = (0..self.ways.ranks).map(|rank| self.program(rank)).collect::<Result<Vec<_>, _>>()?;
        let shape = Shape { threads: self.threads, ..Shape::default() };
        Gang::new(
            &bench.device,
            &bench.kernels,
            &bench.streams,
            Work::Plan(&programs),
            &Rule::copies(),
            &shape,
        )
    }
}

/// Random ones, several launches each on the same memory; how many.
pub(crate) fn correct(bench: &Bench, random: &mut Random, outcome: &mut Outcome) -> Result<usize, GangError> {
    let (mut launches, mut wrong, mut cases, mut too_large) = (0, 0, 0, 0);
    let slots = bench.scale(&[128, 4096, 65_536][..], &[128]);
    for round in 0..bench.scale(24, 6) {
        let ranks = 2 + random.below(bench.scale(7, 2));
        let is_all_to_all = round % 2 == 0;
        let slot_bytes = random.pick(slots);
        let mut len = || [0, random.below(9), random.below(5 * slot_bytes), 2 * slot_bytes][random.below(4)];
        let all = match is_all_to_all {
            true => (0..ranks * ranks).map(|pair| (pair / ranks, pair % ranks, len())).collect(),
            false => {
                let lens: Vec<usize> = (0..2 * ranks).map(|_| len()).collect();
                lens.into_iter().map(|len| (random.below(ranks), random.below(ranks), len)).collect()
            }
        };
        let geometry = Geometry { slot_bytes, credits: 4, shares: random.pick(&[1, 2]) };
        let threads = random.pick(bench.scale(&[32, 128][..], &[2, 3]));
        let pairs = Pairs { ways: Ways { ranks, all }, is_all_to_all, geometry, threads };
        if !bench.wants(&pairs.name()) || !bench.has_time() {
            continue;
        }
        let mut gang = match pairs.gang(bench) {
            Err(GangError::TooLarge { .. }) => {
                too_large += 1;
                continue;
            }
            made => made?,
        };
        cases += 1;
        for launch in 0..bench.scale(4, 2) {
            let inputs = pairs.inputs(random);
            launches += 1;
            if let Some(what) = check(&mut gang, &inputs, &pairs.ways.right(&inputs))? {
                wrong += 1;
                outcome.fail(format!("{}: launch {launch}: {what}", pairs.name()));
                break;
            }
        }
    }
    let rest = if too_large > 0 { format!(", {too_large} do not fit on the device") } else { String::new() };
    outcome.say(format!("pairs: {cases} cases, {launches} launches, {wrong} wrong{rest}"));
    outcome
        .put("pairs", json!({"cases": cases, "launches": launches, "wrong": wrong, "too_large": too_large}));
    Ok(cases)
}

/// How long an all-to-all takes in which the blocks of each rank are of two lengths, and a round of sends to the next rank.
pub(crate) fn time(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let bytes = bench.scale(64 << 20, 1 << 12);
    let mut told = Vec::new();
    for &ranks in bench.scale(&[2, 4, 8][..], &[2]) {
        for is_all_to_all in [true, false] {
            let share = bytes / (2 * ranks);
            let all = match is_all_to_all {
                true => (0..ranks * ranks)
                    .map(|pair| (pair / ranks, pair % ranks, share * (1 + 2 * ((pair / ranks + pair) % 2))))
                    .collect(),
                false => (0..ranks).map(|rank| (rank, (rank + 1) % ranks, bytes)).collect(),
            };
            let lanes = if is_all_to_all { ranks as u32 } else { 2 };
            let shares = bench.scale((128 / (ranks as u32 * lanes)).max(1), 1);
            let geometry = Geometry { slot_bytes: bench.scale(64 << 10, 128), credits: 4, shares };
            let pairs =
                Pairs { ways: Ways { ranks, all }, is_all_to_all, geometry, threads: bench.scale(512, 2) };
            let mut gang = match pairs.gang(bench) {
                Err(GangError::TooLarge { .. }) => continue,
                made => made?,
            };
            let inputs = pairs.inputs(&mut Random(3));
            fill(&mut gang, &inputs)?;
            let time = microseconds(&gang, bench, bench.scale((5, 3), (1, 1)), || gang.launch())?;
            if let Some(what) = verdict(&gang, &pairs.ways.right(&inputs))? {
                outcome.fail(format!("{}: {what}", pairs.name()));
                continue;
            }
            let moved: usize = pairs.ways.all.iter().map(|way| way.2).sum();
            let name = if is_all_to_all { "uneven all_to_all" } else { "send to the next" };
            let rate = moved as f64 / time / 1e3;
            outcome.say(format!(
                "{name} of {ranks} x {} KiB: {time:.1} us, {rate:.0} GB/s together",
                bytes >> 10
            ));
            told.push(json!({"call": name, "ranks": ranks, "bytes": moved, "us": time}));
        }
    }
    outcome.put("pairs", json!(told));
    Ok(())
}

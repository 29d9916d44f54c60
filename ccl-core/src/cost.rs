//! The price of a plan, and the choice of the cheapest.
//!
//! The model is α–β–γ with the time that a rank itself needs: a message takes α from rank to rank, a byte
//! written takes β, a byte read from a link γ, a move its step. Combining is free: the kernels do it while
//! they wait for the bytes. A [`Profile`] says how much of each an algorithm
//! asks for, read off the programs of the ranks that have most to do; pricing it for a size is
//! arithmetic. So a communicator makes the profiles of a collective once ([`Candidates`]) and chooses
//! among them for each call.
//!
//! A call of several tiles is a pipeline: the first tile pays the whole row of dependent messages, each
//! further one what the busiest rank needs for it, and one α wherever a rank that has sent must wait for what
//! comes back before it can go on. With more ranks than cores the work of all ranks
//! shares the cores, and a message in the row also waits until its receiver gets a core.

use crate::algorithms::{self, Algorithm};
use crate::error::{Error, Result};
use crate::plan::{Collective, Program, Rank, Sink, Source, Spec};
use std::collections::BTreeSet;

/// What things take on a machine. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// A short message from one rank to another.
    pub alpha_ns: f64,
    /// A move, before its first byte.
    pub step_ns: f64,
    /// One end of a message at the rank that sends or receives it: credit, tag and counters.
    pub message_ns: f64,
    /// A byte written, while all buffers fit the cache.
    pub beta_ns_per_byte: f64,
    /// A byte written, when they do not.
    pub far_beta_ns_per_byte: f64,
    /// A byte read from a link, on top of writing it somewhere: it comes from another core's cache.
    pub gamma_ns_per_byte: f64,
    /// Giving the core to another rank.
    pub switch_ns: f64,
    /// Bytes of cache that the ranks of this machine share.
    pub cache_bytes: f64,
    /// Whether a piece for several peers is written once.
    pub shared_slots: bool,
    /// Cores of this machine.
    pub cores: u32,
    /// Ranks on this machine.
    pub local_ranks: u32,
    /// Longest piece.
    pub slot_bytes: usize,
}

impl Model {
    /// Ranks of one machine that talk through shared memory.
    ///
    /// The constants are measurements on two Zen 5 cores: a cache line takes 50 to 60 ns one way, a stream
    /// of slots moves 60 GB/s, a copy 80 GB/s in cache and 27 to memory; `sched_yield` takes 1.4 µs on one
    /// core.
    pub fn shared_memory(cores: u32, ranks: u32) -> Model {
        Model {
            alpha_ns: 60.0,
            step_ns: 15.0,
            message_ns: 10.0,
            beta_ns_per_byte: 1.0 / 80.0,
            far_beta_ns_per_byte: 1.0 / 27.0,
            gamma_ns_per_byte: 1.0 / 60.0,
            switch_ns: 1400.0,
            cache_bytes: 16e6,
            shared_slots: true,
            cores: cores.max(1),
            local_ranks: ranks.max(1),
            slot_bytes: 64 << 10,
        }
    }

    /// Ranks that share one core, at least 1.
    fn crowding(&self) -> f64 {
        (f64::from(self.local_ranks) / f64::from(self.cores.max(1))).max(1.0)
    }
}

/// What a rank does in one tile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    moves: f64,
    /// Ends of messages.
    messages: f64,
    /// Pieces written, one for several peers counted once.
    writes: f64,
    /// Pieces written more if slots are not shared.
    unshared_writes: f64,
    /// Pieces read from links.
    reads: f64,
    /// Times that the rank, having sent, waits for a message.
    waits: f64,
}

impl Work {
    fn of(program: &Program) -> Work {
        let mut work = Work::default();
        let mut has_sent = false;
        for m in program.lanes.iter().flat_map(|lane| &lane.moves) {
            let reads = m.from.iter().filter(|s| matches!(s, Source::Link(_))).count() as f64;
            if reads > 0.0 && has_sent {
                work.waits += 1.0;
                has_sent = false;
            }
            work.moves += 1.0;
            work.writes += m.into.len() as f64;
            work.reads += reads;
            work.messages += reads;
            for sink in &m.into {
                if let Sink::Links(links) = sink {
                    has_sent = true;
                    work.messages += links.peers.len() as f64;
                    work.unshared_writes += links.peers.len() as f64 - 1.0;
                }
            }
        }
        work
    }

    /// Time for pieces of this many bytes.
    fn time(&self, model: &Model, beta: f64, piece: f64) -> f64 {
        let writes = self.writes + if model.shared_slots { 0.0 } else { self.unshared_writes };
        self.moves * model.step_ns
            + self.messages * model.message_ns
            + self.waits * model.alpha_ns
            + piece * (writes * beta + self.reads * model.gamma_ns_per_byte)
    }
}

/// What an algorithm asks for, whatever the size of the call.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    spec: Spec,
    depth: f64,
    /// Of the ranks that may have most to do.
    work: Vec<Work>,
}

impl Profile {
    /// Reads it off some ranks' programs; `None` where the algorithm does not do this. Takes time in
    /// proportion to the number of ranks.
    pub fn new(algorithm: &dyn Algorithm, collective: Collective, ranks: u32, root: Rank) -> Option<Profile> {
        let spec = Spec { collective, ranks, root, parts: algorithm.parts(collective, ranks)? };
        // The root and its neighbours, the tops of trees, and one of the crowd.
        let from_root = [0, 1, 2, ranks - 1, ranks / 2, 1 << ranks.ilog2() >> 1];
        let sample: BTreeSet<Rank> = from_root
            .iter()
            .map(|d| ((u64::from(root) + u64::from(*d)) % u64::from(ranks)) as Rank)
            .collect();
        let work = sample.into_iter().map(|rank| Work::of(&algorithm.program(&spec, rank))).collect();
        Some(Profile { spec, depth: f64::from(algorithm.depth(collective, ranks)), work })
    }

    /// Nanoseconds for blocks of `block_bytes` bytes in pieces of at most `tile_bytes`. Grows with the
    /// size of the blocks.
    pub fn price(&self, model: &Model, block_bytes: usize, tile_bytes: usize) -> f64 {
        let Spec { collective, ranks, root, parts } = self.spec;
        let part = block_bytes as f64 / f64::from(parts);
        let piece = part.min(tile_bytes.max(1) as f64);
        let tiles = if part > piece { part / piece } else { 1.0 };

        // All buffers of the ranks on this machine, the root among them.
        let blocks = |rank| {
            let input = collective.input_blocks(ranks, rank, root);
            f64::from(input) + f64::from(collective.output_blocks(ranks, rank, root))
        };
        let others = f64::from(model.local_ranks.max(1) - 1) * blocks((root + 1) % ranks);
        let footprint = block_bytes as f64 * (blocks(root) + others);
        let near = model.cache_bytes.min(footprint);
        let beta = if footprint > 0.0 {
            (near * model.beta_ns_per_byte + (footprint - near) * model.far_beta_ns_per_byte) / footprint
        } else {
            model.beta_ns_per_byte
        };

        let times = self.work.iter().map(|w| w.time(model, beta, piece));
        let (busiest, sum) = times.fold((0.0, 0.0), |(most, sum), t| (t.max(most), sum + t));
        let mean = sum / self.work.len() as f64;
        let crowding = model.crowding();
        let tile = busiest.max(mean * crowding);

        let switch = if crowding > 1.0 { model.switch_ns * crowding } else { 0.0 };
        let hop = model.step_ns + 2.0 * model.message_ns + piece * (beta + model.gamma_ns_per_byte);
        // Whoever receives the last piece is busy with it after its sender is done.
        let drain = if self.depth > 0.0 { hop } else { 0.0 };
        self.depth * (model.alpha_ns + switch) + tile.max(self.depth * hop) + (tiles - 1.0) * tile + drain
    }
}

/// An algorithm for a call.
#[derive(Clone, Copy)]
pub struct Choice {
    /// Which one.
    pub algorithm: &'static dyn Algorithm,
    /// Longest piece in bytes; at most the model's slot.
    pub tile_bytes: usize,
    /// What the call should take, in nanoseconds.
    pub predicted_ns: f64,
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Choice { algorithm, tile_bytes, predicted_ns } = self;
        write!(f, "{} in pieces of {tile_bytes} bytes, {predicted_ns:.0} ns", algorithm.name())
    }
}

/// The algorithms for one collective on one communicator, ready to be priced.
pub struct Candidates {
    collective: Collective,
    ranks: u32,
    profiles: Vec<(&'static dyn Algorithm, Profile)>,
}

/// Shortest pieces that are tried: what shorter ones gain in overlap they lose in steps, as measured.
const MIN_TILE: usize = 32 << 10;

impl Candidates {
    /// Profiles of all algorithms that do this. Takes time in proportion to the number of ranks; keep it.
    ///
    /// # Errors
    /// No ranks, or a root that is none of them.
    pub fn new(collective: Collective, ranks: u32, root: Rank) -> Result<Candidates> {
        if root >= ranks {
            return Err(Error::invalid(
                format!("root {root} of {ranks} ranks"),
                "the root is one of the ranks 0 to n-1",
            ));
        }
        let all = algorithms::all().iter();
        let profiles = all.filter_map(|a| Some((*a, Profile::new(*a, collective, ranks, root)?))).collect();
        Ok(Candidates { collective, ranks, profiles })
    }

    /// What they are for.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// For how many ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Those that do this, in the order in which they are preferred at equal prices.
    pub fn algorithms(&self) -> impl Iterator<Item = &'static dyn Algorithm> {
        self.profiles.iter().map(|(algorithm, _)| *algorithm)
    }

    /// The cheapest for blocks of `block_bytes` bytes; or, if `only` names one, that one. Allocates
    /// only for an error.
    ///
    /// # Errors
    /// `only` names none that does this; the error lists those that do.
    pub fn choose(
        &self,
        model: &Model,
        block_bytes: usize,
        in_place: bool,
        only: Option<&str>,
    ) -> Result<Choice> {
        let fits = || {
            let safe = |a: &dyn Algorithm| !in_place || a.in_place_safe(self.collective, self.ranks);
            self.profiles.iter().filter(move |(a, _)| safe(*a))
        };
        let mut best: Option<Choice> = None;
        for (algorithm, profile) in fits().filter(|(a, _)| only.is_none_or(|name| a.name() == name)) {
            let prices = tiles(model).map(|tile_bytes| {
                let predicted_ns = profile.price(model, block_bytes, tile_bytes);
                Choice { algorithm: *algorithm, tile_bytes, predicted_ns }
            });
            let cheapest = prices.reduce(|a, b| if b.predicted_ns < a.predicted_ns { b } else { a });
            best = match (best, cheapest) {
                (Some(best), Some(new)) if new.predicted_ns >= best.predicted_ns * (1.0 - MARGIN) => {
                    Some(best)
                }
                (best, new) => new.or(best),
            };
        }
        best.ok_or_else(|| {
            let names: Vec<_> = fits().map(|(a, _)| a.name()).collect();
            let place = if in_place { " in place" } else { "" };
            Error::invalid(
                format!(
                    "algorithm '{}' for {}{place} on {} ranks",
                    only.unwrap_or("any"),
                    self.collective,
                    self.ranks
                ),
                format!("one of {}", names.join(", ")),
            )
        })
    }
}

/// By how much an algorithm must be cheaper than one that stands before it, which is the simpler one: the
/// model knows no better.
const MARGIN: f64 = 0.05;

/// Lengths of pieces to try: the slot, and halves of it. The longest first, which wins where all are the
/// same.
fn tiles(model: &Model) -> impl Iterator<Item = usize> {
    let slot = model.slot_bytes.max(1);
    std::iter::successors(Some(slot), |tile| Some(tile / 2)).take_while(move |t| *t == slot || *t >= MIN_TILE)
}

/// Nanoseconds for one call of an algorithm, or `None` where it does not do this. See [`Profile::price`].
pub fn price(
    model: &Model,
    algorithm: &dyn Algorithm,
    collective: Collective,
    ranks: u32,
    root: Rank,
    block_bytes: usize,
    tile_bytes: usize,
) -> Option<f64> {
    Some(Profile::new(algorithm, collective, ranks, root)?.price(model, block_bytes, tile_bytes))
}

/// [`Candidates::choose`], for a single call.
///
/// # Errors
/// As [`Candidates::new`] and [`Candidates::choose`].
pub fn choose(
    model: &Model,
    collective: Collective,
    ranks: u32,
    root: Rank,
    block_bytes: usize,
    in_place: bool,
    only: Option<&str>,
) -> Result<Choice> {
    Candidates::new(collective, ranks, root)?.choose(model, block_bytes, in_place, only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(ranks: u32, collective: Collective, bytes: usize) -> Choice {
        let model = Model::shared_memory(ranks, ranks);
        choose(&model, collective, ranks, 0, bytes, false, None).unwrap()
    }

    #[test]
    fn short_calls_go_direct_and_long_ones_save_bytes() {
        for ranks in [2, 3, 4, 8] {
            assert_eq!(best(ranks, Collective::AllReduce, 8).algorithm.name(), "oneshot", "n={ranks}");
            let long = best(ranks, Collective::AllReduce, 64 << 20).algorithm.name();
            // Of two ranks neither has to send less by sharing the work.
            let saves = if ranks == 2 { ["oneshot"; 3] } else { ["twoshot", "ring", "halving"] };
            assert!(saves.contains(&long), "n={ranks}: {long}");
        }
    }

    #[test]
    fn tiles_fit_the_slot_and_prices_are_positive_finite_and_grow() {
        for ranks in [1, 2, 3, 8, 100] {
            for collective in Collective::ALL {
                let candidates = Candidates::new(collective, ranks, ranks / 2).unwrap();
                for cores in [1, 8] {
                    let model = Model::shared_memory(cores, ranks);
                    let mut last = 0.0;
                    for bytes in std::iter::once(0).chain((0..=40).map(|bits| 1usize << bits)) {
                        let choice = candidates.choose(&model, bytes, true, None).unwrap();
                        assert!((1..=model.slot_bytes).contains(&choice.tile_bytes));
                        let ns = choice.predicted_ns;
                        assert!(
                            ns.is_finite() && ns > 0.0 && ns >= last,
                            "{collective} n={ranks} {bytes}: {ns} after {last}"
                        );
                        last = ns;
                    }
                }
            }
        }
    }

    #[test]
    fn an_override_is_obeyed_at_every_size() {
        let model = Model::shared_memory(2, 5);
        for algorithm in algorithms::all() {
            for bytes in [0, 8, 1 << 30] {
                let only = Some(algorithm.name());
                let choice = choose(&model, Collective::AllGather, 5, 0, bytes, false, only);
                match algorithm.parts(Collective::AllGather, 5) {
                    Some(_) => assert_eq!(choice.unwrap().algorithm.name(), algorithm.name()),
                    None => assert!(choice.is_err()),
                }
            }
        }
    }

    #[test]
    fn an_override_that_does_not_fit_is_told_what_does() {
        let model = Model::shared_memory(2, 4);
        for name in ["rings", "pat"] {
            let error =
                choose(&model, Collective::Gather, 4, 0, 8, false, Some(name)).unwrap_err().to_string();
            assert!(error.contains(&format!("'{name}' for gather on 4 ranks")), "{error}");
            assert!(error.contains("one of oneshot, chain, binomial"), "{error}");
        }
        assert!(choose(&model, Collective::Gather, 4, 4, 8, false, None).is_err());
        assert!(choose(&model, Collective::Gather, 0, 0, 8, false, None).is_err());
    }

    #[test]
    fn more_ranks_than_cores_cost_more_and_favour_few_dependent_messages() {
        let (wide, narrow) = (Model::shared_memory(8, 8), Model::shared_memory(2, 8));
        let ring = algorithms::by_name("ring").unwrap();
        let cost =
            |model: &Model| price(model, ring, Collective::AllReduce, 8, 0, 1 << 20, 64 << 10).unwrap();
        assert!(cost(&narrow) > cost(&wide));
        let choice = choose(&narrow, Collective::AllReduce, 8, 0, 1 << 20, false, None).unwrap();
        assert!(choice.algorithm.depth(Collective::AllReduce, 8) <= 2, "{choice:?}");
    }

    #[test]
    fn separate_slots_make_the_one_shot_dearer() {
        let shared = Model::shared_memory(8, 8);
        let separate = Model { shared_slots: false, ..shared };
        let cost = |model: &Model| {
            price(model, &algorithms::OneShot, Collective::AllReduce, 8, 0, 1 << 20, 64 << 10).unwrap()
        };
        assert!(cost(&separate) > 1.3 * cost(&shared));
    }
}

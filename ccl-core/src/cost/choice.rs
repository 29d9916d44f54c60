//! The choice of the cheapest.

use super::{Demand, Model, Price};
use crate::algorithms::{self, Algorithm};
use crate::error::{Error, Result};
use crate::plan::{Collective, Placement, Rank};

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

/// What of a choice is not to be chosen but taken as it is. `Wish::default()` leaves everything open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish<'a> {
    /// The algorithm's name.
    pub algorithm: Option<&'a str>,
    /// Longest piece in bytes; the slot, if that is shorter.
    pub tile_bytes: Option<usize>,
}

/// The algorithms for one collective on one communicator, ready to be priced.
pub struct Candidates {
    collective: Collective,
    placement: Placement,
    demands: Vec<(&'static dyn Algorithm, Demand)>,
}

/// Shortest pieces that are tried: what shorter ones gain in overlap they lose in steps, as measured.
const MIN_TILE: usize = 32 << 10;

impl Candidates {
    /// Profiles of all algorithms that do this, for ranks that lie like this (a number of them: on one host). Takes time in
    /// proportion to the number of ranks; keep it.
    ///
    /// # Errors
    /// No ranks, or a root that is none of them.
    pub fn new(collective: Collective, placement: impl Into<Placement>, root: Rank) -> Result<Candidates> {
        let placement = placement.into();
        let ranks = placement.ranks;
        if root >= ranks {
            return Err(Error::invalid(
                format!("root {root} of {ranks} ranks"),
                "the root is one of the ranks 0 to n-1",
            ));
        }
        let all = algorithms::all().iter();
        let demands = all.filter_map(|a| Some((*a, Demand::new(*a, collective, placement, root)?))).collect();
        Ok(Candidates { collective, placement, demands })
    }

    /// What they are for.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// For how many ranks.
    pub fn ranks(&self) -> u32 {
        self.placement.ranks
    }

    /// How these lie on hosts.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Those that do this, in the order in which they are preferred at equal prices.
    pub fn algorithms(&self) -> impl Iterator<Item = &'static dyn Algorithm> {
        self.demands.iter().map(|(algorithm, _)| *algorithm)
    }

    /// The cheapest for blocks of `block_bytes` bytes among those that fulfil the wish. Allocates only for an
    /// error.
    ///
    /// Ranks must choose alike, so nothing that a rank knows of itself alone may weigh here. Whether the buffers are one
    /// (`in_place`) a caller may know of its own only, so it leaves out algorithms that cannot do it and changes nothing
    /// else; all that there are can.
    ///
    /// # Errors
    /// The wish names an algorithm that does not do this; the error lists those that do.
    pub fn choose(
        &self,
        model: &Model,
        block_bytes: usize,
        in_place: bool,
        wish: Wish<'_>,
    ) -> Result<Choice> {
        let Wish { algorithm: only, tile_bytes } = wish;
        let fits = || {
            let safe = |a: &dyn Algorithm| !in_place || a.in_place_safe(self.collective, self.placement);
            self.demands.iter().filter(move |(a, _)| safe(*a))
        };
        let mut best: Option<Offer> = None;
        for (algorithm, demand) in fits().filter(|(a, _)| only.is_none_or(|name| a.name() == name)) {
            let offers = tiles(model, tile_bytes).map(|tile_bytes| {
                let price = demand.price(model, block_bytes, tile_bytes);
                Offer { algorithm: *algorithm, tile_bytes, price }
            });
            let cheapest = offers.reduce(Offer::or_cheaper);
            best = match (best, cheapest) {
                (Some(best), Some(new)) => Some(best.or_cheaper(new)),
                (best, new) => new.or(best),
            };
        }
        best.map(Choice::from).ok_or_else(|| {
            let names: Vec<_> = fits().map(|(a, _)| a.name()).collect();
            let place = if in_place { " in place" } else { "" };
            Error::invalid(
                format!(
                    "algorithm '{}' for {}{place} on {} ranks",
                    only.unwrap_or("any"),
                    self.collective,
                    self.placement.ranks
                ),
                format!("one of {}", names.join(", ")),
            )
        })
    }
}

/// An algorithm and a length of pieces, at a price.
#[derive(Clone, Copy)]
struct Offer {
    algorithm: &'static dyn Algorithm,
    tile_bytes: usize,
    price: Price,
}

impl From<Offer> for Choice {
    fn from(offer: Offer) -> Choice {
        let Offer { algorithm, tile_bytes, price } = offer;
        Choice { algorithm, tile_bytes, predicted_ns: price.ns }
    }
}

/// By how much an offer must be cheaper than one that stands before it, which is the simpler one with the longer pieces:
/// the model knows no better.
const MARGIN: f64 = 0.05;

impl Offer {
    /// The new one if that is clearly cheaper: as a whole, or, where both send the same between hosts, by what they differ in.
    fn or_cheaper(self, new: Offer) -> Offer {
        let (old, offered) = (self.price, new.price);
        let clearly = |new: f64, old: f64| new < old * (1.0 - MARGIN);
        let better =
            clearly(offered.ns, old.ns) || offered.ns <= old.ns && clearly(offered.home_ns, old.home_ns);
        if better { new } else { self }
    }
}

/// Lengths of pieces to try: the one that is wanted, or the slot and halves of it. The longest first, which wins where
/// all are the same.
fn tiles(model: &Model, wanted: Option<usize>) -> impl Iterator<Item = usize> {
    let slot = model.slot_bytes.max(1);
    let longest = wanted.map_or(slot, |tile| tile.clamp(1, slot));
    let shorter = move |tile: &usize| (wanted.is_none() && tile / 2 >= MIN_TILE).then(|| tile / 2);
    std::iter::successors(Some(longest), shorter)
}

/// Nanoseconds for one call of an algorithm, or `None` where it does not do this. See [`Demand::price`].
pub fn price(
    model: &Model,
    algorithm: &dyn Algorithm,
    collective: Collective,
    placement: impl Into<Placement>,
    root: Rank,
    block_bytes: usize,
    tile_bytes: usize,
) -> Option<f64> {
    Some(Demand::new(algorithm, collective, placement, root)?.price(model, block_bytes, tile_bytes).ns)
}

/// [`Candidates::choose`], for a single call.
///
/// # Errors
/// As [`Candidates::new`] and [`Candidates::choose`].
pub fn choose(
    model: &Model,
    collective: Collective,
    placement: impl Into<Placement>,
    root: Rank,
    block_bytes: usize,
    in_place: bool,
    wish: Wish<'_>,
) -> Result<Choice> {
    Candidates::new(collective, placement, root)?.choose(model, block_bytes, in_place, wish)
}

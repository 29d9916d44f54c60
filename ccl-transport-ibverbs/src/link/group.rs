//! Lanes that carry the same links, one for each pair of rails, and which of them a piece takes.
//!
//! A link has a home among the lanes of its group. What is short goes there, and everything where there is no other. A longer
//! piece goes where it is expected to be through first ([`Pace`](super::pace::Pace)). So messages of a link may overtake one another; the receiver
//! puts them in order by their numbers.

use super::adapter::Adapter;
use super::lane::Lane;
use super::wire::MOST_LINKS;
use crate::choice::window::SPREAD_SLOTS;

/// Longest piece that stays on its link's home: it would gain nothing elsewhere.
pub(crate) const SMALL: usize = 8192;
/// Messages that may have come beyond one that has not: a word of recovery has a bit for each.
pub(crate) const MOST_BEYOND: u32 = 64;
const _: () = assert!(SPREAD_SLOTS <= MOST_BEYOND);

/// In place of a link that there is not.
const NONE: u32 = u32::MAX;

/// Lanes between two ranks that share links.
#[derive(Debug)]
pub(crate) struct Group {
    /// One for each pair of rails, in their order.
    pub(crate) lanes: Box<[u32]>,
    /// The places of its links, by their numbers in the group.
    outgoing: [u32; MOST_LINKS as usize],
    incoming: [u32; MOST_LINKS as usize],
}

impl Group {
    pub(crate) fn new(lanes: Vec<u32>) -> Group {
        Group {
            lanes: lanes.into(),
            outgoing: [NONE; MOST_LINKS as usize],
            incoming: [NONE; MOST_LINKS as usize],
        }
    }

    /// Whether there is a choice.
    pub(crate) fn is_spread(&self) -> bool {
        self.lanes.len() > 1
    }

    /// The place of a link that pieces go out by.
    #[inline]
    pub(crate) fn outgoing(&self, link: u32) -> Option<u32> {
        self.outgoing.get(link as usize).copied().filter(|place| *place != NONE)
    }

    /// The place of a link that pieces come by.
    #[inline]
    pub(crate) fn incoming(&self, link: u32) -> Option<u32> {
        self.incoming.get(link as usize).copied().filter(|place| *place != NONE)
    }

    pub(crate) fn add_outgoing(&mut self, link: u32, place: u32) {
        self.outgoing[link as usize] = place;
    }

    pub(crate) fn add_incoming(&mut self, link: u32, place: u32) {
        self.incoming[link as usize] = place;
    }

    /// The places of all its outgoing links.
    pub(crate) fn all_outgoing(&self) -> impl Iterator<Item = usize> + use<> {
        self.outgoing.into_iter().filter(|place| *place != NONE).map(|place| place as usize)
    }

    /// The places of all its incoming links.
    pub(crate) fn all_incoming(&self) -> impl Iterator<Item = usize> + use<> {
        self.incoming.into_iter().filter(|place| *place != NONE).map(|place| place as usize)
    }

    /// A lane with room: that which is at home, if it can.
    #[inline]
    pub(crate) fn any(&self, lanes: &[Lane], home: u32) -> Option<u32> {
        let can = |lane: &u32| lanes[*lane as usize].can_take();
        if can(&home) { Some(home) } else { self.lanes.iter().copied().find(can) }
    }

    /// The lane for a long piece, if one has room for it.
    pub(crate) fn choose(
        &self,
        (lanes, adapters): (&[Lane], &[Adapter]),
        len: usize,
        now: u64,
    ) -> Option<u32> {
        let open = || self.lanes.iter().copied().filter(|lane| lanes[*lane as usize].can_take());
        // One that has rested long may have become faster.
        if let Some(rested) = open().find(|lane| lanes[*lane as usize].pace.is_worth_a_try(len, now)) {
            return Some(rested);
        }
        let until_done = |lane: &u32| {
            let lane = &lanes[*lane as usize];
            lane.pace.until_done(len, adapters[lane.seat.adapter].looked)
        };
        open().min_by(|a, b| until_done(a).total_cmp(&until_done(b)))
    }
}

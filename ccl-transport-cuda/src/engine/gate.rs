//! Wires that leave the host.
//!
//! The kernel knows slots, flags and credits, and not who is at a wire's other end. That of a wire to a rank on another host
//! is a thread of this rank's own process, its *proxy*, and the wire's memory is a [`Gate`]: flags and credits in pinned memory of the host, which the
//! device sees, and [slots](Slots). The proxy has what leaves brought to its peer's proxy by the transports that the host has, and sees to
//! it that what comes is in its slot, in the words that docs/gpu-kernels.md has.

use super::links::{CREDITS, Links};
use super::slots::{Shown, Slots};
use crate::program::{Direction, End, Wire};
use crate::sys::{Primary, Words};
use ccl_core::kernels::PieceMut;
use ccl_core::plan::Rank;
use ccl_core::transport::Window;
use ccl_core::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// What a gate will be, before it is known where its slots lie.
pub struct Draft {
    primary: Arc<Primary>,
    peers: Vec<Rank>,
    layout: Layout,
}

/// The slots of all ways to one peer, and of those from it.
pub struct Ends {
    /// Into which this rank's kernels write.
    pub outgoing: Slots,
    /// Which they read.
    pub incoming: Slots,
}

/// The memory of a rank's wires to and from ranks on other hosts, and what a proxy does with it.
///
/// A *way* is one wire's part for one share: so many lead to each peer, and as many from it, with the same numbers at both ends.
pub struct Gate {
    primary: Arc<Primary>,
    peers: Vec<Rank>,
    layout: Layout,
    /// Flags and credits.
    words: Words,
    ends: Vec<Ends>,
}

impl Draft {
    pub(super) fn new(primary: &Arc<Primary>, peers: Vec<Rank>, classes: [Links; 2]) -> Draft {
        let layout = Layout { peers: peers.len(), classes };
        Draft { primary: Arc::clone(primary), peers, layout }
    }

    /// The ranks on other hosts, in order.
    pub fn peers(&self) -> &[Rank] {
        &self.peers
    }

    /// The longest piece of all.
    pub fn most_slot_bytes(&self) -> usize {
        self.layout.classes.iter().map(|links| links.slot_bytes).max().unwrap_or(0)
    }

    /// Slots of one direction with one peer, in pinned memory.
    pub fn pinned(&self) -> Result<Slots> {
        Slots::pinned(&self.primary, self.layout.peer_bytes())
    }

    /// The same in the device's memory, and how the network's devices are told of them.
    pub fn on_device(&self, shown: Shown) -> Result<(Slots, Window)> {
        Slots::on_device(&self.primary, self.layout.peer_bytes(), shown)
    }

    /// With the slots of each peer, in order.
    pub(super) fn build(self, ends: Vec<Ends>) -> Result<Gate> {
        let Draft { primary, peers, layout } = self;
        let fit = ends.iter().flat_map(|ends| [&ends.outgoing, &ends.incoming]);
        if ends.len() != peers.len() || !fit.into_iter().all(|slots| slots.len() >= layout.peer_bytes()) {
            return Err(Error::invalid(
                format!("slots for {} peers of {}", ends.len(), peers.len()),
                "give those that the draft made, for each peer",
            ));
        }
        let words = Words::new(&primary, layout.words())?;
        Ok(Gate { primary, peers, layout, words, ends })
    }
}

/// What a flag says.
const NUMBER_BITS: u32 = 16;
const LENGTH_BITS: u32 = 24;

impl Gate {
    /// The ranks on other hosts, in order.
    pub fn peers(&self) -> &[Rank] {
        &self.peers
    }

    /// Ways to each of them.
    pub fn ways(&self) -> usize {
        self.layout.ways()
    }

    /// The longest piece of a way.
    pub fn slot_bytes(&self, way: usize) -> usize {
        self.layout.class(way).0.slot_bytes
    }

    /// Pieces that a way has room for.
    pub const CREDITS: u32 = CREDITS;

    /// The memory of an end, as the device sees it; `peer` is who is there by their place among the peers, `count` is the end's own.
    pub(super) fn wire(&self, end: &End, peer: u32, count: u64) -> Wire {
        let is_incoming = end.direction == Direction::Receive;
        let at = (peer as usize, self.layout.first_way(end.channel));
        let ends = &self.ends[at.0];
        let slots = if is_incoming { &ends.incoming } else { &ends.outgoing };
        Wire {
            slots: slots.seen() + self.layout.slot(at.1, 0) as u64,
            flags: self.words.address(self.layout.flag(is_incoming, at, 0)),
            credit: self.words.address(self.layout.credit(is_incoming, at)),
            count,
        }
    }

    /// Where the piece of this number, counted from 0, lies among the slots to a peer, and its tag, if the kernel has put it on the way;
    /// `None` while it has not.
    pub fn outgoing(&self, peer: usize, way: usize, number: u32) -> Option<(Range<usize>, u32)> {
        let flag = self.words.load(self.layout.flag(false, (peer, way), number));
        if flag as u16 != number.wrapping_add(1) as u16 {
            return None;
        }
        let len = (flag >> NUMBER_BITS) as usize & ((1 << LENGTH_BITS) - 1);
        let tag = (flag >> (NUMBER_BITS + LENGTH_BITS)) as u32;
        let start = self.layout.slot(way, number);
        Some((start..start + len, tag))
    }

    /// Some bytes among the slots to a peer; `None` where they lie in a device's memory.
    pub fn sent(&self, peer: usize, place: &Range<usize>) -> Option<PieceMut> {
        Some(self.ends[peer].outgoing.host()?.slice(place.start, place.len()))
    }

    /// So many pieces of a way to a peer have been taken: their slots are the kernel's again.
    pub fn take(&self, peer: usize, way: usize, count: u32) {
        self.words.store(self.layout.credit(false, (peer, way)), count.into());
    }

    /// Where a piece goes that has come from a peer; `None` where that is a device's memory. Whoever writes it has seen that the kernel has released
    /// the one that was there.
    pub fn room(&self, peer: usize, way: usize, number: u32, len: usize) -> Option<PieceMut> {
        Some(self.ends[peer].incoming.host()?.slice(self.layout.slot(way, number), len))
    }

    /// Has the device see what the network has written into its memory so far.
    pub fn flush(&self) -> Result<()> {
        self.primary.flush_writes()
    }

    /// The piece is there: the kernel may read it.
    pub fn arrive(&self, peer: usize, way: usize, number: u32, len: usize, tag: u32) {
        let flag = u64::from(number.wrapping_add(1) as u16)
            | (len as u64) << NUMBER_BITS
            | u64::from(tag) << (NUMBER_BITS + LENGTH_BITS);
        self.words.store(self.layout.flag(true, (peer, way), number), flag);
    }

    /// How many pieces from a peer the kernel has released.
    pub fn released(&self, peer: usize, way: usize) -> u32 {
        self.words.load(self.layout.credit(true, (peer, way))) as u32
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("peers", &self.peers).field("ways", &self.ways()).finish()
    }
}

/// Where all of it lies. Of each direction, and each peer, whose slots are memory of their own, first come the ways of collectives and then those of transfers.
struct Layout {
    peers: usize,
    classes: [Links; 2],
}

impl Layout {
    /// Ways to each peer.
    fn ways(&self) -> usize {
        self.classes.iter().map(Links::ways).sum()
    }

    /// Flags of outgoing ways, of incoming ones; credits of outgoing ones, of incoming ones.
    fn words(&self) -> usize {
        2 * self.peers * self.ways() * (CREDITS as usize + 1)
    }

    /// Bytes of the slots of one peer's ways in one direction.
    fn peer_bytes(&self) -> usize {
        self.classes.iter().map(|links| links.ways() * CREDITS as usize * links.slot_bytes).sum()
    }

    /// The class of a way, its number there, and where the slots of the class begin among those of a peer.
    fn class(&self, way: usize) -> (&Links, usize, usize) {
        let [collectives, transfers] = &self.classes;
        match way.checked_sub(collectives.ways()) {
            None => (collectives, way, 0),
            Some(way) => (transfers, way, collectives.ways() * CREDITS as usize * collectives.slot_bytes),
        }
    }

    /// The way of the first share of a channel.
    fn first_way(&self, channel: u16) -> usize {
        let [collectives, transfers] = &self.classes;
        let place = |links: &Links| Some(links.channel(channel)? * links.shares as usize);
        let way = place(collectives).or_else(|| Some(collectives.ways() + place(transfers)?));
        way.expect("a channel that every gate has")
    }

    /// A number for each way of each peer.
    fn number(&self, is_incoming: bool, (peer, way): (usize, usize)) -> usize {
        assert!(peer < self.peers && way < self.ways(), "no such way");
        (usize::from(is_incoming) * self.peers + peer) * self.ways() + way
    }

    fn flag(&self, is_incoming: bool, at: (usize, usize), number: u32) -> usize {
        self.number(is_incoming, at) * CREDITS as usize + (number % CREDITS) as usize
    }

    fn credit(&self, is_incoming: bool, at: (usize, usize)) -> usize {
        2 * self.peers * self.ways() * CREDITS as usize + self.number(is_incoming, at)
    }

    /// Where the slot of a piece begins, in bytes, among those of its peer and direction: it is the same at both ends.
    fn slot(&self, way: usize, number: u32) -> usize {
        assert!(way < self.ways(), "no such way");
        let (links, way, class) = self.class(way);
        class + (way * CREDITS as usize + (number % CREDITS) as usize) * links.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosts::Hosts;
    use super::*;
    use ccl_core::algorithms::transfer;

    #[test]
    fn each_way_has_words_and_slots_of_its_own() {
        let hosts = Hosts::new(0, &[0, 1, 2, 2]);
        let classes = [Links::of_collectives(&hosts, 16, 8192), Links::of_transfers(&hosts, 16, 4096)];
        let layout = Layout { peers: 3, classes };
        let (shares, ways) = (classes[0].shares as usize, layout.ways());
        assert_eq!([0, 1, transfer::CHANNEL].map(|c| layout.first_way(c)), [0, shares, classes[0].ways()]);
        let (mut words, mut slots) = (Vec::new(), Vec::new());
        for is_incoming in [false, true] {
            for at in (0..3).flat_map(|peer| (0..ways).map(move |way| (peer, way))) {
                words.push(layout.credit(is_incoming, at));
                let bytes = layout.class(at.1).0.slot_bytes;
                assert_eq!(bytes, if at.1 < classes[0].ways() { 8192 } else { 4096 });
                for number in 0..CREDITS {
                    words.push(layout.flag(is_incoming, at, number));
                    if (is_incoming, at.0) == (false, 0) {
                        slots.push((layout.slot(at.1, number), bytes));
                    }
                    // As the kernel finds them, from the first one of a wire.
                    let first = layout.slot(at.1, 0);
                    assert_eq!(layout.slot(at.1, number + CREDITS), first + number as usize * bytes);
                }
            }
        }
        words.sort_unstable();
        assert!(words.iter().copied().eq(0..layout.words()));
        slots.sort_unstable();
        let end = slots.into_iter().fold(0, |end, (start, bytes)| {
            assert_eq!(start, end);
            end + bytes
        });
        assert_eq!(end, layout.peer_bytes());
    }
}

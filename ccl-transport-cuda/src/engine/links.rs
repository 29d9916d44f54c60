//! Links between ranks, in two classes: those of collectives, and those of sends and receives.
//!
//! Of a class all links are alike, on all ranks: so both ends of each know what the other one has. A rank names those of its host
//! and those of others by their places among them.

use super::arena::ALIGNMENT;
use super::hosts::Hosts;
use crate::program::{Direction, End, Wire};
use ccl_core::algorithms::transfer;

/// Slots of a link, for each share: what every plan gets through with.
pub(super) const CREDITS: u32 = 4;
/// Links of collectives from one rank to another: as many as any plan on one host has, and any plan on several.
pub(super) const CHANNELS: [u16; 2] = [2, 4];
/// Blocks that share a lane on several hosts, at most: so many can fill a network, and links to every peer are made for each.
const SHARES_BETWEEN_HOSTS: u32 = 8;

/// Memory for slots.
#[derive(Clone, Copy)]
struct Room {
    /// What those of a rank take together, at most: on one host, and on several, where those in pinned memory take as much again.
    all: [usize; 2],
    /// How short and how long one is.
    slot: [usize; 2],
}

/// Of collectives. On one host of up to 8 ranks pieces are of 128 KiB: with half of that what a block does between two takes a seventh of long calls.
const SLOTS: Room = Room { all: [128 << 20, 64 << 20], slot: [4 << 10, 256 << 10] };
/// Of transfers.
const TRANSFER_SLOTS: Room = Room { all: [16 << 20; 2], slot: [4 << 10, 64 << 10] };

/// The links of a class: from a rank to each other one, and from each other one to it, one on each channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    /// The number of the first channel, and how many there are.
    first: u16,
    channels: u16,
    /// Ranks of this host, and of others.
    here: usize,
    away: usize,
    /// Blocks that share a lane, at most.
    pub(super) shares: u32,
    /// Bytes of a slot.
    pub(super) slot_bytes: usize,
    /// Where flags, credits and counts begin.
    heads: usize,
    /// Where the counts of links with other hosts begin, whose other memory is no rank's arena.
    counts: usize,
    slots: usize,
}

impl Links {
    /// Those of collectives, for so many blocks of a rank; `longest` is the longest piece that goes between hosts.
    pub(super) fn of_collectives(hosts: &Hosts, blocks: u32, longest: usize) -> Links {
        let channels = CHANNELS[usize::from(hosts.are_several())];
        Links::new(hosts, (0, channels), blocks, SLOTS, longest)
    }

    /// Those of transfers. So many blocks share a lane that a rank can send to all others and receive from all others at once.
    pub(super) fn of_transfers(hosts: &Hosts, blocks: u32, longest: usize) -> Links {
        let others = hosts.ranks().saturating_sub(1).max(1) as u32;
        let shares = (blocks / (2 * others)).max(1);
        Links::new(hosts, (transfer::CHANNEL, 1), shares, TRANSFER_SLOTS, longest)
    }

    fn new(hosts: &Hosts, (first, channels): (u16, u16), shares: u32, room: Room, longest: usize) -> Links {
        let [least, most] = room.slot;
        let (shares, most) = match hosts.are_several() {
            true => (shares.min(SHARES_BETWEEN_HOSTS), most.min(longest)),
            false => (shares, most),
        };
        // Of the rank that has most: the answer is that of all ranks.
        let links = hosts.most_here().max(2 * hosts.most_away()).max(1) * usize::from(channels);
        let slots = links * shares as usize * CREDITS as usize;
        let all = room.all[usize::from(hosts.are_several())];
        let slot_bytes = 1 << (all / slots).clamp(least, most.max(least)).ilog2();
        // A rank alone has no peers.
        let here = if hosts.ranks() == 1 { 0 } else { hosts.here().count() };
        let away = hosts.away().count();
        Links { first, channels, here, away, shares, slot_bytes, heads: 0, counts: 0, slots: 0 }
    }

    /// Finds a place for what is zeros at first.
    pub(super) fn place_words(&mut self, take: &mut impl FnMut(usize) -> usize) {
        let channels = usize::from(self.channels);
        self.heads = take(self.here * channels * self.head());
        self.counts = take(2 * self.away * self.ways() * 4);
    }

    /// Finds a place for the slots.
    pub(super) fn place_slots(&mut self, take: &mut impl FnMut(usize) -> usize) {
        self.slots = take(self.here * usize::from(self.channels) * self.link_bytes());
    }

    /// The place of a channel among those of this class, if it is one of them.
    pub(super) fn channel(&self, channel: u16) -> Option<usize> {
        channel.checked_sub(self.first).filter(|place| *place < self.channels).map(usize::from)
    }

    /// Shares of all channels, from one rank to another.
    pub(super) fn ways(&self) -> usize {
        usize::from(self.channels) * self.shares as usize
    }

    /// Bytes of flags, credits and counts of the links with one peer on one channel.
    fn head(&self) -> usize {
        let shares = self.shares as usize;
        (8 * shares * CREDITS as usize + 8 * shares + 2 * 4 * shares).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the slots of one link.
    fn link_bytes(&self) -> usize {
        self.shares as usize * CREDITS as usize * self.slot_bytes
    }

    fn index(&self, peer: u32, peers: usize, channel: u16) -> usize {
        let channel = self.channel(channel).filter(|_| (peer as usize) < peers);
        peer as usize * usize::from(self.channels) + channel.expect("a link that every arena has")
    }

    /// The memory of an end of one of `rank`'s links with `peer`, of the same host; `bases` has the arena of every rank of the host, as
    /// this rank's device reaches it.
    pub(super) fn wire(&self, rank: u32, peer: u32, end: &End, bases: &[u64]) -> Wire {
        let shares = self.shares as usize;
        let (receiver, sender, at_receiver, at_sender) = match end.direction {
            Direction::Receive => (rank, peer, peer, rank),
            Direction::Send => (peer, rank, rank, peer),
        };
        let index = |peer: u32| self.index(peer, self.here, end.channel);
        let head = |peer: u32| self.heads + index(peer) * self.head();
        let credits = 8 * shares * CREDITS as usize;
        let counts = credits + 8 * shares + if end.direction == Direction::Receive { 0 } else { 4 * shares };
        let (there, here) = (bases[receiver as usize], bases[sender as usize]);
        Wire {
            slots: there + (self.slots + index(at_receiver) * self.link_bytes()) as u64,
            flags: there + head(at_receiver) as u64,
            credit: here + (head(at_sender) + credits) as u64,
            count: bases[rank as usize] + (head(peer) + counts) as u64,
        }
    }

    /// The count of an end of a link with the rank in this place among those of other hosts.
    pub(super) fn count_away(&self, peer: u32, end: &End) -> u64 {
        let link = self.index(peer, self.away, end.channel);
        let index = 2 * link + usize::from(end.direction == Direction::Receive);
        (self.counts + 4 * self.shares as usize * index) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::MAX_TEAM;

    type Class = fn(&Hosts, u32, usize) -> Links;
    const CLASSES: [(Class, Room); 2] =
        [(Links::of_collectives, SLOTS), (Links::of_transfers, TRANSFER_SLOTS)];

    #[test]
    fn slots_are_lines_and_stay_within_their_memory() {
        for ranks in 2..=MAX_TEAM {
            for blocks in [1, 16, 128] {
                for hosts in [vec![0; ranks], (0..4 * ranks as u32).map(|rank| rank / 8).collect()] {
                    let hosts = Hosts::new(0, &hosts);
                    for (class, room) in CLASSES {
                        let links = class(&hosts, blocks, 64 << 10);
                        assert!(links.slot_bytes.is_power_of_two() && links.slot_bytes >= room.slot[0]);
                        let pinned = 2 * links.away * usize::from(links.channels) * links.link_bytes();
                        assert!(pinned <= room.all[1], "{ranks} ranks, {blocks} blocks");
                    }
                    // All peers at once, in both directions.
                    let transfers = Links::of_transfers(&hosts, blocks, 64 << 10);
                    let others = hosts.ranks() as u32 - 1;
                    assert!(transfers.shares == 1 || 2 * others * transfers.shares <= blocks);
                }
            }
        }
    }

    #[test]
    fn all_ranks_have_the_same_shares_and_slots() {
        for hosts in [&[0, 0, 0, 1][..], &[0, 1, 2, 2, 2, 2, 2], &[0, 1, 0, 1]] {
            for (class, _) in CLASSES {
                let like = |rank| {
                    let links = class(&Hosts::new(rank, hosts), 32, 256 << 10);
                    (links.channels, links.shares, links.slot_bytes)
                };
                assert!((1..hosts.len() as u32).all(|rank| like(rank) == like(0)), "{hosts:?}");
            }
        }
    }

    #[test]
    fn a_slot_is_no_longer_than_what_goes_between_hosts() {
        let (one, two) = (Hosts::new(0, &[0, 0]), Hosts::new(0, &[0, 1]));
        assert_eq!(Links::of_collectives(&one, 1, 20_000).slot_bytes, 256 << 10);
        for (class, _) in CLASSES {
            assert_eq!(class(&two, 1, 20_000).slot_bytes, 16 << 10);
        }
        let shares = |class: Class| [&one, &two].map(|hosts| class(hosts, 32, 20_000).shares);
        assert_eq!(CLASSES.map(|(class, _)| shares(class)), [[32, 8], [16, 8]]);
    }
}

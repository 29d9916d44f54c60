//! Where everything lies that a rank has on its device for its communicator.
//!
//! Every rank has one allocation, its *arena*, of which all have the same layout. Peers write the flags, packets, staging memory and slots
//! in it; the rest is its own. Links are made for every pair, channel and share beforehand, so that no call decides where a peer writes:
//! ranks that make different calls find each other's tags wrong, and nothing else.

use crate::program::{Direction, End, MAX_TEAM, MAX_TEAM_BLOCKS, TEAM_FLAGS, Team, Wire};

/// Slots of a link, for each share: what every plan gets through with.
pub(super) const CREDITS: u32 = 4;
/// Links from one rank to another: as many as any plan has.
pub(super) const CHANNELS: u16 = 2;
/// The longest call by packets, in bytes.
pub(super) const PACKET_ROOM: usize = 16 << 10;
/// The longest one-shot call, in bytes.
pub(super) const ONE_SHOT_ROOM: usize = 512 << 10;
/// What the slots of a rank take together, at most.
const SLOTS: usize = 64 << 20;
/// Slots are no longer and no shorter.
const SLOT_BYTES: [usize; 2] = [4 << 10, 256 << 10];

/// The layout, in bytes from the beginning. What peers or kernels wait for comes first, up to `zeroed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    ranks: usize,
    /// Blocks that share a lane, at most.
    pub(super) shares: u32,
    /// Bytes of a slot.
    pub(super) slot_bytes: usize,
    packets: usize,
    /// A word for each rank, which it sets when it uses this memory no more.
    goodbyes: usize,
    epochs: usize,
    /// Two words: see [`Call::log`](crate::program::Call::log).
    pub(super) log: usize,
    /// This rank's [`Team`].
    pub(super) team: usize,
    links: usize,
    stage: usize,
    slots: usize,
    /// How much of it is zeros at first.
    pub(super) zeroed: usize,
    /// All of it.
    pub(super) bytes: usize,
}

/// Parts begin at multiples of this.
const ALIGNMENT: usize = 256;

impl Arena {
    pub(super) fn new(ranks: usize, shares: u32) -> Arena {
        let links = ranks * usize::from(CHANNELS);
        let per_slot = links.max(1) * shares as usize * CREDITS as usize;
        let [least, most] = SLOT_BYTES;
        let slot_bytes = (1 << (SLOTS / per_slot).max(1).ilog2()).clamp(least, most);
        let mut end = 0usize;
        let mut take = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        take(8 * TEAM_FLAGS);
        let packets = take(Team::packet_bytes(PACKET_ROOM));
        let goodbyes = take(8 * MAX_TEAM);
        let epochs = take(4 * MAX_TEAM_BLOCKS);
        let (log, team) = (take(16), take(8 * (4 + 5 * MAX_TEAM)));
        let heads = take(links * Arena::head(shares));
        let zeroed = take(0);
        let stage = take(2 * MAX_TEAM * ONE_SHOT_ROOM);
        let slots = take(links * shares as usize * CREDITS as usize * slot_bytes);
        let bytes = take(0);
        Arena {
            ranks,
            shares,
            slot_bytes,
            packets,
            goodbyes,
            epochs,
            log,
            team,
            links: heads,
            stage,
            slots,
            zeroed,
            bytes,
        }
    }

    /// Flags, credits and counts of the links with one peer on one channel: one from it, and one to it.
    fn head(shares: u32) -> usize {
        let shares = shares as usize;
        (8 * shares * CREDITS as usize + 8 * shares + 2 * 4 * shares).next_multiple_of(ALIGNMENT)
    }

    fn index(&self, peer: u32, channel: u16) -> usize {
        assert!((peer as usize) < self.ranks && channel < CHANNELS, "a link that no arena has");
        peer as usize * usize::from(CHANNELS) + usize::from(channel)
    }

    /// The flags of a team's rank, in its own memory.
    pub(super) fn flags(&self) -> u64 {
        0
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets as u64
    }

    pub(super) fn stage(&self) -> u64 {
        self.stage as u64
    }

    pub(super) fn epochs(&self) -> u64 {
        self.epochs as u64
    }

    /// Where a peer says goodbye.
    pub(super) fn goodbye(&self, peer: u32) -> u64 {
        (self.goodbyes + 8 * peer as usize) as u64
    }

    /// Words of goodbyes.
    pub(super) const GOODBYES: usize = MAX_TEAM;

    /// The memory of an end of one of `rank`'s links; `bases` has every rank's arena, as this rank's device reaches it.
    pub(super) fn wire(&self, rank: u32, end: &End, bases: &[u64]) -> Wire {
        let shares = self.shares as usize;
        let (receiver, sender, at_receiver, at_sender) = match end.direction {
            Direction::Receive => (rank, end.peer, end.peer, rank),
            Direction::Send => (end.peer, rank, rank, end.peer),
        };
        let head = |peer: u32| self.links + self.index(peer, end.channel) * Arena::head(self.shares);
        let per_link = shares * CREDITS as usize * self.slot_bytes;
        let credits = 8 * shares * CREDITS as usize;
        let counts = credits + 8 * shares + if end.direction == Direction::Receive { 0 } else { 4 * shares };
        let (there, here) = (bases[receiver as usize], bases[sender as usize]);
        Wire {
            slots: there + (self.slots + self.index(at_receiver, end.channel) * per_link) as u64,
            flags: there + head(at_receiver) as u64,
            credit: here + (head(at_sender) + credits) as u64,
            count: bases[rank as usize] + (head(end.peer) + counts) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn both_ends_of_a_link_have_the_same_memory_and_no_two_links_any() {
        for (ranks, shares) in [(2u32, 1), (3, 5), (16, 16)] {
            let arena = Arena::new(ranks as usize, shares);
            let bases: Vec<u64> = (0..ranks).map(|rank| u64::from(rank) << 32).collect();
            let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
            let mut take = |at: u64, bytes: u64| {
                let rank = (at >> 32) as usize;
                assert!(at - bases[rank] + bytes <= arena.bytes as u64);
                let before = taken.range(..at + bytes).next_back();
                assert!(before.is_none_or(|(start, len)| start + len <= at), "two things at one place");
                taken.insert(at, bytes);
            };
            let (s, c) = (u64::from(shares), u64::from(CREDITS));
            for from in 0..ranks {
                for to in (0..ranks).filter(|to| *to != from) {
                    for channel in 0..CHANNELS {
                        let end = |direction, peer| End { direction, peer, channel };
                        let sends = arena.wire(from, &end(Direction::Send, to), &bases);
                        let receives = arena.wire(to, &end(Direction::Receive, from), &bases);
                        assert_eq!(
                            (sends.slots, sends.flags, sends.credit),
                            (receives.slots, receives.flags, receives.credit)
                        );
                        assert_eq!([sends.slots, sends.credit].map(|at| at >> 32), [to, from].map(u64::from));
                        assert_eq!(
                            [sends.count, receives.count].map(|at| at >> 32),
                            [from, to].map(u64::from)
                        );
                        take(sends.slots, s * c * arena.slot_bytes as u64);
                        take(sends.flags, 8 * s * c);
                        take(sends.credit, 8 * s);
                        take(sends.count, 4 * s);
                        take(receives.count, 4 * s);
                    }
                }
            }
            assert!(taken.keys().all(|at| (at & 0xffff_ffff) >= arena.links as u64));
        }
    }

    #[test]
    fn slots_are_lines_and_stay_within_their_memory() {
        for ranks in 2..=MAX_TEAM {
            for shares in [1, 16, 128] {
                let arena = Arena::new(ranks, shares);
                assert!(arena.slot_bytes.is_power_of_two() && arena.slot_bytes >= SLOT_BYTES[0]);
                assert!(arena.bytes < 1 << 28, "{ranks} ranks, {shares} shares: {}", arena.bytes);
            }
        }
    }
}

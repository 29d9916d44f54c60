//! Where everything lies that a rank has on its device for its communicator.
//!
//! Every rank has one allocation, its *arena*, of which all of a host have the same layout. Peers of the host write the flags, packets, staging
//! memory and slots in it; the rest is its own. [`Links`] are made for every pair, channel and share beforehand, so that no call decides
//! where a peer writes: ranks that make different calls find each other's tags wrong, and nothing else. Links to ranks on other hosts lie in
//! a [`Gate`](super::Gate), all but their counts. Ranks are named by their place among those of the host.

use super::hosts::Hosts;
use super::links::Links;
use crate::program::{End, MAX_TEAM, MAX_TEAM_BLOCKS, STAGE_BYTES, TEAM_FLAGS, Team, Wire, book};
use crate::sharing::Handle;

/// Scratch pieces of a share on several hosts: as many as any plan has. On one host none has any.
pub(super) const SCRATCH: usize = 1;
/// The longest call by packets, in bytes.
pub(super) const PACKET_ROOM: usize = 64 << 10;

/// The layout, in bytes from the beginning. What peers or kernels wait for comes first, up to `zeroed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    /// Of collectives.
    pub(super) links: Links,
    /// Of sends and receives.
    pub(super) transfers: Links,
    packets: usize,
    /// A word for each rank, which it sets when it uses this memory no more.
    goodbyes: usize,
    epochs: usize,
    /// Two words for each block, for collectives and for transfers: see [`Call::log`](crate::program::Call::log).
    pub(super) logs: [usize; 2],
    /// This rank's [`Team`].
    pub(super) team: usize,
    /// What kernels have agreed on: see [`Team::agreed`].
    pub(super) agreed: usize,
    offers: usize,
    /// Of this rank's registrations the numbers, and then the handles.
    board: usize,
    /// What each peer has of them: numbers.
    holds: usize,
    stage: usize,
    /// Scratch pieces of plans.
    pub(super) scratch: usize,
    pub(super) scratch_bytes: usize,
    /// How much of it is zeros at first.
    pub(super) zeroed: usize,
    /// All of it.
    pub(super) bytes: usize,
}

/// Parts begin at multiples of this.
pub(super) const ALIGNMENT: usize = 256;

impl Arena {
    /// For a rank of these, with so many blocks; `longest` is the longest piece that goes between hosts. There are teams on one host only.
    pub(super) fn new(hosts: &Hosts, blocks: u32, longest: usize) -> Arena {
        let mut links = Links::of_collectives(hosts, blocks, longest);
        let mut transfers = Links::of_transfers(hosts, blocks, longest);
        let team = usize::from(!hosts.are_several());
        let scratch_bytes = (1 - team) * SCRATCH * links.shares as usize * links.slot_bytes;
        let mut end = 0usize;
        let mut take = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        // A rank alone has a team for its registrations, and nobody to meet in it.
        let meeting = if hosts.ranks() > 1 { team } else { 0 };
        take(meeting * 8 * TEAM_FLAGS);
        let packets = take(meeting * Team::packet_bytes(PACKET_ROOM));
        let goodbyes = take(8 * MAX_TEAM);
        let epochs = take(team * 4 * MAX_TEAM_BLOCKS);
        let logs = [take(16 * blocks as usize), take(16 * blocks as usize)];
        let team_words = take(team * 8 * Team::WORDS);
        let agreed = take(team * 16);
        let offers = take(team * 2 * MAX_TEAM * 32);
        let board = take(team * book::REGISTERED * (8 + Handle::BYTES));
        let holds = take(team * 8 * MAX_TEAM * book::REGISTERED);
        for links in [&mut links, &mut transfers] {
            links.place_words(&mut take);
        }
        let zeroed = take(0);
        let stage = take(meeting * STAGE_BYTES);
        let scratch = take(scratch_bytes);
        for links in [&mut links, &mut transfers] {
            links.place_slots(&mut take);
        }
        let bytes = take(0);
        Arena {
            links,
            transfers,
            packets,
            goodbyes,
            epochs,
            logs,
            team: team_words,
            agreed,
            offers,
            board,
            holds,
            stage,
            scratch,
            scratch_bytes,
            zeroed,
            bytes,
        }
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

    pub(super) fn offers(&self) -> u64 {
        self.offers as u64
    }

    /// The number of a registration.
    pub(super) fn number(&self, place: usize) -> u64 {
        (self.board + 8 * place) as u64
    }

    /// Its handle.
    pub(super) fn handle(&self, place: usize) -> u64 {
        (self.board + 8 * book::REGISTERED + Handle::BYTES * place) as u64
    }

    /// Where a peer says that it has it.
    pub(super) fn hold(&self, peer: u32, place: usize) -> u64 {
        (self.holds + 8 * (peer as usize * book::REGISTERED + place)) as u64
    }

    /// Where a peer says goodbye.
    pub(super) fn goodbye(&self, peer: u32) -> u64 {
        (self.goodbyes + 8 * peer as usize) as u64
    }

    /// Words of goodbyes.
    pub(super) const GOODBYES: usize = MAX_TEAM;

    /// The links of an end.
    fn class(&self, end: &End) -> &Links {
        if self.transfers.channel(end.channel).is_some() { &self.transfers } else { &self.links }
    }

    /// The memory of an end of a link with a rank of this host: see [`Links::wire`].
    pub(super) fn wire(&self, rank: u32, peer: u32, end: &End, bases: &[u64]) -> Wire {
        self.class(end).wire(rank, peer, end, bases)
    }

    /// The count of an end of a link with a rank of another one: see [`Links::count_away`].
    pub(super) fn count_away(&self, peer: u32, end: &End) -> u64 {
        self.class(end).count_away(peer, end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::links::{CHANNELS, CREDITS};
    use super::*;
    use crate::program::Direction;
    use ccl_core::algorithms::transfer;
    use std::collections::BTreeMap;

    fn arena(hosts: &[u32], blocks: u32) -> Arena {
        Arena::new(&Hosts::new(0, hosts), blocks, 64 << 10)
    }

    #[test]
    fn both_ends_of_a_link_have_the_same_memory_and_no_two_links_any() {
        for (hosts, blocks) in [(&[0, 0][..], 1), (&[0; 3], 5), (&[0; 16], 16), (&[0, 0, 0, 1, 2], 16)] {
            let arena = arena(hosts, blocks);
            let ranks = hosts.iter().filter(|host| **host == 0).count() as u32;
            let away = hosts.len() as u32 - ranks;
            let bases: Vec<u64> = (0..ranks).map(|rank| u64::from(rank) << 32).collect();
            let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
            let mut take = |at: u64, bytes: u64| {
                let rank = (at >> 32) as usize;
                assert!(at - bases[rank] + bytes <= arena.bytes as u64);
                let before = taken.range(..at + bytes).next_back();
                assert!(before.is_none_or(|(start, len)| start + len <= at), "two things at one place");
                taken.insert(at, bytes);
            };
            let c = u64::from(CREDITS);
            let channels = CHANNELS[usize::from(away > 0)];
            for channel in (0..channels).chain([transfer::CHANNEL]) {
                let is_transfer = channel == transfer::CHANNEL;
                let links = if is_transfer { arena.transfers } else { arena.links };
                let s = u64::from(links.shares);
                let end = |direction, peer| End { direction, peer, channel };
                for from in 0..ranks {
                    for to in (0..ranks).filter(|to| *to != from) {
                        let sends = arena.wire(from, to, &end(Direction::Send, to), &bases);
                        let receives = arena.wire(to, from, &end(Direction::Receive, from), &bases);
                        assert_eq!(
                            (sends.slots, sends.flags, sends.credit),
                            (receives.slots, receives.flags, receives.credit)
                        );
                        assert_eq!([sends.slots, sends.credit].map(|at| at >> 32), [to, from].map(u64::from));
                        assert_eq!(
                            [sends.count, receives.count].map(|at| at >> 32),
                            [from, to].map(u64::from)
                        );
                        take(sends.slots, s * c * links.slot_bytes as u64);
                        take(sends.flags, 8 * s * c);
                        take(sends.credit, 8 * s);
                        take(sends.count, 4 * s);
                        take(receives.count, 4 * s);
                    }
                }
                for peer in 0..away {
                    for direction in [Direction::Send, Direction::Receive] {
                        take(arena.count_away(peer, &end(direction, 0)), 4 * s);
                    }
                }
            }
            take(arena.scratch as u64, arena.scratch_bytes as u64);
            // Behind what has no links.
            assert!(taken.keys().all(|at| (at & 0xffff_ffff) >= arena.team as u64));
        }
    }

    #[test]
    fn an_arena_is_not_large() {
        let alone = arena(&[0], 128);
        assert!(alone.bytes < 64 << 10, "{}", alone.bytes);
        for ranks in 2..=MAX_TEAM {
            for blocks in [1, 16, 128] {
                for hosts in [vec![0; ranks], (0..4 * ranks as u32).map(|rank| rank / 8).collect()] {
                    let arena = arena(&hosts, blocks);
                    assert!(arena.bytes < 1 << 28, "{ranks} ranks, {blocks} blocks: {}", arena.bytes);
                }
            }
        }
    }
}

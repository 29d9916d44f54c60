//! Slots that pass to and fro between two ranks.
//!
//! A core that has read the lines of a slot has them in its cache and writes them again at the price of its own cache, where the one
//! that wrote them before would have to fetch each of them from there. So where two ranks send to each other, a rank hands its slot over with the piece in it,
//! and the receiver's next piece for that rank goes into it and hands it back: two slots for a piece each way are all that they touch, instead of megabytes
//! that are written to and read from anew. Slots that go to several ranks stay.
//!
//! A rank hands slots over as long as a peer on a near core has few of them. Those that a peer has no use for stay with it, so each rank has as many more.

use crate::pool::Place;
use crate::ring::Corrupt;

/// Most slots that a rank may have handed over, to all its peers.
pub(crate) const MOST_AWAY: u32 = 64;

/// What has passed between this rank and a peer.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Slots of the peer that this rank has got, and where in them a piece was read; the last one last.
    theirs: Vec<Place>,
    /// Slots of this rank that the peer has got, and not handed back.
    away: u32,
}

impl Passed {
    /// Makes room for all that can come, so that no call allocates.
    pub(crate) fn prepare(&mut self) {
        self.theirs.reserve(MOST_AWAY as usize);
    }

    /// The peer hands a slot over, and the piece in it was read.
    #[inline]
    pub(crate) fn get(&mut self, place: Place) -> Result<(), Corrupt> {
        if self.theirs.len() >= MOST_AWAY as usize {
            return Err(Corrupt("it hands over more slots than it may"));
        }
        self.theirs.push(place);
        Ok(())
    }

    /// The peer's slot that was read last, to be handed back.
    #[inline]
    pub(crate) fn hand_back(&mut self) -> Option<Place> {
        self.theirs.pop()
    }

    /// How many slots of this rank the peer has.
    #[inline]
    pub(crate) fn away(&self) -> u32 {
        self.away
    }

    /// The peer gets one more.
    #[inline]
    pub(crate) fn hand_over(&mut self) {
        self.away += 1;
    }

    /// One is back.
    #[inline]
    pub(crate) fn take_back(&mut self) {
        self.away -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ShmConfig, ShmTransport};
    use ccl_core::transport::conformance::{connect, receive, send};
    use ccl_core::transport::{Fabric, LinkKey, ReceiverId, SenderId, Transport};
    use std::collections::BTreeSet;

    /// Longer than what lies beside an entry.
    const LONG: usize = 5000;

    /// One of two ranks that send to each other.
    struct Side {
        t: ShmTransport,
        to: SenderId,
        from: ReceiverId,
    }

    impl Side {
        /// Puts a piece into a slot; where it lies.
        fn send(&mut self, tag: u64) -> usize {
            let piece = self.t.reserve(self.to, LONG).unwrap().expect("a credit");
            let at = piece.as_mut_ptr().addr();
            assert!(send(&mut self.t, self.to, &[tag as u8; LONG], tag));
            at
        }

        /// Takes the next piece; where it lay.
        fn receive(&mut self) -> usize {
            let at = self.t.peek(self.from).unwrap().expect("a piece").piece.as_ptr().addr();
            let (bytes, tag) = receive(&mut self.t, self.from).unwrap();
            assert!(bytes.len() == LONG && bytes.iter().all(|byte| *byte == tag as u8));
            at
        }
    }

    /// The most of its slots that each may have at the other, and the two.
    fn pair() -> (u32, [Side; 2]) {
        let mut ranks: Vec<_> =
            (0..2).map(|rank| ShmTransport::new(rank, 2, &ShmConfig::default()).unwrap()).collect();
        let links = [(0, 1), (1, 0)].map(|(from, to)| LinkKey { from, to, channel: 0 });
        connect(&mut ranks, &links);
        let mut peers = [1, 0].into_iter();
        let sides = ranks.into_iter().map(|mut t| {
            let peer = peers.next().unwrap();
            let (to, from) = (t.sender(&[peer], 0).unwrap(), t.receiver(peer, 0).unwrap());
            Side { t, to, from }
        });
        (8, sides.collect::<Vec<_>>().try_into().map_err(|_| ()).unwrap())
    }

    /// Addresses are of one mapping, as both ranks are of this process.
    #[test]
    fn a_rank_writes_into_the_slot_that_it_has_read_last() {
        let (_, mut sides) = pair();
        let mut read = [0; 2];
        let mut used = BTreeSet::new();
        for round in 0..20 {
            let written = [0, 1].map(|rank| sides[rank].send(round));
            if round > 0 {
                assert_eq!(written, read);
            }
            read = [0, 1].map(|rank| sides[rank].receive());
            assert_eq!(read, [written[1], written[0]]);
            used.extend(written);
        }
        assert_eq!(used.len(), 2, "one of each rank");
    }

    #[test]
    fn slots_for_which_a_peer_has_no_use_are_few_and_missed_by_nobody() {
        let (most, mut sides) = pair();
        for round in 0..200 {
            sides[0].send(round);
            sides[1].receive();
        }
        assert_eq!(sides[0].t.passed[1].away(), most);
        // As many as before may be on their way.
        let credits = sides[0].t.slots_per_link();
        for tag in 0..credits {
            sides[0].send(tag.into());
        }
        assert!(sides[0].t.reserve(sides[0].to, LONG).unwrap().is_none(), "no credit");
        for _ in 0..credits {
            sides[1].receive();
        }
        // They come back with pieces of the other side, as soon as there are any.
        for tag in 0..most {
            sides[1].send(tag.into());
            sides[0].receive();
        }
        assert_eq!([0, 1].map(|rank| sides[rank].t.passed[1 - rank].away()), [0, 0]);
        sides[1].send(1);
        assert_eq!(sides[1].t.passed[0].away(), 1, "its own, when it has no other");
    }

    #[test]
    fn far_ranks_get_none() {
        let (_, mut sides) = pair();
        while !sides[0].t.paces[1].is_far() {
            sides[0].t.paces[1].note(true);
        }
        sides[0].t.far += 1;
        for round in 0..20 {
            sides[0].send(round);
            sides[1].receive();
        }
        assert_eq!(sides[0].t.passed[1].away(), 0);
    }

    #[test]
    fn slots_that_several_ranks_read_stay() {
        let mut ranks: Vec<_> =
            (0..3).map(|rank| ShmTransport::new(rank, 3, &ShmConfig::default()).unwrap()).collect();
        connect(&mut ranks, &[1, 2].map(|to| LinkKey { from: 0, to, channel: 0 }));
        let to = ranks[0].sender(&[1, 2], 0).unwrap();
        for tag in 0..20 {
            assert!(send(&mut ranks[0], to, &[7; LONG], tag));
            for rank in [1, 2] {
                let from = ranks[rank].receiver(0, 0).unwrap();
                assert_eq!(receive(&mut ranks[rank], from), Some((vec![7; LONG], tag)));
            }
        }
        assert!(ranks[0].passed.iter().all(|passed| passed.away() == 0));
    }

    #[test]
    fn a_peer_that_hands_over_more_than_it_may_is_found() {
        let mut passed = Passed::default();
        let place = |slot| Place { slot, at: 0 };
        assert!((0..MOST_AWAY).all(|slot| passed.get(place(slot)).is_ok()));
        assert!(passed.get(place(0)).is_err());
        assert_eq!(passed.hand_back(), Some(place(MOST_AWAY - 1)));
        assert!(passed.get(place(0)).is_ok());
    }
}

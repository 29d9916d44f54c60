//! What a rank writes to others by itself: into memory that they have offered, rather than let them fetch it.
//!
//! A result is written there as it is combined. And a rank that only sends, as the root of a broadcast does, would wait while its receivers read
//! what it has where it lies; so it writes some pieces itself, as many as each of them reads.

use super::schedule::{Operand, Schedule};
use crate::plan::{Move, Program, Rank, Referent, Sink};
use std::collections::HashMap;

/// Which pieces of what a move sends are written where its receivers have offered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reaches {
    /// One of so many; 0 for none.
    of: u32,
}

impl Reaches {
    /// Whether the piece `skip` bytes after the beginning of a chunk is: the same ones in every call, which have been in this core's caches before.
    #[inline]
    pub(super) fn at(self, skip: usize, tile: usize) -> bool {
        match self.of {
            0 | 1 => self.of == 1,
            of => (skip / tile + 1).is_multiple_of(of as usize),
        }
    }

    /// Whether it is a share of what the rank has to send, and not all of it.
    #[inline]
    pub(super) fn is_share(self) -> bool {
        self.of > 1
    }

    /// Whether all are.
    pub(super) fn is_all(self) -> bool {
        self.of == 1
    }

    /// Whether this tile, if it is one of the share, waits until the receiver has begun, which it has when it offers memory or has released what was sent before.
    /// A sender that comes first would otherwise hand over everything by reference, and then wait for a peer that copies alone. Only once in a call, since the receiver need not
    /// offer anything; and not with several, of whom the first would wait for the last. All that is waited for is of earlier tiles, as with a credit.
    #[inline]
    pub(super) fn awaits_receiver(self, tile: usize) -> bool {
        // One of two: there is one peer.
        self.of == 2 && tile <= 2
    }

    /// What of a move with these sinks reaches its receivers: a result, that goes to them by one end, last of all sinks.
    pub(super) fn of_result(mv: &Move, sinks: &[Operand]) -> Reaches {
        let is_written = mv.is_result() && ends_with_links(sinks);
        Reaches { of: u32::from(is_written) }
    }
}

/// Whether the last of these sinks is an end of links, and the only one.
fn ends_with_links(sinks: &[Operand]) -> bool {
    let sends = |operand: &&Operand| matches!(operand, Operand::Send { .. });
    sinks.iter().filter(sends).count() == 1 && sinks.last().as_ref().is_some_and(sends)
}

impl Schedule {
    /// Lets this rank, if it only sends, write a share of that where its receivers [have offered memory](Schedule::allow_offers): for transports
    /// whose senders do so, and ranks that have a core of their own. `program` is the one that was bound.
    pub fn allow_shares(&mut self, program: &Program) {
        let mut links: HashMap<(Rank, u16), u32> = HashMap::new();
        let moves = || program.lanes.iter().flat_map(|lane| &lane.moves);
        for sink in moves().flat_map(|mv| &mv.into) {
            let Sink::Links(to) = sink else { continue };
            to.peers.iter().for_each(|peer| *links.entry((*peer, to.channel)).or_default() += 1);
        }
        // Who combines what it receives offers nothing for it, and others do for links that carry one piece of a tile.
        if self.machine.reduces || !program.only_sends() || links.values().any(|pieces| *pieces != 1) {
            return;
        }
        let machine = &mut self.machine;
        for (code, mv) in machine.moves.iter_mut().zip(moves()) {
            let sinks = &machine.operands[code.into as usize..code.end as usize];
            if mv.referent() == Some(Referent::Source) && ends_with_links(sinks) {
                code.reaches = Reaches { of: links.len() as u32 + 1 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Chain, OneShot, TwoShot};
    use crate::engine::idle::Ends;
    use crate::engine::{Layout, Progress, ReferFrom, Streams};
    use crate::kernels::{Buffers, PieceMut, Reducer, Store};
    use crate::plan::{Collective, Spec};
    use crate::transport::LocalHub;
    use crate::transport::conformance::{connect, mesh};
    use crate::verify::May;
    use crate::{DataType, ReduceOp};
    use std::sync::Arc;

    /// Of how many pieces each of a rank's moves writes one, and on which of the first tiles of a call the first such move waits for its receiver.
    fn reaches(algorithm: &dyn Algorithm, collective: Collective, rank: Rank) -> (Vec<u32>, Vec<usize>) {
        let spec = Spec::new(collective, 4, 0, algorithm.parts(collective, 4.into()).unwrap());
        let program = algorithm.program(&spec, rank);
        let mut schedule = Schedule::bind(&spec, rank, &program, &mut Ends).unwrap();
        assert!(schedule.machine.moves.iter().all(|code| !code.reaches.is_share()));
        schedule.allow_shares(&program);
        let moves: Vec<Reaches> = schedule.machine.moves.iter().map(|code| code.reaches).collect();
        let awaits = (0..8).filter(|tile| moves.iter().any(|one| one.awaits_receiver(*tile)));
        (moves.iter().map(|reaches| reaches.of).collect(), awaits.collect())
    }

    #[test]
    fn who_only_sends_writes_as_much_as_each_of_its_receivers() {
        assert_eq!(reaches(&OneShot, Collective::Broadcast, 0), (vec![4], vec![]));
        assert_eq!(reaches(&OneShot, Collective::Broadcast, 1), (vec![0], vec![]));
        // To three, and its own block to itself.
        assert_eq!(reaches(&OneShot, Collective::Scatter, 0), (vec![4, 4, 4, 0], vec![]));
        assert_eq!(reaches(&OneShot, Collective::Gather, 1), (vec![2], vec![0, 1, 2]));
        assert_eq!(reaches(&Chain, Collective::Broadcast, 0), (vec![2], vec![0, 1, 2]));
        // It passes on what it receives.
        assert_eq!(reaches(&Chain, Collective::Broadcast, 1).0, [0]);
        assert_eq!(reaches(&OneShot, Collective::AllGather, 0).0, [0; 4]);
        // The root combines it.
        assert_eq!(reaches(&OneShot, Collective::Reduce, 1), (vec![0], vec![]));
        // The part that it combines, whole.
        assert_eq!(reaches(&TwoShot, Collective::AllReduce, 0), (vec![0, 0, 0, 1, 0, 0, 0], vec![]));
    }

    /// How a rank of two stores its part of an all-reduce: in its own output, and where its peer has offered memory.
    fn stores_of_a_result(keeps: bool) -> [Store; 2] {
        let hub = LocalHub::new(2, 64, 2);
        let mut transports = [0, 1].map(|rank| hub.transport(rank));
        connect(&mut transports, &mesh(2, 2));
        let spec = Spec::new(Collective::AllReduce, 2, 0, 2);
        let mut rank = 0;
        let mut schedules = transports.each_mut().map(|transport| {
            let program = TwoShot.program(&spec, rank);
            let mut schedule = Schedule::bind(&spec, rank, &program, transport).unwrap();
            let moves: usize = program.lanes.iter().map(|lane| lane.moves.len()).sum();
            let may = vec![May { apart: true, in_place: true }; moves];
            schedule.allow_references(&program, &may, ReferFrom::ALWAYS).unwrap();
            schedule.allow_offers(&program, &may, 0).unwrap();
            let layout = Layout::new(&spec, rank, 16, DataType::F32, 64).unwrap();
            let reducer = Reducer::new(DataType::F32, ReduceOp::Sum, 2).unwrap();
            let task = schedule.task(layout, reducer).unwrap();
            let task = task.streaming(&schedule, Streams { keeps, ..Streams::default() });
            schedule.start(&Arc::new(task), 0, 0).unwrap();
            rank += 1;
            schedule
        });
        let mut outputs = [[0; 64]; 2];
        let buffers = outputs.each_mut().map(|output| Buffers::new(&[0; 64], output));
        let mut done = [false; 2];
        while done.contains(&false) {
            for rank in 0..2 {
                let mut step = || schedules[rank].step(&mut transports[rank], &buffers[rank]).unwrap();
                done[rank] = done[rank] || step() == Progress::Done;
            }
        }
        let sinks: &[PieceMut] = &schedules[0].machine.sinks;
        assert!(sinks[1].as_mut_ptr() == buffers[1].output().as_mut_ptr(), "nothing was written at the peer");
        [sinks[0].store(), sinks[1].store()]
    }

    #[test]
    fn a_result_is_kept_where_it_was_made_and_nowhere_else() {
        assert_eq!(stores_of_a_result(true), [Store::Cached, Store::Streaming]);
        assert_eq!(stores_of_a_result(false), [Store::Streaming; 2]);
    }

    #[test]
    fn a_share_is_the_same_pieces_both_ways() {
        const TILE: usize = 64;
        let at = |of| {
            let reaches = Reaches { of };
            (0..6).filter(|tile| reaches.at(tile * TILE, TILE)).collect::<Vec<_>>()
        };
        assert_eq!([at(0), at(1), at(2), at(3)], [vec![], vec![0, 1, 2, 3, 4, 5], vec![1, 3, 5], vec![2, 5]]);
    }
}

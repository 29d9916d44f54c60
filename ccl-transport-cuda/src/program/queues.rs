//! Programs of sends and receives: what goes from one rank to another, in a row.

use super::encode::four;
use super::layout::*;
use super::{Direction, End, Geometry, Program, ProgramError};
use ccl_core::Rank;
use ccl_core::engine::mix;

/// What one rank has for another in one direction: a lane, so that no peer waits for another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The end on which it goes; none for what a rank copies to itself.
    pub end: Option<End>,
    /// In their order.
    pub items: Vec<Item>,
}

/// Memory that is sent, received or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it begins, in the buffer of its direction: of the send buffer what is sent or copied, else of the receive buffer.
    pub at: u64,
    /// Where in the receive buffer it is copied to, if it goes to no peer.
    pub to: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// What both ends know of it, in 64 bits.
    pub known: u64,
}

impl Program {
    /// The program of queues, which run side by side; copies come before the first of them. Where memory lies anywhere, both buffers of the
    /// call begin at 0, and places are addresses.
    ///
    /// A queue's two ends may be cut into calls differently on the two ranks. So all that they have in common is the geometry, the length of
    /// tiles, and the order of the items.
    pub fn queues(
        (rank, ranks): (Rank, u32),
        queues: &[Queue],
        tile_bytes: usize,
        geometry: Geometry,
    ) -> Result<Program, ProgramError> {
        geometry.check(tile_bytes)?;
        let copies: Vec<&Item> = queues.iter().filter(|q| q.end.is_none()).flat_map(|q| &q.items).collect();
        let links: Vec<&Queue> = queues.iter().filter(|queue| queue.end.is_some()).collect();
        let lanes = links.len().max(1);
        let shares = geometry.shares;
        if lanes * shares as usize > MAX_WORKERS {
            return Err(ProgramError::Workers { rank, lanes, shares, limit: MAX_WORKERS });
        }
        let (mut lane_words, mut moves, mut operands) = (Vec::new(), Vec::new(), Vec::new());
        let (mut input, mut output) = (0, 0);
        let mut chunk = |kind, at: u64, bytes: u64| {
            let end = at.checked_add(bytes).filter(|end| end >> KIND_SHIFT == 0).ok_or_else(|| {
                let what = format!("{bytes} bytes at {at:#x}, which is no address of a device");
                ProgramError::Plan { rank, lane: 0, mv: 0, what }
            })?;
            let all: &mut u64 = if kind == INPUT { &mut input } else { &mut output };
            *all = end.max(*all);
            Ok::<u64, ProgramError>(kind << KIND_SHIFT | at)
        };
        let mut ends: Vec<End> = Vec::new();
        for lane in 0..lanes {
            let queue = links.get(lane);
            let first = moves.len() / MOVE;
            let copies = copies.iter().filter(|_| lane == 0).map(|item| (None, **item));
            let own = queue.into_iter().flat_map(|queue| queue.items.iter().map(|item| (queue.end, *item)));
            for (end, item) in copies.chain(own) {
                let (source, sink) = match end.map(|end| end.direction) {
                    None => (chunk(INPUT, item.at, item.bytes)?, chunk(OUTPUT, item.to, item.bytes)?),
                    Some(Direction::Send) => (chunk(INPUT, item.at, item.bytes)?, SEND << KIND_SHIFT),
                    Some(Direction::Receive) => (RECEIVE << KIND_SHIFT, chunk(OUTPUT, item.at, item.bytes)?),
                };
                let counts = 1 | 1 << 8 | 1 << 16 | salt(mix(item.known, item.bytes)) << SALT_SHIFT;
                moves.extend([pair(operands.len() as u32, counts), item.bytes]);
                operands.extend([source, sink]);
            }
            lane_words.push(pair(first as u32, (moves.len() / MOVE - first) as u32));
            lane_words.push(four([ends.len(), queue.into_iter().len(), 0, 0]));
            lane_words.push(pair(1, 1));
            ends.extend(queue.and_then(|queue| queue.end));
        }
        let all = HEADER + lane_words.len() + moves.len() + operands.len();
        let mut words = vec![
            MAGIC | u64::from(VERSION),
            pair(all as u32, lanes as u32),
            pair(rank, ranks),
            pair((moves.len() / MOVE) as u32, operands.len() as u32),
            pair(tile_bytes as u32, geometry.slot_bytes as u32),
            pair(0, geometry.credits),
            pair(shares, 0),
            pair(0, ends.len() as u32),
        ];
        words.extend(lane_words.into_iter().chain(moves).chain(operands));
        Ok(Program {
            words,
            ends,
            lanes,
            scratches: 0,
            geometry,
            input_bytes: input as usize,
            output_bytes: output as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Listing, Operand};
    use super::*;

    const GEOMETRY: Geometry = Geometry { slot_bytes: 128, credits: 4, shares: 3 };

    fn end(direction: Direction, peer: Rank) -> Option<End> {
        Some(End { direction, peer, channel: 7 })
    }

    fn item(at: u64, bytes: u64) -> Item {
        Item { at, to: 0, bytes, known: 9 }
    }

    #[test]
    fn a_lane_for_each_peer_and_direction_and_copies_first() {
        let queues = [
            Queue { end: end(Direction::Send, 1), items: vec![item(1000, 300), item(2000, 0)] },
            Queue { end: end(Direction::Receive, 1), items: vec![item(3000, 300)] },
            Queue { end: None, items: vec![Item { to: 5000, ..item(4000, 10) }] },
        ];
        let program = Program::queues((0, 2), &queues, 128, GEOMETRY).unwrap();
        assert_eq!((program.workers(), program.ends().len(), program.scratch_bytes()), (6, 2, 0));
        assert_eq!(program.buffer_bytes(), (4010, 5010));
        let listing = Listing::read(program.words(), 4010, 5010).unwrap();
        assert!(listing.lanes.iter().all(|lane| lane.is_queue));
        let moves =
            listing.lanes.iter().map(|lane| lane.moves.iter().map(|mv| (mv.from[0], mv.into[0], mv.chunk)));
        let moves: Vec<Vec<_>> = moves.map(Iterator::collect).collect();
        use Operand::{Input, Output, Receive, Send};
        let first = vec![
            (Input(4000), Output(5000), Some(10)),
            (Input(1000), Send(0), Some(300)),
            (Input(2000), Send(0), Some(0)),
        ];
        assert_eq!(moves, [first, vec![(Receive(0), Output(3000), Some(300))]]);
        // Both ends of a transfer have the same salt, and others another.
        let salts = |lane: usize| listing.lanes[lane].moves.iter().map(|mv| mv.salt).collect::<Vec<_>>();
        assert!(salts(0)[1] == salts(1)[0] && salts(0)[1] != salts(0)[2]);
    }

    #[test]
    fn copies_alone_have_a_lane_and_wild_addresses_are_refused() {
        let copy = Queue { end: None, items: vec![Item { to: 5000, ..item(4000, 10) }] };
        let program = Program::queues((0, 1), &[copy], 128, GEOMETRY).unwrap();
        assert_eq!((program.workers(), program.ends().len()), (3, 0));
        let wild = Queue { end: end(Direction::Send, 1), items: vec![item(1 << 60, 1)] };
        let text = Program::queues((0, 2), &[wild], 128, GEOMETRY).unwrap_err().to_string();
        assert!(text.contains("no address of a device"), "{text}");
    }
}

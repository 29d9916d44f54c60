//! Sends and receives: what a rank makes of them together is one launch, with a lane for each peer and direction.
//!
//! So none waits for another that goes elsewhere, and those with one peer keep their order. Which of them a peer makes together is its
//! own matter: links, tiles and shares are the same for all, and pieces carry what the two ends know.

use super::alone::Copied;
use super::links::CREDITS;
use super::prepared::{Prepared, Terms};
use crate::program::{Direction, End, Geometry, Item, Program, Queue};
use ccl_core::algorithms::transfer;
use ccl_core::communicator::Transfer;
use ccl_core::engine::mix;
use ccl_core::flight::CallState;
use ccl_core::kernels::Buffers;
use ccl_core::plan::{Collective, Rank};
use ccl_core::{DataType, Error, Result};

/// A send, a receive, or both of what a rank sends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leg {
    /// To or from a peer; none is a copy.
    direction: Option<Direction>,
    peer: Rank,
    dtype: DataType,
    count: usize,
    /// Where its memory is, and where a copy goes.
    at: u64,
    to: u64,
}

/// Those of a group in their order, but that copies are last. `address` is where the device finds memory.
pub(super) fn legs(
    (rank, ranks): (Rank, u32),
    transfers: &[(Direction, Transfer, Buffers<'_>)],
    address: impl Fn(usize, usize) -> Result<u64>,
) -> Result<Vec<Leg>> {
    let (mut legs, mut sends, mut receives) = (Vec::new(), Vec::new(), Vec::new());
    for (direction, Transfer { peer, dtype, count }, buffers) in transfers {
        if *peer >= ranks {
            let what = format!("a transfer with rank {peer} in a communicator of {ranks}");
            return Err(Error::invalid(what, format!("give a rank from 0 to {}", ranks - 1)));
        }
        let (input, output) = (buffers.input(), buffers.output());
        let (start, len) = match direction {
            Direction::Send => (input.as_ptr().addr(), input.len()),
            Direction::Receive => (output.as_mut_ptr().addr(), output.len()),
        };
        let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= len).ok_or_else(|| {
            let what = format!("a buffer of {len} bytes for {count} x {dtype}");
            Error::invalid(what, "give one that is long enough")
        })?;
        let at = if bytes == 0 { 0 } else { address(start, bytes)? };
        let leg = Leg { direction: Some(*direction), peer: *peer, dtype: *dtype, count: *count, at, to: 0 };
        match direction {
            Direction::Send if *peer == rank => sends.push(leg),
            Direction::Receive if *peer == rank => receives.push(leg),
            _ => legs.push(leg),
        }
    }
    if sends.len() != receives.len() {
        let (sent, received) = (sends.len(), receives.len());
        let what =
            format!("rank {rank} sends itself {sent} times and receives {received} times in one group");
        return Err(Error::invalid(what, "let each send to itself have its receive in the same group"));
    }
    for (send, receive) in sends.iter().zip(&receives) {
        if (send.dtype, send.count) != (receive.dtype, receive.count) {
            let what = format!(
                "rank {rank} sends itself {} x {} and receives {} x {}",
                send.count, send.dtype, receive.count, receive.dtype
            );
            return Err(Error::invalid(what, "the two must agree"));
        }
        let distance = send.at.abs_diff(receive.at);
        if distance > 0 && distance < send.bytes() {
            let what = format!("rank {rank} sends itself bytes that overlap with where they go");
            return Err(Error::invalid(what, "let the buffers be apart, or the same"));
        }
        legs.push(Leg { direction: None, to: receive.at, ..*send });
    }
    Ok(legs)
}

impl Leg {
    fn bytes(&self) -> u64 {
        (self.count * self.dtype.size()) as u64
    }

    /// What both ends know.
    fn known(&self) -> u64 {
        mix(mix(0, self.dtype as u64), self.count as u64)
    }

    /// What the program has of it.
    fn item(&self) -> Item {
        Item { at: self.at, to: self.to, bytes: self.bytes(), known: self.known() }
    }

    fn about(&self) -> CallState {
        let name = if self.direction == Some(Direction::Receive) { "receive" } else { "send" };
        CallState {
            name: name.into(),
            peer: Some(self.peer),
            count: self.count as u64,
            dtype: self.dtype.name().into(),
            bytes: self.bytes(),
            fingerprint: self.known(),
            ..CallState::default()
        }
    }
}

/// All of them as copies, if they are.
pub(super) fn copies(legs: &[Leg]) -> Option<Vec<Copied>> {
    let copy = |leg: &Leg| {
        let copy = Copied { from: leg.at, to: leg.to, bytes: leg.bytes() as usize };
        leg.direction.is_none().then_some(copy)
    };
    legs.iter().map(copy).collect()
}

/// The launch that makes them.
pub(super) fn prepare(legs: &[Leg], terms: &Terms) -> Result<Prepared> {
    let links = terms.arena.transfers;
    let mut queues: Vec<(Queue, Vec<CallState>)> = Vec::new();
    let mut copies: Vec<CallState> = Vec::new();
    let mut hash = 0;
    for leg in legs {
        let words = [leg.direction.map_or(2, |d| d as u64), leg.peer.into(), leg.known()];
        hash = words.into_iter().fold(hash, mix);
        let end =
            leg.direction.map(|direction| End { direction, peer: leg.peer, channel: transfer::CHANNEL });
        if end.is_none() {
            copies.push(leg.about());
        }
        let queue = match queues.iter().position(|(queue, _)| queue.end == end) {
            Some(index) => &mut queues[index],
            None => {
                queues.push((Queue { end, items: Vec::new() }, Vec::new()));
                queues.last_mut().expect("it was pushed")
            }
        };
        queue.0.items.push(leg.item());
        queue.1.push(leg.about());
    }
    // As the program has them: a lane for each link, and before what the first has come copies.
    let mut about: Vec<Vec<CallState>> =
        queues.iter().filter(|(queue, _)| queue.end.is_some()).map(|(_, about)| about.clone()).collect();
    match about.first_mut() {
        Some(first) => drop(first.splice(0..0, copies)),
        None => about.push(copies),
    }
    let lanes = about.len() as u32;
    if lanes > terms.blocks {
        let what = format!(
            "sends and receives with {lanes} peers and directions together, where {} thread blocks are sure to run at once",
            terms.blocks
        );
        return Err(Error::unsupported(what, "make several groups, or let fewer ranks share a device"));
    }
    let geometry = Geometry { slot_bytes: links.slot_bytes, credits: CREDITS, shares: links.shares };
    let queues: Vec<Queue> = queues.into_iter().map(|(queue, _)| queue).collect();
    let tile = terms.pair_tile(links.slot_bytes);
    let ranks = terms.placement.ranks;
    let program = Program::queues((terms.rank, ranks), &queues, tile, geometry)
        .map_err(|error| Error::unsupported(error.to_string(), "make several groups"))?;
    // The last shares of what is short have no tile.
    let longest = legs.iter().map(|leg| leg.bytes().div_ceil(tile as u64).max(1)).max().unwrap_or(1);
    let blocks = lanes * u64::from(links.shares).min(longest) as u32;
    // Peers agree on links and pieces; by the upper half the host knows which of its calls it is.
    let [agreed, own] = [mix(Collective::SendRecv as u64, tile as u64), mix(hash, 1)].map(|hash| hash >> 32);
    Ok(Prepared::transfers(program, blocks, agreed | own << 32, about))
}

#[cfg(test)]
mod tests {
    use super::super::arena::Arena;
    use super::super::hosts::Hosts;
    use super::*;
    use ccl_core::plan::Placement;

    fn terms(blocks: u32) -> Terms {
        let placement = Placement::one_host(4);
        let arena = Arena::new(&Hosts::new(1, &[0; 4]), blocks, 64 << 10);
        Terms { rank: 1, placement, blocks, threads: 64, tile_bytes: None, arena, has_multicast: false }
    }

    fn of(direction: Direction, peer: Rank, bytes: &mut [u8]) -> (Direction, Transfer, Buffers<'_>) {
        let what = Transfer { peer, dtype: DataType::U8, count: bytes.len() };
        let buffers = match direction {
            Direction::Send => Buffers::new(bytes, &mut []),
            Direction::Receive => Buffers::new(&[], bytes),
        };
        (direction, what, buffers)
    }

    fn made(transfers: &[(Direction, Transfer, Buffers<'_>)]) -> Result<Vec<Leg>> {
        legs((1, 4), transfers, |at, _| Ok(at as u64))
    }

    #[test]
    fn each_peer_and_direction_has_a_lane_and_copies_none() {
        use Direction::{Receive, Send};
        let (mut a, mut b, mut c, mut d, mut e) = ([1; 9], [2; 9], [3; 70], [4; 5], [5; 5]);
        let all = [
            of(Send, 2, &mut a),
            of(Receive, 1, &mut d),
            of(Receive, 2, &mut b),
            of(Send, 2, &mut c),
            of(Send, 1, &mut e),
        ];
        let legs = made(&all).unwrap();
        let prepared = prepare(&legs, &terms(12)).unwrap();
        assert_eq!(prepared.blocks, 2, "two lanes of one tile");
        let About::Transfers(about) = &prepared.about else { panic!("no transfers") };
        let names =
            about.iter().map(|lane| lane.iter().map(|call| (call.name.as_str(), call.peer, call.count)));
        let names: Vec<Vec<_>> = names.map(Iterator::collect).collect();
        let first = vec![("send", Some(1), 5), ("send", Some(2), 9), ("send", Some(2), 70)];
        assert_eq!(names, [first, vec![("receive", Some(2), 9)]]);
        let text = prepare(&legs, &terms(1)).map(drop).unwrap_err().to_string();
        assert!(text.contains("2 peers and directions together"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        use Direction::{Receive, Send};
        let (mut a, mut b) = ([1; 9], [2; 8]);
        let refused = |transfers: &[(Direction, Transfer, Buffers<'_>)], words: &str| {
            let text = made(transfers).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        };
        refused(&[of(Send, 4, &mut a)], "rank 4 in a communicator of 4");
        refused(&[of(Send, 1, &mut a)], "sends itself 1 times and receives 0 times");
        refused(&[of(Send, 1, &mut a), of(Receive, 1, &mut b)], "sends itself 9 x");
        let (direction, what, buffers) = of(Send, 2, &mut a);
        refused(&[(direction, Transfer { count: 10, ..what }, buffers)], "a buffer of 9 bytes for 10 x");
    }

    use super::super::watch::About;
}

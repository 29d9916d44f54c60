//! What ranks send each other one by one, and what arrives.

use ccl_core::algorithms::transfer;
use ccl_transport_cuda::program::{Direction, End, Item, Queue};

/// Who sends whom how many bytes, in their order. Each rank's send buffer has all that it sends, one behind the other, and its receive buffer all
/// that it receives.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    pub(crate) ranks: usize,
    pub(crate) all: Vec<(usize, usize, usize)>,
}

/// Of the send and of the receive buffer.
type Sides = (usize, usize);

impl Ways {
    /// Bytes of a rank's buffers.
    pub(crate) fn lens(&self, rank: usize) -> Sides {
        self.places().1[rank]
    }

    /// Where in its sender's and its receiver's buffer each one's bytes are, and how long all buffers are.
    fn places(&self) -> (Vec<Sides>, Vec<Sides>) {
        let mut ends = vec![(0, 0); self.ranks];
        let place = |&(from, to, len): &(usize, usize, usize)| {
            let place = (ends[from].0, ends[to].1);
            ends[from].0 += len;
            ends[to].1 += len;
            place
        };
        let places = self.all.iter().map(place).collect();
        (places, ends)
    }

    /// What each rank has in the end.
    pub(crate) fn right(&self, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (places, ends) = self.places();
        let mut outputs: Vec<Vec<u8>> = ends.iter().map(|(_, len)| vec![0; *len]).collect();
        for (&(from, to, len), (at, into)) in self.all.iter().zip(places) {
            outputs[to][into..into + len].copy_from_slice(&inputs[from][at..at + len]);
        }
        outputs
    }

    /// A rank's part of it.
    pub(crate) fn queues(&self, rank: usize) -> Vec<Queue> {
        let end =
            |direction, peer: usize| Some(End { direction, peer: peer as u32, channel: transfer::CHANNEL });
        let mut queues: Vec<Queue> = Vec::new();
        let (places, _) = self.places();
        for (&(from, to, len), (at, into)) in self.all.iter().zip(places) {
            let sent = Item { at: at as u64, to: into as u64, bytes: len as u64, known: 1 };
            let (end, item) = match (from == rank, to == rank) {
                (true, true) => (None, sent),
                (true, false) => (end(Direction::Send, to), sent),
                (false, true) => (end(Direction::Receive, from), Item { at: into as u64, ..sent }),
                (false, false) => continue,
            };
            match queues.iter_mut().find(|queue| queue.end == end) {
                Some(queue) => queue.items.push(item),
                None => queues.push(Queue { end, items: vec![item] }),
            }
        }
        queues
    }
}

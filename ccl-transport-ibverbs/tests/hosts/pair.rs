//! Two ranks with a link each way, what goes from the first to the second, and random choices of it.

use super::transports;
use ccl_core::kernels::{Buffers, Piece, PieceMut};
use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::transport::{Counters, LinkKey, ReceiverId, SenderId, Transport};
use ccl_transport_ibverbs::IbTransport;

pub struct Random(pub u64);

impl Random {
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.up_to(u64::MAX - 1).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The ranks, and the ends of the link from the first to the second.
pub fn pair(slot_bytes: usize, credits: u32) -> (Vec<IbTransport>, SenderId, ReceiverId) {
    let mut t = transports(2, slot_bytes, credits);
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    (t, to, from)
}

pub fn piece(bytes: &[u8]) -> Piece {
    Buffers::new(bytes, &mut []).input()
}

pub fn sink(bytes: &mut [u8]) -> PieceMut {
    Buffers::new(&[], bytes).output()
}

/// Of that link.
pub fn counters(t: &IbTransport) -> Counters {
    let key = LinkKey { from: 0, to: 1, channel: 0 };
    t.counters().into_iter().find(|(link, _)| *link == key).unwrap().1
}

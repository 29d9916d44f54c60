//! Where pieces wait to be sent: slots that all links of a rank share, registered with every device. Each has room for a
//! header in front: a piece for one link is sent with it in one go.

use super::adapter::Adapter;
use super::sys::write;
use super::wire::{FRONT, HEADER};
use crate::verbs::{Memory, Region, Sge};
use ccl_core::Result;
use ccl_core::kernels::PieceMut;

/// Bytes that are allocated at a time, unless a slot is larger.
const CHUNK: usize = 1 << 20;

/// The slots. Those that came back last are given out first, as they are still in the cache.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The distance of two slots.
    stride: usize,
    per_chunk: usize,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Chunk {
    memory: Memory,
    /// By adapter.
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Slot {
    /// How many links still need it.
    users: u32,
    chunk: u32,
    /// All of it: room for a header, and for a piece.
    room: PieceMut,
}

impl Pool {
    pub(crate) fn new(slot_bytes: usize) -> Pool {
        let stride = FRONT + slot_bytes.next_multiple_of(FRONT);
        let per_chunk = (CHUNK / stride).max(1);
        Pool { stride, per_chunk, chunks: Vec::new(), free: Vec::new(), slots: Vec::new() }
    }

    /// Whether no slot is free.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.free.is_empty()
    }

    /// Makes sure that at least one slot is free.
    #[inline]
    pub(crate) fn ensure(&mut self, adapters: &[Adapter]) -> Result<()> {
        if self.is_short() { self.grow(adapters) } else { Ok(()) }
    }

    #[cold]
    fn grow(&mut self, adapters: &[Adapter]) -> Result<()> {
        let memory = Memory::allocate(self.per_chunk * self.stride)?;
        let regions =
            adapters.iter().map(|adapter| adapter.register_sends(&memory)).collect::<Result<_>>()?;
        let (first, chunk) = (self.slots.len() as u32, self.chunks.len() as u32);
        let slot = |at| Slot { users: 0, chunk, room: memory.slice_mut(at * self.stride, self.stride) };
        self.slots.extend((0..self.per_chunk).map(slot));
        self.chunks.push(Chunk { memory, regions });
        self.free.extend((first..self.slots.len() as u32).rev());
        Ok(())
    }

    /// A free slot, which one link needs. `ensure` has been called.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let slot = self.free.pop().expect("one is free, as `ensure` was called");
        self.slots[slot as usize].users = 1;
        slot
    }

    /// So many links need the slot.
    #[inline]
    pub(crate) fn share(&mut self, slot: u32, links: u32) {
        self.slots[slot as usize].users = links;
    }

    /// One link does not need it any more.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32) {
        let users = &mut self.slots[slot as usize].users;
        *users -= 1;
        if *users == 0 {
            self.free.push(slot);
        }
    }

    /// Whether more than one link needs it.
    #[inline]
    pub(crate) fn is_shared(&self, slot: u32) -> bool {
        self.slots[slot as usize].users > 1
    }

    /// The first bytes of a slot.
    #[inline]
    pub(crate) fn piece(&self, slot: u32, len: usize) -> PieceMut {
        self.slots[slot as usize].room.slice(FRONT, len)
    }

    /// The same for a device.
    #[inline]
    pub(crate) fn sge(&self, slot: u32, len: usize, adapter: usize) -> Sge {
        let Slot { chunk, room, .. } = &self.slots[slot as usize];
        self.chunks[*chunk as usize].regions[adapter].sge_mut(room.slice(FRONT, len))
    }

    /// The header in front of a piece, and both together for a device.
    #[inline(always)]
    pub(crate) fn headed(&self, slot: u32, header: [u8; HEADER], len: usize, adapter: usize) -> Sge {
        let Slot { chunk, room, .. } = &self.slots[slot as usize];
        let whole = room.slice(FRONT - HEADER, HEADER + len);
        write(whole.slice(0, HEADER), header);
        self.chunks[*chunk as usize].regions[adapter].sge_mut(whole)
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.memory.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_that_came_back_is_the_next() {
        let mut pool = Pool::new(8192);
        let take = |pool: &mut Pool| {
            pool.ensure(&[]).unwrap();
            pool.take()
        };
        let (a, b) = (take(&mut pool), take(&mut pool));
        pool.share(a, 2);
        pool.put(b);
        pool.put(a);
        assert_eq!(take(&mut pool), b, "one link still needs the other");
        pool.put(a);
        assert_eq!(take(&mut pool), a);
        let all: std::collections::HashSet<_> = (0..300).map(|_| take(&mut pool)).collect();
        assert_eq!(all.len(), 300);
        assert_eq!(pool.bytes(), 3 * 127 * (8192 + 64), "127 slots with their room for headers fit a chunk");
        let (x, y) = (pool.piece(126, 8192), pool.piece(127, 1));
        assert_ne!(x.as_mut_ptr(), y.as_mut_ptr());
    }
}

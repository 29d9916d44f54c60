//! Programs in the device's memory: written once, read by every launch.

use crate::sys::{DeviceMemory, Event, Primary, Relaxed, Stream, Words};
use ccl_core::Result;
use std::sync::Arc;

/// Words of a chunk.
pub(super) const CHUNK: usize = 128 << 10;

/// A piece of device memory, full of programs. Who has a program in it has this.
pub(super) struct Chunk {
    memory: DeviceMemory,
}

/// Where programs are written.
///
/// Nothing is freed while the communicator lives: that would wait for kernels. A chunk whose programs nobody has any more is used again
/// when the calls that may read it are over.
pub(super) struct Store {
    primary: Arc<Primary>,
    /// Of the copies. No default stream waits for it, and it for no kernel.
    copies: Stream,
    /// On which it is waited for calls.
    fences: Stream,
    words: Words,
    current: Arc<Chunk>,
    used: usize,
    /// Those that were full, with an event behind the calls that may read them once nobody has them.
    full: Vec<(Arc<Chunk>, Option<Event>)>,
}

impl Store {
    pub(super) fn new(primary: &Arc<Primary>) -> Result<Store> {
        Ok(Store {
            primary: Arc::clone(primary),
            copies: Stream::new(primary)?,
            fences: Stream::new(primary)?,
            words: Words::new(primary, CHUNK)?,
            current: Arc::new(Chunk { memory: DeviceMemory::alloc(primary, 8 * CHUNK)? }),
            used: 0,
            full: Vec::new(),
        })
    }

    /// Whether so many words need another chunk: then is the time to let go of programs.
    pub(super) fn is_full(&self, count: usize) -> bool {
        self.used + count > CHUNK
    }

    /// Writes words that come from `make`, which is told their address. `over` is behind all calls that were launched. Returns when they are
    /// there, which takes as long as a short copy.
    pub(super) fn put(
        &mut self,
        count: usize,
        over: &Event,
        make: impl FnOnce(u64) -> Vec<u64>,
    ) -> Result<(u64, Arc<Chunk>)> {
        assert!(count <= CHUNK, "a program longer than a chunk");
        let _relaxed = Relaxed::new(&self.primary)?;
        if self.is_full(count) {
            let fresh = self.fresh(over)?;
            let full = std::mem::replace(&mut self.current, fresh);
            self.full.push((full, None));
            self.used = 0;
        }
        let at = (self.current.memory.address() + 8 * self.used) as u64;
        let words = make(at);
        assert_eq!(words.len(), count, "as many words as were announced");
        self.write(&words, at)?;
        self.used += count;
        Ok((at, Arc::clone(&self.current)))
    }

    /// Writes words to a place of the device's memory.
    pub(super) fn write(&self, words: &[u64], at: u64) -> Result<()> {
        words.iter().enumerate().for_each(|(index, word)| self.words.store(index, *word));
        self.copies.copy_words(self.words.address(0), at, words.len())?;
        self.copies.synchronize()
    }

    fn fresh(&mut self, over: &Event) -> Result<Arc<Chunk>> {
        let mut found = None;
        for (index, (chunk, fence)) in self.full.iter_mut().enumerate() {
            match fence {
                Some(fence) if fence.is_done()? => found = Some(index),
                None if Arc::strong_count(chunk) == 1 => {
                    self.fences.wait(over)?;
                    let event = Event::new(&self.primary)?;
                    event.record(&self.fences)?;
                    *fence = Some(event);
                }
                _ => {}
            }
        }
        match found {
            Some(index) => Ok(self.full.swap_remove(index).0),
            None => Ok(Arc::new(Chunk { memory: DeviceMemory::alloc(&self.primary, 8 * CHUNK)? })),
        }
    }
}

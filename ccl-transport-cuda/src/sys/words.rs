//! Words that kernels and the CPU both read and write while the other is at work.

use super::context::Primary;
use super::memory::PinnedMemory;
use ccl_core::Result;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many words of 64 bits in pinned host memory, all 0 at first. Every access of the CPU is atomic.
pub(crate) struct Words {
    at: NonNull<u8>,
    /// Where devices see them.
    device: u64,
    count: usize,
    /// Whose they are.
    _memory: PinnedMemory,
}

// SAFETY: the words are atomic, and the memory lives as long.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub(crate) fn new(primary: &Arc<Primary>, count: usize) -> Result<Words> {
        let memory = PinnedMemory::alloc(primary, 8 * count)?;
        let (at, device) = memory.places()?;
        Ok(Words { at, device, count, _memory: memory })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "no such word");
        // SAFETY: inside of the memory, which the driver aligns to a page; every access is atomic.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(8 * index).cast()) }
    }

    /// What it holds; with it, all that a kernel wrote before it released this.
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    pub(crate) fn clear(&self) {
        (0..self.count).for_each(|index| self.store(index, 0));
    }

    /// Where devices see one.
    pub(crate) fn address(&self, index: usize) -> u64 {
        assert!(index <= self.count, "no such word");
        self.device + 8 * index as u64
    }
}

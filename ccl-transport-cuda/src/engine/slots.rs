//! The memory of slots of wires that leave the host.

use crate::sys::{DeviceMemory, PinnedMemory, Primary, page_bytes};
use ccl_core::Result;
use ccl_core::kernels::PieceMut;
use ccl_core::transport::{DmaBuf, Window};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// All are as long as some of these, so that both ends are of one length, and the part of a device's memory that others are shown is whole pages of any host.
const UNIT: usize = 64 << 10;

/// How the network's devices are told of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// By the descriptor of a dma-buf.
    DmaBuf,
    /// By its address.
    Address,
}

/// The slots of all ways to a peer, or of all from one. A clone is the same memory.
#[derive(Clone)]
pub struct Slots {
    memory: Memory,
    /// Where in it they are.
    range: Range<usize>,
    /// Where kernels see them.
    seen: u64,
}

#[derive(Clone)]
enum Memory {
    Pinned(Arc<PinnedMemory>),
    Device(Arc<DeviceMemory>),
}

impl Slots {
    /// So many bytes of pinned memory of the host.
    pub(super) fn pinned(primary: &Arc<Primary>, bytes: usize) -> Result<Slots> {
        let memory = PinnedMemory::alloc(primary, bytes.next_multiple_of(UNIT))?;
        let (range, seen) = (0..memory.len(), memory.seen()?);
        Ok(Slots { memory: Memory::Pinned(Arc::new(memory)), range, seen })
    }

    /// So many bytes of the device's memory, and how the network's devices are told of them. The descriptor of a dma-buf is closed with the window.
    pub(super) fn on_device(primary: &Arc<Primary>, bytes: usize, shown: Shown) -> Result<(Slots, Window)> {
        let (len, page) = (bytes.next_multiple_of(UNIT), page_bytes());
        let memory = DeviceMemory::alloc(primary, len + page)?;
        let start = memory.address().next_multiple_of(page) - memory.address();
        let range = start..start + len;
        let dma_buf = match shown {
            Shown::DmaBuf => Some(DmaBuf { descriptor: Arc::new(memory.dma_buf(&range)?), offset: 0 }),
            Shown::Address => None,
        };
        let seen = (memory.address() + start) as u64;
        let slots = Slots { memory: Memory::Device(Arc::new(memory)), range, seen };
        let window = Window { dma_buf, ..slots.window() };
        Ok((slots, window))
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether they lie in the device's memory.
    pub fn are_on_device(&self) -> bool {
        matches!(self.memory, Memory::Device(_))
    }

    /// All of them, where the host can touch them.
    pub(super) fn host(&self) -> Option<PieceMut> {
        match &self.memory {
            Memory::Pinned(memory) => Some(memory.piece()),
            Memory::Device(_) => None,
        }
    }

    /// The same for the network's devices, by their address.
    pub fn window(&self) -> Window {
        let (memory, owner): (_, Arc<dyn Any + Send + Sync>) = match &self.memory {
            Memory::Pinned(pinned) => (pinned.piece(), Arc::clone(pinned) as _),
            Memory::Device(on_device) => (on_device.part(self.range.clone()), Arc::clone(on_device) as _),
        };
        Window { memory, dma_buf: None, owner }
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_on_device = self.are_on_device();
        f.debug_struct("Slots").field("bytes", &self.len()).field("on_device", &is_on_device).finish()
    }
}

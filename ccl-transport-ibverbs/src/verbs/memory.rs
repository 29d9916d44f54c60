//! Protection domains and the memory that devices may touch.

use super::address::{AddressHandle, Path};
use super::context::Context;
use super::error::{cure_of_registration, failed};
use super::queue_pair::{QueuePair, QueuePairSetup};
use crate::sys;
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::transport::DmaBuf;
use ccl_core::{Error, Result};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What belongs together on a device: its queue pairs reach its regions, and no others.
#[derive(Clone)]
pub struct ProtectionDomain {
    context: Context,
    raw: Arc<sys::Pd>,
}

impl ProtectionDomain {
    /// A new one.
    pub fn new(context: &Context) -> Result<ProtectionDomain> {
        let raw = sys::Pd::new(context.raw().clone()).map_err(|e| {
            let name = context.name();
            let remedy = format!(
                "{name} has {} protection domains: end other programs that use it",
                context.limits().protection_domains
            );
            failed(format!("ibv_alloc_pd on {name}"), e, remedy)
        })?;
        Ok(ProtectionDomain { context: context.clone(), raw: Arc::new(raw) })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Lets the device touch memory of ours.
    pub fn register(&self, memory: &Memory, access: Access) -> Result<Region> {
        self.region(memory.extent(), access, Some(memory.clone()))
    }

    /// Lets the device touch memory of somebody else, which must stay mapped, and that somebody's, until the region is
    /// dropped: whoever gave the pieces that the extent was made of answers for it as for the pieces.
    pub fn register_foreign(&self, extent: Extent, access: Access) -> Result<Region> {
        self.region(extent, access, None)
    }

    /// Lets the device touch memory of another device, by a dma-buf; peers and work requests name it by the addresses of the extent, which must be
    /// that memory until the region is dropped.
    pub fn register_dma_buf(&self, extent: Extent, dma_buf: &DmaBuf, access: Access) -> Result<Region> {
        let name = self.context.name();
        let place = (dma_buf.descriptor.as_fd(), dma_buf.offset);
        let raw = sys::Mr::of_dma_buf(self.raw.clone(), place, extent.start, extent.len, access.0);
        let raw = raw.map_err(|e| {
            let remedy = cure_of_registration(name, &e, self.context.limits().regions);
            failed(format!("ibv_reg_dmabuf_mr of {} bytes on {name}", extent.len), e, remedy)
        })?;
        Ok(Region { raw: Arc::new(raw), extent, _memory: None })
    }

    /// Offers the device a dma-buf that is none, and gives the number of its error: EBADF, if it would take a real one. `None`: this
    /// libibverbs does not know of them.
    pub fn refuse_dma_buf(&self) -> Option<i32> {
        self.raw.refuse_dma_buf().map(|error| error.raw_os_error().unwrap_or(0))
    }

    /// A queue pair.
    pub fn queue_pair(&self, setup: &QueuePairSetup<'_>) -> Result<QueuePair> {
        QueuePair::new(self, setup)
    }

    /// The way to a peer's port, for datagrams.
    pub fn address_handle(&self, path: &Path) -> Result<AddressHandle> {
        AddressHandle::new(self, path)
    }

    pub(super) fn raw(&self) -> &Arc<sys::Pd> {
        &self.raw
    }

    fn region(&self, extent: Extent, access: Access, memory: Option<Memory>) -> Result<Region> {
        let name = self.context.name();
        if extent.len == 0 {
            return Err(Error::invalid(
                format!("{name}: a region of no bytes"),
                "register at least one byte",
            ));
        }
        let raw = sys::Mr::new(self.raw.clone(), extent.start, extent.len, access.0).map_err(|e| {
            let remedy = cure_of_registration(name, &e, self.context.limits().regions);
            failed(format!("ibv_reg_mr of {} bytes on {name}", extent.len), e, remedy)
        })?;
        Ok(Region { raw: Arc::new(raw), extent, _memory: memory })
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain").field(&self.context.name()).finish()
    }
}

/// What a device may do with a region beside reading it for this process's own sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Nothing more: for what is only sent.
    pub const READ: Access = Access(0);
    /// Write what this process receives.
    pub const LOCAL_WRITE: Access = Access(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Write what peers write, which takes local writes too.
    pub const REMOTE_WRITE: Access = Access(sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE);
    /// Read what peers read.
    pub const REMOTE_READ: Access = Access(sys::IBV_ACCESS_REMOTE_READ);
    /// The bytes of a write may land in any order, which is faster on many machines: a reader must wait for a completion,
    /// never for the bytes themselves. Where it cannot be had it is left out.
    pub const RELAXED_ORDERING: Access = Access(sys::IBV_ACCESS_RELAXED_ORDERING);

    /// This and that.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// Zeroed memory of our own on page boundaries, in huge pages where it is large. A clone is the same memory.
#[derive(Clone)]
pub struct Memory(Arc<sys::Mapping>);

impl Memory {
    /// `len` bytes, not zero.
    pub fn allocate(len: usize) -> Result<Memory> {
        let mapping = sys::Mapping::new(len).map_err(|e| {
            let remedy =
                "ask for at least one byte, free memory, or raise the address space limit (ulimit -v)";
            failed(format!("mapping {len} bytes"), e, remedy)
        })?;
        Ok(Memory(Arc::new(mapping)))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `offset`, to read. Panics if they do not lie inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Piece {
        self.0.piece().slice(offset, len)
    }

    /// `len` bytes from `offset`, to write. Panics if they do not lie inside.
    #[inline]
    pub fn slice_mut(&self, offset: usize, len: usize) -> PieceMut {
        self.0.piece_mut().slice(offset, len)
    }

    /// `N` bytes from `offset`: a header, say. Panics if they do not lie inside.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.0.read(offset)
    }

    /// Writes `N` bytes from `offset` on. Panics if they do not lie inside.
    #[inline]
    pub fn write<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        self.0.write(offset, bytes);
    }

    fn extent(&self) -> Extent {
        Extent { start: self.0.address(), len: self.len() }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish()
    }
}

/// A range of addresses to register; it is never looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    start: u64,
    len: usize,
}

impl Extent {
    /// The bytes of a piece.
    pub fn of(piece: Piece) -> Extent {
        Extent { start: piece.as_ptr().expose_provenance() as u64, len: piece.len() }
    }

    /// The pages in which these bytes lie: what a cache registers, so that the next buffer in the same pages is covered.
    #[must_use]
    pub fn pages(self) -> Extent {
        let page = rustix::param::page_size() as u64;
        let start = self.start / page * page;
        let end = (self.start + self.len as u64).next_multiple_of(page);
        Extent { start, len: (end - start) as usize }
    }

    /// The first address.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The address after the last.
    pub fn end(self) -> u64 {
        self.start + self.len as u64
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether all of `other` lies inside.
    #[inline]
    pub fn covers(self, other: Extent) -> bool {
        other.is_empty() || self.start <= other.start && other.end() <= self.end()
    }
}

/// Registered memory. A clone is the same registration; the last one ends it.
#[derive(Clone)]
pub struct Region {
    raw: Arc<sys::Mr>,
    extent: Extent,
    /// After the registration, which drops first.
    _memory: Option<Memory>,
}

impl Region {
    /// What is registered.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether the bytes of a write may land in any order.
    pub fn is_relaxed(&self) -> bool {
        self.raw.relaxed()
    }

    /// A piece that lies inside, for a send. Panics if it does not.
    #[inline]
    pub fn sge(&self, piece: Piece) -> Sge {
        let part = self.part(piece);
        let length = u32::try_from(part.len).expect("a piece longer than a work request can say");
        Sge(sys::ibv_sge { addr: part.start, length, lkey: self.raw.lkey() })
    }

    /// A piece that lies inside, for a receive. Panics if it does not.
    #[inline]
    pub fn sge_mut(&self, piece: PieceMut) -> Sge {
        self.sge(piece.as_piece())
    }

    /// What a peer needs to write to this piece, which must lie inside. Panics if it does not.
    #[inline]
    pub fn remote(&self, piece: PieceMut) -> Remote {
        Remote { address: self.part(piece.as_piece()).start, key: self.raw.rkey() }
    }

    #[inline]
    fn part(&self, piece: Piece) -> Extent {
        let part = Extent::of(piece);
        assert!(self.extent.covers(part), "a piece outside of its region");
        // A piece without bytes has no address.
        if part.is_empty() { Extent { len: 0, ..self.extent } } else { part }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("extent", &self.extent).finish()
    }
}

/// Bytes of a [`Region`] that a work request names. Valid as long as the region.
#[derive(Clone, Copy, Debug)]
pub struct Sge(pub(super) sys::ibv_sge);

impl Sge {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.length as usize
    }

    /// Whether it names no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// `len` bytes from `offset`. Panics if they do not lie inside.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Sge {
        assert!(offset <= self.len() && len <= self.len() - offset, "a work request past its memory's end");
        Sge(sys::ibv_sge { addr: self.0.addr + offset as u64, length: len as u32, lkey: self.0.lkey })
    }
}

/// An address in a peer's memory, and the key to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address, as the peer sees it.
    pub address: u64,
    /// The key of the peer's region.
    pub key: u32,
}

impl Remote {
    /// So many bytes further on.
    #[inline]
    #[must_use]
    pub fn at(self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_on_page_boundaries() {
        for len in [1, 4096, 5000, 3 << 20] {
            let memory = Memory::allocate(len).unwrap();
            assert_eq!(memory.len(), len);
            let align = if len >= 2 << 20 { 2 << 20 } else { rustix::param::page_size() };
            assert_eq!(memory.slice(0, len).as_ptr().addr() % align, 0);
            assert_eq!(memory.read::<1>(len - 1), [0]);
            memory.write(len - 1, [7]);
            assert_eq!(memory.read::<1>(len - 1), [7]);
        }
        let text = Memory::allocate(0).unwrap_err().to_string();
        assert!(text.contains("mapping 0 bytes failed") && text.contains("at least one byte"), "{text}");
    }

    #[test]
    #[should_panic(expected = "piece sliced past its end")]
    fn a_slice_past_the_end_is_refused() {
        Memory::allocate(4096).unwrap().slice(4000, 97);
    }

    #[test]
    fn parts_of_what_a_work_request_names_lie_inside() {
        let whole = Sge(sys::ibv_sge { addr: 1 << 32, length: 100, lkey: 7 });
        let Sge(part) = whole.slice(60, 40);
        assert_eq!((part.addr, part.length, part.lkey), ((1 << 32) + 60, 40, 7));
        for (offset, len) in [(60, 41), (101, 0), (usize::MAX, 2), (0, usize::MAX)] {
            let outside = std::panic::catch_unwind(|| whole.slice(offset, len));
            assert!(outside.is_err(), "{len} bytes from {offset}");
        }
    }

    #[test]
    fn pages_cover_what_lies_in_them() {
        let page = rustix::param::page_size();
        let memory = Memory::allocate(3 * page).unwrap();
        let part = Extent::of(memory.slice(page - 1, 2));
        assert_eq!(part.pages(), Extent::of(memory.slice(0, 2 * page)));
        assert!(part.pages().covers(part) && !part.covers(part.pages()));
        let aligned = Extent::of(memory.slice(page, page));
        assert_eq!(aligned.pages(), aligned);
    }
}

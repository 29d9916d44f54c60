//! Memory of a device, and host memory that devices reach.

use super::abi::*;
use super::context::Primary;
use super::virtual_memory::VirtualMemory;
use crate::driver::Attribute;
use ccl_core::kernels::{Buffers, PieceMut};
use ccl_core::{Error, Result};
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page of the host.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: takes a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Bytes in a device's memory. No host code may touch them.
pub struct DeviceMemory {
    primary: Arc<Primary>,
    at: CUdeviceptr,
    len: usize,
    /// What keeps it, where that is not `cuMemAlloc`.
    range: Option<VirtualMemory>,
}

impl DeviceMemory {
    /// So many bytes, at least one, of whatever they hold.
    pub fn alloc(primary: &Arc<Primary>, len: usize) -> Result<DeviceMemory> {
        let _entered = primary.enter()?;
        let mut at = 0;
        let what = || format!("cuMemAlloc of {len} bytes on device {}", primary.ordinal());
        // SAFETY: room for an address.
        primary.driver().check(unsafe { (primary.table().cuMemAlloc)(&mut at, len.max(1)) }, what)?;
        Ok(DeviceMemory { primary: Arc::clone(primary), at, len, range: None })
    }

    /// The same for what other processes are to open: where the driver gives them nothing of `cuMemAlloc`, but takes file
    /// descriptors, it is memory that has one.
    pub(crate) fn for_others(primary: &Arc<Primary>, len: usize) -> Result<DeviceMemory> {
        let memory = DeviceMemory::alloc(primary, len)?;
        let asked = primary.driver().attribute(primary.device(), Attribute::PosixFileDescriptors as i32)?;
        if memory.export()?.opens_elsewhere() || asked.unwrap_or(0) == 0 {
            return Ok(memory);
        }
        drop(memory);
        let range = VirtualMemory::alloc(primary, len, 0)?;
        Ok(DeviceMemory { primary: Arc::clone(primary), at: range.address(), len, range: Some(range) })
    }

    /// Copies host bytes to a place in it, and returns when they are there. It waits for nothing that streams like [`Stream`](super::Stream)'s do.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        assert!(at <= self.len && bytes.len() <= self.len - at, "written past the end");
        let _entered = self.primary.enter()?;
        let to = self.at + at as u64;
        // SAFETY: inside of the memory, which is borrowed exclusively; and bytes that are borrowed.
        let code = unsafe { (self.primary.table().cuMemcpyHtoD)(to, bytes.as_ptr().cast(), bytes.len()) };
        self.primary.driver().check(code, || format!("cuMemcpyHtoD of {} bytes", bytes.len()))?;
        // The driver may have taken the bytes and not yet brought them: it does so in the order of the default stream.
        let default = std::ptr::without_provenance_mut(CU_STREAM_LEGACY);
        // SAFETY: the handle of the context's default stream.
        let code = unsafe { (self.primary.table().cuStreamSynchronize)(default) };
        self.primary.driver().check(code, || "cuStreamSynchronize of the default stream".into())
    }

    /// Copies a part of it to the host, and returns when it is there. It waits for nothing that streams do.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(at <= self.len && bytes.len() <= self.len - at, "read past the end");
        let _entered = self.primary.enter()?;
        let from = self.at + at as u64;
        // SAFETY: inside of the memory; and room that is borrowed exclusively.
        let code =
            unsafe { (self.primary.table().cuMemcpyDtoH)(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        self.primary.driver().check(code, || format!("cuMemcpyDtoH of {} bytes", bytes.len()))
    }

    pub(super) fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// Bytes of it, which devices may touch and the host may not.
    pub(crate) fn part(&self, range: Range<usize>) -> PieceMut {
        assert!(range.start <= range.end && range.end <= self.len, "a part past the end");
        let at = with_exposed_provenance_mut(self.address() + range.start);
        // SAFETY: inside of the memory, as long as it lives; whoever asks hands it to devices only.
        unsafe { PieceMut::new(at, range.len()) }
    }

    /// The descriptor by which the kernel hands bytes of it on to other devices; they are whole pages of the host.
    pub(crate) fn dma_buf(&self, range: &Range<usize>) -> Result<OwnedFd> {
        let part = self.part(range.clone());
        let _entered = self.primary.enter()?;
        let (at, mut descriptor) = (part.as_mut_ptr().addr() as u64, -1i32);
        let (into, kind) = ((&raw mut descriptor).cast(), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
        // SAFETY: room for a descriptor, and addresses inside of the memory.
        let code =
            unsafe { (self.primary.table().cuMemGetHandleForAddressRange)(into, at, part.len(), kind, 0) };
        let what = || {
            format!(
                "cuMemGetHandleForAddressRange of {} bytes on device {}",
                part.len(),
                self.primary.ordinal()
            )
        };
        self.primary.driver().check(code, what)?;
        if descriptor < 0 {
            return Err(Error::unsupported(
                "a dma-buf without a descriptor",
                "report it with the driver's version",
            ));
        }
        // SAFETY: just opened by the driver for this call's caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Its address, which means something to the device only.
    pub fn address(&self) -> usize {
        self.at as usize
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Part of it as the send buffer of a call, and part of it or of another as the receive buffer.
    pub(crate) fn buffers<'m>(
        send: (&'m DeviceMemory, Range<usize>),
        receive: (&'m DeviceMemory, Range<usize>),
        in_place: bool,
    ) -> Buffers<'m> {
        let place = |(memory, range): &(&DeviceMemory, Range<usize>)| {
            assert!(
                range.start <= range.end && range.end <= memory.len,
                "a buffer past the end of its memory"
            );
            memory.address() + range.start
        };
        let (from, into) = (place(&send), place(&receive));
        let (from, into) = (with_exposed_provenance(from), with_exposed_provenance_mut(into));
        // SAFETY: inside of memory that is borrowed; the callers have borrowed exclusively what is written.
        unsafe { Buffers::from_raw(from, send.1.len(), into, receive.1.len(), in_place) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.range.take().is_some() {
            return;
        }
        if let Ok(_entered) = self.primary.enter() {
            // SAFETY: allocated in this context and freed once.
            unsafe { (self.primary.table().cuMemFree)(self.at) };
        }
    }
}

/// Host memory that devices copy from and to while the CPU goes on, zeroed at first. Its owner keeps it until no device uses it.
pub(crate) struct PinnedMemory {
    primary: Arc<Primary>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: memory without a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: it gives out addresses, and touches nothing.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// So many bytes, at least one.
    pub(crate) fn alloc(primary: &Arc<Primary>, len: usize) -> Result<PinnedMemory> {
        let len = len.max(1);
        let _entered = primary.enter()?;
        let mut at = null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        let what = || format!("cuMemHostAlloc of {len} bytes");
        // SAFETY: room for an address.
        primary.driver().check(unsafe { (primary.table().cuMemHostAlloc)(&mut at, len, flags) }, what)?;
        let at = NonNull::new(at.cast::<u8>()).ok_or_else(|| {
            Error::unsupported("cuMemHostAlloc gave no memory", "report it with the driver's version")
        })?;
        // SAFETY: `len` bytes that are nobody else's.
        unsafe { at.write_bytes(0, len) };
        Ok(PinnedMemory { primary: Arc::clone(primary), at, len })
    }

    /// How many bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its first byte, and where devices see that.
    pub(super) fn places(&self) -> Result<(NonNull<u8>, CUdeviceptr)> {
        let _entered = self.primary.enter()?;
        let (table, mut device) = (self.primary.table(), 0);
        // SAFETY: room for an address, of memory that was allocated for devices.
        let code = unsafe { (table.cuMemHostGetDevicePointer)(&mut device, self.at.as_ptr().cast(), 0) };
        self.primary.driver().check(code, || "cuMemHostGetDevicePointer".into())?;
        Ok((self.at, device))
    }

    /// Where devices see its first byte.
    pub(crate) fn seen(&self) -> Result<u64> {
        Ok(self.places()?.1)
    }

    /// Its bytes, to be read and written by whoever's turn it is: the owner knows.
    pub(crate) fn piece(&self) -> PieceMut {
        // SAFETY: as long as it lives; the owner, who alone can ask, orders who writes them.
        unsafe { PieceMut::new(self.at.as_ptr(), self.len) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.primary.enter() {
            // SAFETY: allocated in this context and freed once.
            unsafe { (self.primary.table().cuMemFreeHost)(self.at.as_ptr().cast()) };
        }
    }
}

/// Numbers that streams wait for and the CPU sets: one a cache line, in pinned memory.
pub(crate) struct Flags {
    memory: PinnedMemory,
    /// Where devices see them.
    device: CUdeviceptr,
}

// SAFETY: the numbers are atomic, and the memory lives as long.
unsafe impl Sync for Flags {}

impl Flags {
    const STRIDE: usize = 64;

    /// So many, all 0.
    pub(crate) fn new(primary: &Arc<Primary>, count: usize) -> Result<Flags> {
        let memory = PinnedMemory::alloc(primary, count * Flags::STRIDE)?;
        let (_, device) = memory.places()?;
        Ok(Flags { memory, device })
    }

    /// Sets one: who waits for it sees what this thread wrote before.
    pub(crate) fn set(&self, index: usize, value: u32) {
        assert!((index + 1) * Flags::STRIDE <= self.memory.len(), "no such flag");
        // SAFETY: inside of the memory, aligned to 64; every access is atomic.
        let flag = unsafe { AtomicU32::from_ptr(self.memory.at.as_ptr().add(index * Flags::STRIDE).cast()) };
        flag.store(value, Ordering::Release);
    }

    pub(super) fn address(&self, index: usize) -> CUdeviceptr {
        assert!((index + 1) * Flags::STRIDE <= self.memory.len(), "no such flag");
        self.device + (index * Flags::STRIDE) as u64
    }
}

//! Memory and addresses that are made apart (`cuMemCreate`, `cuMemMap`), and file descriptors by which other processes have such
//! memory.

use super::abi::*;
use super::context::Primary;
use ccl_core::{Error, Result};
use libc::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

/// Some memory of a device, with or without an address. It goes when nobody holds it and it is mapped nowhere, in no process.
pub(super) struct Allocation {
    pub(super) primary: Arc<Primary>,
    pub(super) handle: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// That which is mapped at an address; `None` where the memory there is of another kind.
    pub(super) fn at(primary: &Arc<Primary>, address: u64) -> Result<Option<Allocation>> {
        let mut handle = 0;
        let at = with_exposed_provenance_mut(address as usize);
        // SAFETY: room for a handle; the address is looked up, not followed.
        match unsafe { (primary.table().cuMemRetainAllocationHandle)(&mut handle, at) } {
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED => Ok(None),
            code => {
                let what = || format!("cuMemRetainAllocationHandle of {address:#x}");
                primary.driver().check(code, what)?;
                Ok(Some(Allocation { primary: Arc::clone(primary), handle }))
            }
        }
    }

    /// Whether it was made for other processes.
    fn has_descriptor(&self) -> Result<bool> {
        let mut about = CUmemAllocationProp::default();
        // SAFETY: room for the properties of a handle that is held.
        let code =
            unsafe { (self.primary.table().cuMemGetAllocationPropertiesFromHandle)(&mut about, self.handle) };
        self.primary.driver().check(code, || "cuMemGetAllocationPropertiesFromHandle".into())?;
        Ok(about.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0)
    }

    /// What a process gave a descriptor of. In an entered context.
    pub(super) fn import(primary: &Arc<Primary>, descriptor: &OwnedFd) -> Result<Allocation> {
        let mut handle = 0;
        let given = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: room for a handle, and an open descriptor in place of a pointer, as the manual says.
        let code = unsafe { (primary.table().cuMemImportFromShareableHandle)(&mut handle, given, kind) };
        primary.driver().check(code, || "cuMemImportFromShareableHandle".into())?;
        Ok(Allocation { primary: Arc::clone(primary), handle })
    }

    /// A descriptor of it, which another process imports.
    pub(super) fn descriptor(&self) -> Result<OwnedFd> {
        let (mut descriptor, kind): (c_int, _) = (-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        let (table, into) = (self.primary.table(), (&raw mut descriptor).cast::<c_void>());
        // SAFETY: room for a descriptor, of a handle that is held.
        let code = unsafe { (table.cuMemExportToShareableHandle)(into, self.handle, kind, 0) };
        self.primary.driver().check(code, || "cuMemExportToShareableHandle".into())?;
        // SAFETY: new, and this process's.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: held once.
        unsafe { (self.primary.table().cuMemRelease)(self.handle) };
    }
}

/// How memory that is mapped may be given to other processes.
pub(super) enum Given {
    /// It is of another kind.
    NotVirtual,
    /// It was not made for others.
    No,
    By(OwnedFd),
}

/// Asks it of the memory at an address, in an entered context.
pub(super) fn given(primary: &Arc<Primary>, address: u64) -> Result<Given> {
    match Allocation::at(primary, address)? {
        None => Ok(Given::NotVirtual),
        Some(allocation) if allocation.has_descriptor()? => allocation.descriptor().map(Given::By),
        Some(_) => Ok(Given::No),
    }
}

/// Lets a device use a mapped range of addresses, if it is memory of this kind: others are for `cuCtxEnablePeerAccess`. In an entered context.
pub(super) fn admit(primary: &Arc<Primary>, address: u64) -> Result<bool> {
    let Some(_allocation) = Allocation::at(primary, address)? else { return Ok(false) };
    let (mut base, mut len) = (0, 0);
    // SAFETY: room for an address and a size; the driver looks the address up.
    let code = unsafe { (primary.table().cuMemGetAddressRange)(&mut base, &mut len, address) };
    primary.driver().check(code, || format!("cuMemGetAddressRange of {address:#x}"))?;
    set_access(primary, base, len)?;
    Ok(true)
}

fn set_access(primary: &Primary, at: u64, len: usize) -> Result<()> {
    let access = CUmemAccessDesc { location: location(primary), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: a range that is mapped, and one description.
    let code = unsafe { (primary.table().cuMemSetAccess)(at, len, &access, 1) };
    let ordinal = primary.ordinal();
    primary.driver().check(code, || format!("cuMemSetAccess of {len} bytes at {at:#x} for device {ordinal}"))
}

fn location(primary: &Primary) -> CUmemLocation {
    CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: primary.device() }
}

/// A range of addresses of this process with an allocation behind it, which this process's device may read and write.
pub(super) struct VirtualMemory {
    primary: Arc<Primary>,
    at: CUdeviceptr,
    len: usize,
    is_mapped: bool,
}

impl VirtualMemory {
    /// So many bytes or somewhat more, of a kind that other processes can have; it is a multiple of `alignment`, as its address is.
    pub(super) fn alloc(primary: &Arc<Primary>, len: usize, alignment: usize) -> Result<VirtualMemory> {
        let _entered = primary.enter()?;
        let table = primary.table();
        let about = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: location(primary),
            ..CUmemAllocationProp::default()
        };
        let mut grain = 0;
        // SAFETY: room for a size, and properties.
        let code = unsafe {
            (table.cuMemGetAllocationGranularity)(&mut grain, &about, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        };
        primary.driver().check(code, || "cuMemGetAllocationGranularity".into())?;
        let len = len.max(1).next_multiple_of(grain.max(alignment).max(1));
        let mut handle = 0;
        // SAFETY: room for a handle, and properties.
        let code = unsafe { (table.cuMemCreate)(&mut handle, len, &about, 0) };
        let ordinal = primary.ordinal();
        primary.driver().check(code, || format!("cuMemCreate of {len} bytes on device {ordinal}"))?;
        let made = Allocation { primary: Arc::clone(primary), handle };
        VirtualMemory::map(&made, len, alignment)
    }

    /// What another process gave a descriptor of, all `len` bytes of it. In an entered context.
    pub(super) fn import(primary: &Arc<Primary>, descriptor: &OwnedFd, len: usize) -> Result<VirtualMemory> {
        VirtualMemory::map(&Allocation::import(primary, descriptor)?, len, 0)
    }

    /// The allocation stays as long as it is mapped. In an entered context.
    pub(super) fn map(allocation: &Allocation, len: usize, alignment: usize) -> Result<VirtualMemory> {
        let primary = &allocation.primary;
        let (table, mut at) = (primary.table(), 0);
        // SAFETY: room for an address.
        let code = unsafe { (table.cuMemAddressReserve)(&mut at, len, alignment, 0, 0) };
        primary.driver().check(code, || format!("cuMemAddressReserve of {len} bytes"))?;
        let mut made = VirtualMemory { primary: Arc::clone(primary), at, len, is_mapped: false };
        // SAFETY: addresses that were just reserved, and an allocation that is held.
        let code = unsafe { (table.cuMemMap)(at, len, 0, allocation.handle, 0) };
        primary.driver().check(code, || format!("cuMemMap of {len} bytes"))?;
        made.is_mapped = true;
        set_access(primary, at, len)?;
        Ok(made)
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.at
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for VirtualMemory {
    fn drop(&mut self) {
        let Ok(_entered) = self.primary.enter() else { return };
        let table = self.primary.table();
        if self.is_mapped {
            // SAFETY: mapped once. Who has it knows that no work uses it.
            unsafe { (table.cuMemUnmap)(self.at, self.len) };
        }
        // SAFETY: reserved once, and nothing is mapped there.
        unsafe { (table.cuMemAddressFree)(self.at, self.len) };
    }
}

/// A descriptor of another process, as one of this.
pub(super) fn fetch(pid: u32, descriptor: i32) -> Result<OwnedFd> {
    const REMEDY: &str = "the owner must be alive and of the same user; in containers allow it by --cap-add=SYS_PTRACE and --pid=host, \
                          and see that kernel.yama.ptrace_scope is 0";
    let failed = |call: &str| {
        let what = format!("{call} of descriptor {descriptor} of process {pid}");
        Error::system(what, io::Error::last_os_error(), REMEDY)
    };
    // SAFETY: takes numbers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as c_int, 0) };
    if process < 0 {
        return Err(failed("pidfd_open"));
    }
    // SAFETY: new, and this process's.
    let process = unsafe { OwnedFd::from_raw_fd(process as c_int) };
    // SAFETY: an open descriptor, and numbers.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) };
    if got < 0 {
        return Err(failed("pidfd_getfd"));
    }
    // SAFETY: as above; the kernel sets its close-on-exec flag.
    Ok(unsafe { OwnedFd::from_raw_fd(got as c_int) })
}

//! Memory that other ranks reach: the driver's side of [`crate::sharing`].

use super::abi::*;
use super::context::Primary;
use super::memory::DeviceMemory;
use super::virtual_memory::{Given, VirtualMemory, admit, fetch, given};
use crate::driver::{Device, Driver, Kind, remedy};
use crate::sharing::{Handle, Process, Way};
use ccl_core::{Error, Result};
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl DeviceMemory {
    /// What other ranks open it by. It must outlive what they make of that.
    pub fn export(&self) -> Result<Handle> {
        Handle::of(self.primary(), self.address(), self.len())
    }
}

impl Handle {
    /// That of some memory of a device, which the program may have allocated itself: at least one byte, inside of one allocation. It
    /// must stay until all peers have closed it.
    pub fn of(primary: &Arc<Primary>, address: usize, len: usize) -> Result<Handle> {
        let (driver, table, ordinal) = (primary.driver(), primary.table(), primary.ordinal());
        let what = |call: &str| format!("{call} of {address:#x} on device {ordinal}");
        let _entered = primary.enter()?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: room for an address and a size; the driver looks the address up.
        let code = unsafe { (table.cuMemGetAddressRange)(&mut base, &mut size, address as u64) };
        driver.check(code, || what("cuMemGetAddressRange"))?;
        let offset = address as u64 - base;
        if len == 0 || (size as u64).checked_sub(offset).is_none_or(|left| left < len as u64) {
            let what = format!("{len} bytes to be shared, {offset} bytes into an allocation of {size}");
            return Err(Error::invalid(what, "share at least one byte, and none past the end"));
        }
        let mut uuid = CUuuid::default();
        // SAFETY: room for an identity, of a device that is there.
        let code = unsafe { (table.cuDeviceGetUuid)(&mut uuid, primary.device()) };
        driver.check(code, || format!("cuDeviceGetUuid of device {ordinal}"))?;
        let mut handle = CUipcMemHandle { bytes: [0; 64] };
        let mut descriptor = None;
        // SAFETY: room for a handle; the address is that of an allocation.
        let way = match unsafe { (table.cuIpcGetMemHandle)(&mut handle, base) } {
            CUDA_SUCCESS => Way::Ipc { handle: handle.bytes, offset },
            code @ (CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED) => match given(primary, base)? {
                Given::By(own) => {
                    let number = own.as_raw_fd();
                    descriptor = Some(Arc::new(own));
                    Way::Descriptor { number, size: size as u64, offset }
                }
                // What the driver gives to no other process threads of this one can have.
                Given::No | Given::NotVirtual => Way::None { code },
            },
            code => {
                driver.check(code, || what("cuIpcGetMemHandle"))?;
                Way::None { code }
            }
        };
        let (address, len) = (address as u64, len as u64);
        Ok(Handle { process: Process::this()?, uuid: uuid.bytes, address, len, way, _descriptor: descriptor })
    }
}

/// A rank's memory, where a device of this process reaches it. Dropped when no work of a device uses it any more, and before
/// its owner frees the memory.
#[derive(Debug)]
pub struct Mapped {
    address: u64,
    len: u64,
    source: Source,
}

/// What keeps it reachable.
enum Source {
    /// Memory of this process, with the context that it is in.
    Here { _owner: Arc<Primary> },
    /// Another process's allocation, which was opened in a context at an address.
    Elsewhere { primary: Arc<Primary>, base: CUdeviceptr },
    /// One that has a range of addresses here.
    Virtual(#[expect(dead_code, reason = "held")] VirtualMemory),
}

impl Mapped {
    /// Makes memory reachable for a device, whoever's it is.
    pub fn open(primary: &Arc<Primary>, handle: &Handle) -> Result<Mapped> {
        let this = Process::this()?;
        let (theirs, driver) = (&handle.process, primary.driver());
        if theirs.boot != this.boot {
            let what = "memory of a device of another host";
            return Err(Error::unsupported(what, "only ranks of one host share the memory of devices"));
        }
        // A device that this process is not shown has no number here.
        let devices = driver.devices()?;
        let owner = devices.iter().find(|device| device.uuid == handle.uuid);
        if let Some(owner) = owner.filter(|owner| owner.ordinal != primary.ordinal()) {
            need_access(primary, owner)?;
        }
        match owner {
            Some(owner) if *theirs == this => Mapped::here(primary, owner, handle),
            _ => Mapped::elsewhere(primary, handle, this.namespace),
        }
    }

    fn here(primary: &Arc<Primary>, owner: &Device, handle: &Handle) -> Result<Mapped> {
        let kind = primary.driver().kind(handle.address as usize)?;
        if kind != Kind::Device(owner.ordinal) {
            let what = format!("a handle of {:#x} on device {}: {kind}", handle.address, owner.ordinal);
            return Err(Error::invalid(what, "keep memory until all peers have closed it"));
        }
        let context = owner.primary()?;
        if owner.ordinal != primary.ordinal() {
            let _entered = primary.enter()?;
            if !admit(primary, handle.address)? {
                enable_peer(primary, &context, owner.ordinal)?;
            }
        }
        Ok(Mapped { address: handle.address, len: handle.len, source: Source::Here { _owner: context } })
    }

    fn elsewhere(primary: &Arc<Primary>, handle: &Handle, namespace: u64) -> Result<Mapped> {
        let driver = primary.driver();
        let pid = handle.process.pid;
        let (bytes, offset) = match handle.way {
            Way::Ipc { handle, offset } => (handle, offset),
            Way::Descriptor { number, size, offset } => {
                let descriptor = fetch(pid, number)?;
                let _entered = primary.enter()?;
                let opened = VirtualMemory::import(primary, &descriptor, size as usize)?;
                let address = opened.address() + offset;
                return Ok(Mapped { address, len: handle.len, source: Source::Virtual(opened) });
            }
            Way::None { code } => {
                let call = format!("cuIpcGetMemHandle of {:#x} in process {pid}", handle.address);
                return Err(driver.error(code, call, NOT_FOR_OTHERS));
            }
        };
        let _entered = primary.enter()?;
        let (mut base, flags) = (0, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        // SAFETY: room for an address; a wrong handle is an error.
        let code =
            unsafe { (primary.table().cuIpcOpenMemHandle)(&mut base, CUipcMemHandle { bytes }, flags) };
        check(driver, code, || {
            let Handle { len, address, .. } = handle;
            let container = if handle.process.namespace == namespace { "" } else { " of another container" };
            format!(
                "cuIpcOpenMemHandle on device {} of {len} bytes at {address:#x} in process {pid}{container}",
                primary.ordinal()
            )
        })?;
        let source = Source::Elsewhere { primary: Arc::clone(primary), base };
        Ok(Mapped { address: base + offset, len: handle.len, source })
    }

    /// Where the device finds it.
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Here { .. } => "of this process",
            Source::Elsewhere { .. } | Source::Virtual(_) => "of another process",
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Source::Elsewhere { primary, base } = &self.source else { return };
        if let Ok(_entered) = primary.enter() {
            // SAFETY: opened in this context and closed once. Who has it knows that no work uses it.
            unsafe { (primary.table().cuIpcCloseMemHandle)(*base) };
        }
    }
}

/// Lets a context reach what was allocated in another's.
fn enable_peer(primary: &Primary, context: &Primary, owner: u32) -> Result<()> {
    // SAFETY: a context that lives; flags must be 0.
    let code = unsafe { (primary.table().cuCtxEnablePeerAccess)(context.raw(), 0) };
    if code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        return Ok(());
    }
    check(primary.driver(), code, || {
        format!("cuCtxEnablePeerAccess of device {} to device {owner}", primary.ordinal())
    })
}

/// Asks whether a device reaches the memory of another.
fn need_access(primary: &Primary, owner: &Device) -> Result<()> {
    let mut can = 0;
    let (device, peer) = (primary.ordinal(), owner.ordinal);
    // SAFETY: room for a number, and two devices that are there.
    let code = unsafe { (primary.table().cuDeviceCanAccessPeer)(&mut can, primary.device(), owner.handle) };
    primary.driver().check(code, || format!("cuDeviceCanAccessPeer of device {device} to device {peer}"))?;
    if can != 0 {
        return Ok(());
    }
    let what =
        format!("device {device} does not reach the memory of device {peer}: cuDeviceCanAccessPeer says no");
    Err(Error::unsupported(what, NO_ACCESS))
}

/// An error of opening, with its cure.
fn check(driver: Driver, code: CUresult, call: impl FnOnce() -> String) -> Result<()> {
    match code {
        CUDA_SUCCESS => Ok(()),
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => Err(driver.error(code, call(), NO_ACCESS)),
        CUDA_ERROR_TOO_MANY_PEERS => Err(driver.error(code, call(), TOO_MANY)),
        // What does not come from the handle: out of memory, no device, and what went wrong before.
        2..=4 | 100 | 700..=719 => Err(driver.error(code, call(), remedy(code))),
        _ => Err(driver.error(code, call(), NOT_OPENED)),
    }
}

const NOT_FOR_OTHERS: &str = "only memory of cuMemAlloc and cudaMalloc, and of cuMemCreate with file descriptors, is given to other \
                              processes, not that of pools, of managed memory or of PyTorch's expandable segments";
const NO_ACCESS: &str =
    "nvidia-smi topo -p2p r shows which devices reach which; others need pinned host memory in between";
const TOO_MANY: &str = "a device reaches eight others at most: use fewer devices in this process";
const NOT_OPENED: &str = "the owner must be alive and still have that memory; both processes must be on one kernel and be shown the same \
                          devices, and containers started with --ipc=host and --pid=host";

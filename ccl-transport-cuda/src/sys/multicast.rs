//! Memory that stands for that of several devices: what a kernel stores there all of them get.

use super::abi::*;
use super::context::Primary;
use super::table::MulticastFunctions;
use super::virtual_memory::{Allocation, VirtualMemory, fetch};
use ccl_core::{Error, Result};
use libc::c_uint;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// One device's part of a multicast object: some memory of its own, and the address of that of all. Dropped, also half-made, when no
/// kernel of any device uses it.
///
/// It is made in steps, each by all devices before the next one by any: the driver waits in `cuMulticastBindMem` and in `cuMemMap` until all devices
/// were added.
pub(crate) struct Multicast {
    primary: Arc<Primary>,
    grain: usize,
    own: VirtualMemory,
    object: Option<Allocation>,
    is_bound: bool,
    everywhere: Option<VirtualMemory>,
}

impl Multicast {
    /// Of how many bytes such memory of so many devices is a multiple. An error where the device or the driver has no multicast.
    pub(crate) fn granularity(primary: &Primary, devices: usize) -> Result<usize> {
        let functions = functions(primary)?;
        let _entered = primary.enter()?;
        let (mut grain, about) = (0, about(devices, 0));
        // SAFETY: room for a size, and properties.
        let code = unsafe {
            (functions.cuMulticastGetGranularity)(&mut grain, &about, CU_MULTICAST_GRANULARITY_MINIMUM)
        };
        primary.driver().check(code, || format!("cuMulticastGetGranularity for {devices} devices"))?;
        Ok(grain.max(1))
    }

    /// Makes the memory, of so many bytes or somewhat more.
    pub(crate) fn new(primary: &Arc<Primary>, bytes: usize, grain: usize) -> Result<Multicast> {
        let own = VirtualMemory::alloc(primary, bytes, grain)?;
        let primary = Arc::clone(primary);
        Ok(Multicast { primary, grain, own, object: None, is_bound: false, everywhere: None })
    }

    /// Makes the object, on one of the devices; what the others get it by, which is kept until they have it.
    pub(crate) fn create(&mut self, devices: usize) -> Result<OwnedFd> {
        let (functions, bytes) = (functions(&self.primary)?, self.own.len());
        let _entered = self.primary.enter()?;
        let (mut handle, about) = (0, about(devices, bytes));
        // SAFETY: room for a handle, and properties.
        let code = unsafe { (functions.cuMulticastCreate)(&mut handle, &about) };
        let what = || {
            format!(
                "cuMulticastCreate of {bytes} bytes for {devices} devices on device {}",
                self.primary.ordinal()
            )
        };
        self.primary.driver().check(code, what)?;
        let object = self.object.insert(Allocation { primary: Arc::clone(&self.primary), handle });
        object.descriptor()
    }

    /// Gets it, on the others, by a descriptor of a process of this host.
    pub(crate) fn fetch(&mut self, process: u32, descriptor: i32) -> Result<()> {
        let descriptor = fetch(process, descriptor)?;
        let _entered = self.primary.enter()?;
        self.object = Some(Allocation::import(&self.primary, &descriptor)?);
        Ok(())
    }

    /// Adds this device to those that the object is for.
    pub(crate) fn add(&self) -> Result<()> {
        let (functions, object) = (functions(&self.primary)?, self.object()?);
        let _entered = self.primary.enter()?;
        // SAFETY: a handle that is held, and a device that is there.
        let code = unsafe { (functions.cuMulticastAddDevice)(object, self.primary.device()) };
        self.primary
            .driver()
            .check(code, || format!("cuMulticastAddDevice of device {}", self.primary.ordinal()))
    }

    /// Binds the memory to the object, and gives that an address. All devices were added.
    pub(crate) fn bind(&mut self) -> Result<()> {
        let (functions, handle, bytes) = (functions(&self.primary)?, self.object()?, self.own.len());
        let _entered = self.primary.enter()?;
        let memory = Allocation::at(&self.primary, self.own.address())?;
        let memory =
            memory.ok_or_else(|| Error::unsupported("memory that the driver does not know", REPORT))?;
        // SAFETY: two handles that are held, and all bytes of both.
        let code = unsafe { (functions.cuMulticastBindMem)(handle, 0, memory.handle, 0, bytes, 0) };
        let what = || format!("cuMulticastBindMem of {bytes} bytes of device {}", self.primary.ordinal());
        self.primary.driver().check(code, what)?;
        self.is_bound = true;
        let map = |object| VirtualMemory::map(object, bytes, self.grain);
        self.everywhere = self.object.as_ref().map(map).transpose()?;
        Ok(())
    }

    /// The address of the memory of all, and of this device's: where kernels store, and where they read.
    pub(crate) fn places(&self) -> Option<[u64; 2]> {
        self.everywhere.as_ref().map(|everywhere| [everywhere.address(), self.own.address()])
    }

    fn object(&self) -> Result<CUmemGenericAllocationHandle> {
        let object = self.object.as_ref().map(|object| object.handle);
        object.ok_or_else(|| Error::unsupported("a step of multicast without its object", REPORT))
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        self.everywhere = None;
        let (Some(object), Ok(functions)) = (&self.object, functions(&self.primary)) else { return };
        if let (true, Ok(_entered)) = (self.is_bound, self.primary.enter()) {
            let device = self.primary.device();
            // SAFETY: bound once, to this place, and stored to by nobody any more.
            unsafe { (functions.cuMulticastUnbind)(object.handle, device, 0, self.own.len()) };
        }
    }
}

const REPORT: &str = "report it with the driver's version";

fn functions(primary: &Primary) -> Result<&'static MulticastFunctions> {
    primary.table().multicast.as_ref().map_err(Error::clone)
}

fn about(devices: usize, size: usize) -> CUmulticastObjectProp {
    let handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as u64;
    CUmulticastObjectProp { devices: devices as c_uint, size, handle_types, flags: 0 }
}

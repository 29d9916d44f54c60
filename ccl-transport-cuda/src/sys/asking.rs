//! Questions to the driver: what devices there are, and what it knows of a pointer.

use super::Primary;
use super::abi::*;
use crate::driver::{ASKED, Device, Driver, Known};
use ccl_core::Result;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// Attributes that [`Device`] holds itself.
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

impl Driver {
    /// Initialises it, which a second time costs nothing, and counts the devices. There is at least one.
    pub(crate) fn count(self) -> Result<u32> {
        // SAFETY: takes a number, which must be 0.
        self.check(unsafe { (self.table.cuInit)(0) }, || "cuInit".into())?;
        let mut count = 0;
        // SAFETY: room for a number.
        self.check(unsafe { (self.table.cuDeviceGetCount)(&mut count) }, || "cuDeviceGetCount".into())?;
        Ok(count.unsigned_abs())
    }

    pub(crate) fn describe(self, ordinal: u32) -> Result<Device> {
        let what = |call: &str| format!("{call} of device {ordinal}");
        let (mut handle, mut uuid, mut memory) = (0, CUuuid::default(), 0);
        // SAFETY: room for a handle.
        self.check(unsafe { (self.table.cuDeviceGet)(&mut handle, ordinal.cast_signed()) }, || {
            what("cuDeviceGet")
        })?;
        // SAFETY: room for an identity, of a device that is there; so the calls that follow.
        self.check(unsafe { (self.table.cuDeviceGetUuid)(&mut uuid, handle) }, || what("cuDeviceGetUuid"))?;
        // SAFETY: room for a size.
        self.check(unsafe { (self.table.cuDeviceTotalMem)(&mut memory, handle) }, || {
            what("cuDeviceTotalMem")
        })?;
        let number =
            |attribute| self.attribute(handle, attribute).map(|value| value.unwrap_or(0).unsigned_abs());
        Ok(Device {
            driver: self,
            handle,
            ordinal,
            name: self.text(handle, self.table.cuDeviceGetName, || what("cuDeviceGetName"))?,
            uuid: uuid.bytes,
            pci: self
                .text(handle, self.table.cuDeviceGetPCIBusId, || what("cuDeviceGetPCIBusId"))?
                .to_lowercase(),
            capability: (number(COMPUTE_CAPABILITY_MAJOR)?, number(COMPUTE_CAPABILITY_MINOR)?),
            memory,
        })
    }

    fn text(
        self,
        device: CUdevice,
        ask: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> CUresult,
        what: impl FnOnce() -> String,
    ) -> Result<String> {
        let mut text = [0u8; 256];
        // SAFETY: so much room for a text of a device that is there.
        self.check(unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int, device) }, what)?;
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned())
    }

    pub(crate) fn attribute(self, device: CUdevice, attribute: c_int) -> Result<Option<i32>> {
        let mut value = 0;
        // SAFETY: room for a number, of a device that is there.
        let code = unsafe { (self.table.cuDeviceGetAttribute)(&mut value, attribute, device) };
        if code == CUDA_ERROR_INVALID_VALUE {
            return Ok(None);
        }
        self.check(code, || format!("cuDeviceGetAttribute {attribute}"))?;
        Ok(Some(value))
    }

    /// What it knows of a pointer.
    pub(crate) fn known(self, address: usize) -> Result<Known> {
        let (mut memory, mut is_managed, mut ordinal) = (0u32, 0u32, 0 as c_int);
        let mut answers: [*mut c_void; ASKED.len()] =
            [(&raw mut memory).cast(), (&raw mut is_managed).cast(), (&raw mut ordinal).cast()];
        let (count, asked) = (ASKED.len() as u32, ASKED.as_ptr());
        // SAFETY: as many attributes as places for their values, which have the types that the driver's manual says.
        let code = unsafe {
            (self.table.cuPointerGetAttributes)(count, asked, answers.as_mut_ptr(), address as u64)
        };
        match code {
            CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_DEINITIALIZED => Ok(Known::Unused),
            CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_INVALID_VALUE => Ok(Known::Not),
            _ => {
                self.check(code, || format!("cuPointerGetAttributes of {address:#x}"))?;
                // A value of 0 means that the driver does not know it.
                let (is_managed, ordinal) = (is_managed & 1 != 0, ordinal.unsigned_abs());
                Ok(if memory != 0 { Known::As { memory, is_managed, ordinal } } else { Known::Not })
            }
        }
    }

    /// The device whose primary context is this thread's current one, if there is one. Makes none, and initialises nothing.
    pub fn current(self) -> Result<Option<u32>> {
        let (mut context, mut device, mut flags, mut is_active) = (std::ptr::null_mut(), 0, 0, 0);
        // SAFETY: room for a handle.
        let code = unsafe { (self.table.cuCtxGetCurrent)(&mut context) };
        if matches!(code, CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_DEINITIALIZED) || context.is_null() {
            return Ok(None);
        }
        self.check(code, || "cuCtxGetCurrent".into())?;
        // SAFETY: room for a handle.
        self.check(unsafe { (self.table.cuCtxGetDevice)(&mut device) }, || "cuCtxGetDevice".into())?;
        // SAFETY: room for two numbers.
        let code = unsafe { (self.table.cuDevicePrimaryCtxGetState)(device, &mut flags, &mut is_active) };
        self.check(code, || "cuDevicePrimaryCtxGetState".into())?;
        let ordinal = device.unsigned_abs();
        // What is not active would be made by being retained.
        let is_it = is_active != 0 && Primary::retain(self, device, ordinal)?.is(context);
        Ok(is_it.then_some(ordinal))
    }

    /// Where devices see pinned host memory.
    pub(crate) fn seen(self, primary: &Primary, address: usize) -> Result<u64> {
        let _entered = primary.enter()?;
        let (mut at, host) = (0, std::ptr::without_provenance_mut(address));
        // SAFETY: room for an address; the other one is looked up.
        let code = unsafe { (self.table.cuMemHostGetDevicePointer)(&mut at, host, 0) };
        self.check(code, || format!("cuMemHostGetDevicePointer of {address:#x}"))?;
        Ok(at)
    }

    /// Where a stream of the caller's is: the number of its device, or `None` for the default streams, which are anywhere.
    pub fn device_of(self, stream: usize) -> Result<Option<u32>> {
        if stream <= CU_STREAM_PER_THREAD {
            return Ok(None);
        }
        let context = super::Stream::context(self, stream)?;
        let (mut device, mut popped) = (0, std::ptr::null_mut());
        // SAFETY: a context that the driver has named.
        self.check(unsafe { (self.table.cuCtxPushCurrent)(context) }, || "cuCtxPushCurrent".into())?;
        // SAFETY: room for a handle.
        let code = unsafe { (self.table.cuCtxGetDevice)(&mut device) };
        // SAFETY: room for a handle; what was pushed is on top.
        unsafe { (self.table.cuCtxPopCurrent)(&mut popped) };
        self.check(code, || "cuCtxGetDevice".into())?;
        Ok(Some(device.unsigned_abs()))
    }
}

//! The primary context of a device, which the whole process shares.

use super::abi::*;
use super::table::Table;
use crate::driver::Driver;
use ccl_core::Result;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

/// A device's primary context, kept alive. It is the one that the program's runtime library uses; none is ever made beside it.
pub struct Primary {
    driver: Driver,
    device: CUdevice,
    ordinal: u32,
    context: CUcontext,
}

// SAFETY: a context is no thread's; which thread it is current on is `Entered`'s business.
unsafe impl Send for Primary {}
// SAFETY: as above: the driver locks for itself.
unsafe impl Sync for Primary {}

impl Primary {
    /// That of a device.
    pub(crate) fn retain(driver: Driver, device: CUdevice, ordinal: u32) -> Result<Arc<Primary>> {
        let mut context = null_mut();
        let what = || format!("cuDevicePrimaryCtxRetain of device {ordinal}");
        // SAFETY: room for a handle, of a device that the driver has named.
        driver.check(unsafe { (driver.table.cuDevicePrimaryCtxRetain)(&mut context, device) }, what)?;
        Ok(Arc::new(Primary { driver, device, ordinal, context }))
    }

    /// The device's number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(super) fn table(&self) -> &'static Table {
        self.driver.table
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.context
    }

    pub(super) fn is(&self, context: CUcontext) -> bool {
        self.context == context
    }

    /// Bytes of the device's memory that are free, and all of them.
    pub fn free_memory(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: room for two sizes.
        let code = unsafe { (self.table().cuMemGetInfo)(&mut free, &mut all) };
        self.driver.check(code, || "cuMemGetInfo".into())?;
        Ok((free, all))
    }

    /// Has the device's kernels see what other devices have written into its memory so far.
    pub(crate) fn flush_writes(&self) -> Result<()> {
        let _entered = self.enter()?;
        let target = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: takes numbers.
        let code = unsafe { (self.table().cuFlushGPUDirectRDMAWrites)(target, scope) };
        self.driver.check(code, || format!("cuFlushGPUDirectRDMAWrites on device {}", self.ordinal))
    }

    /// Makes it the thread's current context until what is returned is dropped. Where it is so already, since this thread is within another one
    /// of these, the driver is not asked: what calls the driver several times enters before, and whoever is called enters for itself. The thread changes
    /// its context by nothing else meanwhile.
    pub fn enter(&self) -> Result<Entered<'_>> {
        let before = WITHIN.get();
        if before != self.context {
            // SAFETY: a context that is kept alive.
            let code = unsafe { (self.table().cuCtxPushCurrent)(self.context) };
            self.driver.check(code, || "cuCtxPushCurrent".into())?;
            WITHIN.set(self.context);
        }
        Ok(Entered { primary: self, before, thread: PhantomData })
    }
}

thread_local! {
    /// The context that the thread has entered last and not left.
    static WITHIN: Cell<CUcontext> = const { Cell::new(null_mut()) };
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once, and given back once. Its error would say that the driver has gone before.
        unsafe { (self.table().cuDevicePrimaryCtxRelease)(self.device) };
    }
}

/// While it lives, a context is this thread's current one; then the one from before is again.
pub struct Entered<'p> {
    primary: &'p Primary,
    /// The context that the thread was within.
    before: CUcontext,
    /// It belongs to its thread.
    thread: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let _ = self.thread;
        if self.before == self.primary.context {
            return;
        }
        WITHIN.set(self.before);
        let mut popped = null_mut();
        // SAFETY: room for a handle; what was pushed is on top again, since guards are dropped in their order.
        unsafe { (self.primary.table().cuCtxPopCurrent)(&mut popped) };
    }
}

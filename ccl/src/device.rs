//! Calls on device memory.
//!
//! The CUDA driver is looked for once in a process, when the first communicator is made. Where there is none,
//! [`is_here`] is one load, and the rest of this module is never reached.

mod engine;
mod frame;
mod line;
mod proxy;
mod way;
mod windows;

pub use ccl_transport_cuda::driver::{Attribute, Device, Driver, Kind, Version};
pub use ccl_transport_cuda::engine::Ready;
pub use ccl_transport_cuda::staging::{DeviceBuffers, DeviceCall, Staged};
pub use ccl_transport_cuda::{DeviceMemory, Primary, Stream as DeviceStream};
pub use engine::DeviceEngine;
pub use line::DeviceLine;

use ccl_core::config::{Config, DeviceEngine as Choice};
use ccl_core::{Error, Result};
use ccl_transport_cuda::engine::Place;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FOUND: OnceLock<Result<Driver>> = OnceLock::new();

/// Whether [`FOUND`] is a driver. Written after it; who reads `true` and then finds nothing there would only be early.
static IS_HERE: AtomicBool = AtomicBool::new(false);

/// Whether this process may have device memory: whether the machine's CUDA driver was found.
#[inline(always)]
pub fn is_here() -> bool {
    IS_HERE.load(Ordering::Relaxed)
}

/// The driver, or why there is none.
pub fn driver() -> Result<Driver> {
    FOUND.get().cloned().unwrap_or_else(|| {
        Err(Error::unsupported(
            "CUDA: the driver is looked for when a communicator is made",
            "make one before",
        ))
    })
}

/// The device whose primary context is this thread's current one, if there is one. A process without a driver finds out by one load.
pub(crate) fn current() -> Option<u32> {
    if !is_here() {
        return None;
    }
    driver().and_then(Driver::current).unwrap_or_else(|error| {
        tracing::warn!(target: "cuda", %error, "the thread's device is not known");
        None
    })
}

/// The number of the device that some memory is on; `None` of the host's.
pub(crate) fn number_of(address: usize) -> Result<Option<u32>> {
    if !is_here() {
        return Ok(None);
    }
    match driver()?.kind(address)? {
        Kind::Host | Kind::Pinned => Ok(None),
        Kind::Device(device) => Ok(Some(device)),
        kind => {
            let what = format!("registering {address:#x}, which is {kind}");
            Err(Error::unsupported(what, "register memory of the host or of cudaMalloc"))
        }
    }
}

/// The same after the driver was looked for.
pub fn current_after(config: &Config) -> Result<Option<u32>> {
    look(config)?;
    Ok(current())
}

/// What a rank on this device says of itself to the others; nothing where kernels are to make no calls.
pub(crate) fn place(device: Option<u32>, config: &Config) -> Vec<u8> {
    let Some(device) = device.filter(|_| config.device_engine == Choice::Auto) else { return Vec::new() };
    match driver().and_then(|driver| Place::of(driver, device)) {
        Ok(place) => place.to_bytes(),
        Err(error) => {
            tracing::warn!(target: "cuda", device, %error, "a rank cannot say where it is");
            Vec::new()
        }
    }
}

/// Looks for the driver, the first time. It is an error that there is none only where the configuration names one.
pub(crate) fn look(config: &Config) -> Result<()> {
    let found = FOUND.get_or_init(|| {
        let found = Driver::open(config.cuda_library.as_deref());
        match &found {
            Ok(driver) => tracing::info!(target: "cuda", ?driver, "the CUDA driver is here"),
            Err(error) => tracing::debug!(target: "cuda", %error, "no device memory"),
        }
        IS_HERE.store(found.is_ok(), Ordering::Relaxed);
        found
    });
    match found {
        Err(error) if config.cuda_library.is_some() => Err(error.clone()),
        _ => Ok(()),
    }
}

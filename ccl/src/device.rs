//! Calls on device memory.
//!
//! The CUDA driver is looked for once in a process, when the first communicator is made. Where there is none,
//! [`is_here`] is one load, and the rest of this module is never reached.

mod line;

pub use ccl_transport_cuda::driver::{Attribute, Device, Driver, Kind, Version};
pub use ccl_transport_cuda::staging::{DeviceBuffers, DeviceCall, Staged};
pub use ccl_transport_cuda::{DeviceMemory, Primary, Stream as DeviceStream};
pub use line::DeviceLine;

use ccl_core::config::Config;
use ccl_core::{Error, Result};
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

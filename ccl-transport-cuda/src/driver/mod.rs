//! The CUDA driver of this machine, with a meaning: its version, its devices, what a pointer points to, and its errors.
//!
//! ```no_run
//! use ccl_transport_cuda::driver::Driver;
//!
//! let driver = Driver::open(None)?; // says what is missing where there is none
//! for device in driver.devices()? {
//!     println!("{device}");
//! }
//! # Ok::<(), ccl_core::Error>(())
//! ```

mod device;
mod error;
mod kind;

pub use device::{Attribute, Device};
pub(crate) use error::remedy;
pub use kind::Kind;
pub(crate) use kind::{ASKED, Known};

use crate::sys::Table;
use ccl_core::Result;
use std::fmt;

/// The driver's library as it is installed.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver that has all that is used.
pub const NEEDED: Version = Version(12_000);

/// A version of CUDA, as drivers count: 1000 × major + 10 × minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The open library. It is never closed, and copies of this are the same.
#[derive(Clone, Copy)]
pub struct Driver {
    pub(crate) table: &'static Table,
}

impl Driver {
    /// The driver as it is installed, or the file that `named` (the value of `RDMACCL_CUDA`) names. It is opened and its
    /// version looked at; no device is touched.
    pub fn open(named: Option<&str>) -> Result<Driver> {
        Table::open(named.unwrap_or(LIBRARY)).map(|table| Driver { table })
    }

    /// What the driver is of: the newest CUDA that it knows.
    pub fn version(self) -> Version {
        self.table.version
    }

    /// The file that it was opened as.
    pub fn file(self) -> &'static str {
        &self.table.file
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of CUDA {}", self.file(), self.version())
    }
}

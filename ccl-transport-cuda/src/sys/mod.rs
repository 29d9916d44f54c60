//! All that is unsafe: the driver's functions, and owners of what they create.

mod abi;
mod asking;
mod buffers;
mod context;
mod memory;
mod ordering;
mod reading;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use abi::*;
pub(crate) use buffers::{awaited, buffers};
pub use context::{Entered, Primary};
pub use memory::DeviceMemory;
pub(crate) use memory::{Flags, PinnedMemory};
pub(crate) use ordering::Event;
pub use ordering::Stream;
pub(crate) use reading::is_readable;
pub(crate) use table::Table;

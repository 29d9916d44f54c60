//! All that is unsafe: the driver's functions, and owners of what they create.

mod abi;
mod asking;
mod buffers;
mod context;
mod memory;
mod ordering;
mod reading;
mod table;

pub(crate) use abi::*;
pub(crate) use buffers::buffers;
pub use context::{Entered, Primary};
pub use memory::{DeviceMemory, Flags, PinnedMemory};
pub use ordering::{Event, Stream};
pub(crate) use reading::is_readable;
pub(crate) use table::Table;

//! All that is unsafe: the driver's functions, and owners of what they create.

mod abi;
mod asking;
mod buffers;
mod context;
mod graph;
mod kernel;
mod memory;
mod multicast;
mod ordering;
mod origin;
mod reading;
mod sharing;
mod table;
#[cfg(test)]
mod tests;
mod virtual_memory;
mod words;

pub(crate) use abi::*;
pub(crate) use buffers::{awaited, buffers};
pub use context::{Entered, Primary};
pub use graph::Graph;
pub(crate) use graph::Relaxed;
pub use kernel::{Function, Module, Residency};
pub use memory::DeviceMemory;
pub(crate) use memory::{Flags, PinnedMemory, page_bytes};
pub(crate) use multicast::Multicast;
pub use ordering::{Event, Stream};
pub(crate) use origin::own_file;
pub(crate) use reading::is_readable;
pub use sharing::Mapped;
pub(crate) use table::Table;
pub(crate) use words::Words;

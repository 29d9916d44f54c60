//! Device memory that several ranks reach: in one process by its address, between processes by CUDA IPC, between devices by peer access.
//!
//! The owner makes a [`Handle`] of some of its memory and sends it to whom it likes; a peer makes a [`Mapped`] of it, which has the
//! address at which the peer's own device finds that memory.
//!
//! ```no_run
//! use ccl_transport_cuda::driver::Driver;
//! use ccl_transport_cuda::sharing::{Handle, Mapped};
//! use ccl_transport_cuda::DeviceMemory;
//!
//! let primary = Driver::open(None)?.device(0)?.primary()?;
//! let memory = DeviceMemory::alloc(&primary, 1 << 20)?;
//! let sent = memory.export()?.to_bytes();
//! // Here, or in another process of this host:
//! let mapped = Mapped::open(&primary, &Handle::from_bytes(&sent)?)?;
//! assert_eq!(mapped.len(), 1 << 20);
//! # Ok::<(), ccl_core::Error>(())
//! ```
//!
//! # Who frees when
//!
//! Nothing here counts users. The owner keeps the memory until every peer has dropped its [`Mapped`]: what happens to a peer that
//! still uses memory which its owner has freed the driver leaves undefined. A `Mapped` is dropped when no kernel uses it any more. When a
//! process dies, what it had opened is closed, and what it owned stays until the last peer has closed it.

mod handle;
mod process;

pub use crate::sys::Mapped;
pub use handle::Handle;
pub(crate) use handle::Way;
pub(crate) use process::Process;

//! A host collective of one on device buffers.
//!
//! A call on device memory is cut into [steps](Staged): each brings its pieces of the send buffers to pinned host memory, has
//! the host make the collective there, and takes the results back. All that the device does for a call is put on streams
//! when the call is made:
//!
//! ```text
//! the caller's stream   ──● start                                            wait ●── done, what comes after the call
//! out                     wait ●─ copy 0 ─● filled ─ copy 1 ─● filled ─ …       │
//! host                                    └ collective 0, flag ┐ └ collective 1 │
//! back                               wait for the flag ────────●─ copy 0 ─ wait … ─●
//! ```
//!
//! so steps overlap: while the host works on one, the next comes and the one before goes. What the device waits for the host for
//! is a number in pinned memory, on a stream of ours, never a kernel, and never a function that the driver would have to
//! call. The order in which all this is issued is an order in which it could be done one after another, whatever the device's
//! queues are: nothing of a call waits for something that is issued after it.
//!
//! A [`Staged`] step that is dropped, in whatever way, sets its flag. So an error or an abort lets the device's streams
//! run on: the result is worthless then, and the communicator says so.

mod call;
mod place;
mod stage;

pub use call::{DeviceBuffers, DeviceCall};
pub use stage::{Stage, Staged};

//! RDMA verbs as safe types.
//!
//! ```text
//! library() ── devices() ── Device ── open ── Context ─┬─ port, gids, pkey, next_event
//!                                                      ├─ CompletionChannel ── CompletionQueue ── poll
//!                                                      └─ ProtectionDomain ─┬─ Region (registered memory)
//!                                                                           ├─ AddressHandle
//!                                                                           └─ QueuePair ── post_send, post_receive
//! ```
//!
//! ```no_run
//! use ccl_transport_ibverbs::verbs::{Access, Memory, ProtectionDomain, library};
//!
//! for device in library(None)?.devices()? {
//!     let context = device.open()?;
//!     println!("{}: {:?}", device.name(), context.port(1)?);
//!     let memory = Memory::allocate(1 << 20)?;
//!     let domain = ProtectionDomain::new(&context)?;
//!     let region = domain.register(&memory, Access::REMOTE_WRITE)?;
//!     println!("peers may write {:?}", region.remote(memory.slice_mut(0, 4096)));
//! }
//! # Ok::<(), ccl_core::Error>(())
//! ```
//!
//! The types are handles: a clone is the same object (a [`QueuePair`] has one owner), whatever depends on another object
//! keeps it alive, and the last handle destroys it. Handles may be used by any thread.
//!
//! # What is promised, and what is not
//!
//! No call of this module breaks memory safety by itself, with [`Piece`](ccl_core::kernels::Piece) as the one exception that the
//! whole library makes: a piece is an address that its maker answers for. Here that means:
//!
//! - A [`Memory`] lives as long as one of its handles or a [`Region`] of it; its pieces must not be used for longer.
//! - Foreign memory ([`Extent`]) stays mapped, and is what its owner takes it for, until the [`Region`] over it is dropped.
//! - The bytes of a posted send are not written, and those of a posted receive not touched, until its completion has been
//!   polled. What a peer may write (it knows the [`Remote`]) belongs to the peer until the protocol between the two says otherwise.
//!
//! The data path ([`QueuePair::post_send`], [`QueuePair::post_receive`], [`CompletionQueue::poll`]) allocates nothing, takes no
//! lock of ours and makes no system call of ours.

mod address;
mod completion;
mod context;
mod device;
mod error;
mod event;
mod gid;
mod memory;
mod port;
mod queue_pair;
mod status;
mod sysfs;
mod work;

pub use address::{AddressHandle, Path};
pub use completion::{Completion, CompletionChannel, CompletionQueue, Opcode};
pub use context::{Context, DeviceLimits};
pub use device::{Device, Library, PciPlace, library};
pub use event::Event;
pub use gid::{Gid, GidEntry, GidKind, Interface};
pub use memory::{Access, Extent, Memory, ProtectionDomain, Region, Remote, Sge};
pub use port::{LinkLayer, Mtu, PhysicalState, Port, PortState};
pub use queue_pair::{
    Caps, DatagramSetup, QueuePair, QueuePairKind, QueuePairSetup, QueuePairState, QueuePairStatus,
    ReadyToReceive, ReadyToSend,
};
pub use status::Status;
pub use work::{ReceiveBatch, SendBatch, SendWork, Verb, WriteRequest};

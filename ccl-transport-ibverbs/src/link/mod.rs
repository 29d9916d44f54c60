//! Links over queue pairs.
//!
//! Two ranks have a *connection*: [pairs of rails](crate::choice::pairing), and on each some queue pairs ([`lane`]). Those of
//! the same number on all pairs of rails are a [`group`], and links are spread over groups and their lanes by channel. A link's
//! short pieces stay with one lane, longer ones take whichever of the group is through first ([`pace`]). What takes a
//! queue pair's place when it fails is [`recovery`]. They share the completion queues of their device, and whoever
//! polls those moves everybody's links.
//!
//! A piece travels in one RDMA write with immediate ([`wire`]) from the sender's slot ([`pool`]) or line ([`outgoing`])
//! into the receiver's ring ([`incoming`]). Its header returns the credits of the link of the other direction; only a link
//! that owes half of its credits sends a message for them. So an exchange needs no message besides the plan's.
//!
//! Memory that was [registered] is sent from where it lies, behind a header of its own; and what comes for registered memory
//! is written there by its sender, if that has heard of it in time ([`offers`]).
//!
//! Between memory that both ends have shown to their devices for good, bytes are put, and a message without them follows ([`puts`]).
//!
//! Connecting ([`connect`]) takes three words to each peer: what I have ([`proposal`]), my queue pairs and rings
//! ([`terms`]), ready. Every number that comes from a peer is checked before it is used.

mod adapter;
mod brief;
mod bytes;
mod connect;
mod connection;
mod fabric;
mod failure;
mod group;
mod incoming;
mod lane;
mod offers;
mod outgoing;
mod pace;
mod park;
mod pool;
mod post;
mod progress;
mod proposal;
mod puts;
mod recovery;
mod registered;
mod survey;
#[allow(unsafe_code)]
mod sys;
mod terms;
mod transport;
mod wire;
mod work;

pub(crate) use survey::open;
pub use survey::survey;
pub use transport::IbTransport;
pub use work::Work;

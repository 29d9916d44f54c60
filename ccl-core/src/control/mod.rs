//! The control plane of one rank, as a state machine: who is there, what all must know, and what all agree on.
//!
//! A [`Node`] is told what happens ([`Event`]) and when, and says what to do ([`Action`]). It has no socket, clock
//! or thread: the bootstrap drives one with real connections, the [cluster](crate::cluster) thousands of them in
//! virtual time. `docs/failures.md` has the rules that it keeps: the overlay, facts, ends, inquests, agreement.

mod agreement;
mod dials;
mod gather;
mod inquest;
mod links;
mod message;
mod node;
mod overlay;
#[cfg(test)]
mod tests;
mod types;

pub use message::{Entry, Fact, Message, Vote};
pub use node::Node;
pub use types::{Action, Agreement, Command, End, EndKind, Event, GatherFailed, LinkId, Loss, Settings};

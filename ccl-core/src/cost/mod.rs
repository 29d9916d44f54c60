//! The price of a plan, and the choice of the cheapest.
//!
//! The model is α–β–γ with the time that a rank itself needs: a message takes α from rank to rank, a byte
//! written takes β, a byte read from a link γ, a move its step. Combining is free: the kernels do it while
//! they wait for the bytes. A [`Demand`] says how much of each an algorithm asks for, read off the programs of
//! the ranks that have most to do; pricing it for a size is arithmetic. So a communicator makes the demands of
//! a collective once ([`Candidates`]) and chooses among them for each call.
//!
//! A call of several tiles is a pipeline: the first tile pays the whole row of dependent messages, each
//! further one what the busiest rank needs for it, and one α wherever a rank that has sent must wait for what
//! comes back before it can go on. With more ranks than cores the work of those
//! that share a core is done one after the other, out of the same caches, and a message in the row also waits until its receiver gets the core.
//!
//! Messages between hosts are a second class of link ([`Net`]), with a latency of their own and a network that the ranks of
//! a host share: it carries one message after the other, of all ranks of the host on which the root is. An algorithm whose
//! lanes only pass on keeps it busy while the ranks work on other tiles; one whose lanes send and wait for the answer
//! pays work, network and latency one after the other, tile by tile. Of two that cost about the same because the network's share
//! is most of it, the one that leaves the ranks clearly less to do is taken.
//!
//! What things take on a machine are its [`Constants`]: built in, or tuned there. All ranks of a communicator must
//! choose alike, so they all price with one [`Model`].

mod choice;
mod demand;
mod model;
#[cfg(test)]
mod tests;

pub use choice::{Candidates, Choice, Wish, choose, price};
pub use demand::{Demand, Price};
pub use model::{Constants, Model, Net};

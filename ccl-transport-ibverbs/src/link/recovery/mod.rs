//! What becomes of a lane whose queue pair has failed: it gets another one, on rails that work, and goes on.
//!
//! `docs/rdma.md` has the steps and why they are right. Both ends of a lane go through them at their own time, and tell each
//! other by datagrams ([`Endpoint`], one per rail, and [`Correspondence`], where they go), each of which says all there is
//! to say ([`Word`]). A lane that is being repaired has a [`Repair`]; [`steps`] moves it on, whenever the rank looks for
//! completions. [`events`] is what the devices say by themselves, and [`homing`] how a lane
//! finds back where they say nothing.

mod correspondence;
mod endpoint;
mod events;
mod homing;
mod repair;
mod seats;
mod steps;
mod word;

pub(super) use correspondence::Correspondence;
pub(super) use endpoint::Endpoint;
pub(super) use homing::Homing;
pub(super) use repair::{Repair, Trouble};
pub(super) use steps::LINGER;
pub(super) use word::{Count, Word};

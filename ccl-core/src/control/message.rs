//! What control nodes say to each other.

use super::types::{Agreement, End, Loss};
use crate::plan::Rank;

/// A rank's contribution to something that is collected from all.
pub type Entry = (Rank, Vec<u8>);

/// Something that, once true, stays true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A rank is dead, or was declared so.
    Lost(Loss),
    /// A rank has left in order.
    Left(Rank),
    /// The communicator has ended.
    Ended(End),
}

/// A rank's part in an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Who votes.
    pub rank: Rank,
    /// The head that the vote is for; it is also a promise to take no decision of a lower one.
    pub head: Rank,
    /// What it gives to the and.
    pub flags: u64,
    /// What it offers; empty for nothing. At most 256 bytes.
    pub blob: Vec<u8>,
    /// What it has decided already in this agreement.
    pub decided: Option<Agreement>,
}

/// A message on a connection. Lists are cut so that a message has at most some 32 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A sign of life, with the speaker's state.
    Ping {
        /// What it does, in the form of the flight record; may be empty.
        state: Vec<u8>,
    },
    /// News, or what is known to a new neighbour.
    Fact(Fact),
    /// Entries of all-gather `round` on their way to the head.
    GatherUp {
        /// Which all-gather.
        round: u64,
        /// By rank, each at most once in a round that nothing disturbs.
        entries: Vec<Entry>,
    },
    /// Entries of all-gather `round` on their way to everybody.
    GatherDown {
        /// Which all-gather.
        round: u64,
        /// Some of the ranks'.
        entries: Vec<Entry>,
    },
    /// All-gather `round` failed.
    GatherFailed {
        /// Which all-gather.
        round: u64,
        /// Who did not come.
        absent: Vec<Rank>,
    },
    /// A vote in agreement `number` on its way to the head.
    Vote {
        /// Which agreement.
        number: u64,
        /// The vote.
        vote: Vote,
    },
    /// The decision of a head in agreement `number`, on its way to everybody.
    Decision {
        /// Which agreement.
        number: u64,
        /// Who decided.
        head: Rank,
        /// What.
        agreement: Agreement,
    },
    /// Somebody wants an inquest; on its way to the head.
    Inquire {
        /// Who.
        by: Rank,
        /// Why; opaque.
        reason: Vec<u8>,
    },
    /// The head wants everybody's state.
    Question {
        /// Which inquest.
        inquest: u64,
    },
    /// States on their way to the head.
    Answers {
        /// Which inquest.
        inquest: u64,
        /// By rank.
        entries: Vec<Entry>,
    },
}

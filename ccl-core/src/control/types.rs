//! What goes into a control node and what comes out.

use super::message::{Entry, Message};
use crate::plan::Rank;
use std::time::Duration;

/// Names a connection of a node; never used again for another.
pub type LinkId = u32;

/// What a node must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: u32,
    /// Silence after which a rank counts as lost; `None`: never.
    pub freeze: Option<Duration>,
    /// How long an inquest waits for answers.
    pub inquest: Duration,
}

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection is up, whoever dialled; both ends have proved who they are.
    Up {
        /// Its name from now on.
        link: LinkId,
        /// Who is at the other end.
        peer: Rank,
    },
    /// Something was said on a connection.
    Heard {
        /// Which connection.
        link: LinkId,
        /// What.
        message: Message,
    },
    /// A connection has closed, after everything that was said on it.
    Down {
        /// Which connection.
        link: LinkId,
        /// How.
        cause: String,
        /// What the rank did last, where that can be read; else empty.
        state: Vec<u8>,
    },
    /// A dial has failed.
    Unreached {
        /// Who was dialled.
        peer: Rank,
        /// Why.
        cause: String,
        /// Whether nobody listens there any more, in contrast to silence.
        refused: bool,
    },
    /// This rank wants something.
    Command(Command),
    /// Time has passed.
    Tick,
}

/// What a rank wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// To know everybody's bytes. One all-gather at a time.
    Gather {
        /// Its own.
        bytes: Vec<u8>,
        /// When to give up, on the node's clock.
        deadline: Duration,
    },
    /// To agree. One agreement at a time.
    Agree {
        /// Combined by and.
        flags: u64,
        /// An offer, or empty.
        blob: Vec<u8>,
    },
    /// No more of the gather or agreement that it wanted: its wait has passed its deadline.
    GiveUp,
    /// To declare ranks lost, for this reason.
    Exclude {
        /// Who.
        ranks: Vec<Rank>,
        /// Why.
        cause: String,
    },
    /// To end the communicator for all.
    End(End),
    /// An inquest.
    Inquire {
        /// Why; opaque.
        reason: Vec<u8>,
    },
    /// The answer to [`Action::Report`].
    Report {
        /// Which inquest.
        inquest: u64,
        /// The state.
        state: Vec<u8>,
    },
    /// What its next signs of life shall carry.
    State(Vec<u8>),
    /// To leave in order. Some messages later [the node is over](super::Node::is_over), after a second at most.
    Leave,
}

/// What a node wants its driver to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to a rank; [`Event::Up`] or [`Event::Unreached`] follows.
    Dial(Rank),
    /// Say something.
    Send {
        /// On which connection.
        link: LinkId,
        /// What.
        message: Message,
    },
    /// Close a connection when everything said on it has gone out. No [`Event::Down`] follows.
    Close(LinkId),
    /// The all-gather is over.
    Gathered(Result<Vec<Vec<u8>>, GatherFailed>),
    /// The agreement is over.
    Agreed(Agreement),
    /// It was [given up](Command::GiveUp).
    Unagreed {
        /// For whom it waited, as far as this rank knows.
        absent: Vec<Rank>,
    },
    /// A rank is lost; said once for each.
    Lost(Loss),
    /// A rank has left in order; said once for each.
    Left(Rank),
    /// The communicator has ended; said once.
    Ended(End),
    /// Others have declared this rank lost, and listen to it no more.
    Excluded {
        /// Why.
        cause: String,
    },
    /// The head wants to know this rank's state: answer with [`Command::Report`].
    Report {
        /// Which inquest.
        inquest: u64,
    },
    /// This node is the head, and all answers are there that will come: end the communicator with a verdict.
    Judge {
        /// Who asked.
        by: Rank,
        /// Why.
        reason: Vec<u8>,
        /// The answers, by rank, of those who gave one.
        states: Vec<Entry>,
    },
}

/// The loss of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Who.
    pub rank: Rank,
    /// How it was noticed.
    pub cause: String,
    /// What it did last, as far as is known, in the form of the flight record.
    pub state: Vec<u8>,
}

/// The end of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Who ended it; for a verdict, who asked for it.
    pub by: Rank,
    /// In what way.
    pub kind: EndKind,
    /// The error, the reason, or the verdict in JSON. At most 32 KiB.
    pub text: String,
}

/// Ways to end a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndKind {
    /// A rank aborted it.
    Aborted = 1,
    /// A rank revoked it.
    Revoked = 2,
    /// A call failed on a rank.
    Failed = 3,
    /// An inquest found out who is to blame.
    Verdict = 4,
}

/// What all agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The and of all flags.
    pub flags: u64,
    /// The blob of the lowest rank that gave one; empty if none did.
    pub blob: Vec<u8>,
    /// Who is gone, in order: lost or left. All others have voted.
    pub gone: Vec<Rank>,
}

/// Why an all-gather has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherFailed {
    /// Who did not come, as far as is known.
    pub absent: Vec<Rank>,
    /// Whether those have left in order before it; else the deadline has passed.
    pub left: bool,
}

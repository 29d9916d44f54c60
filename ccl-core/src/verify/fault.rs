//! What is wrong with a plan.

use crate::plan::{Collective, Rank};
use std::fmt;

/// A move, by where it stands in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose program.
    pub rank: Rank,
    /// The number of the lane in the program.
    pub lane: u32,
    /// The number of the move in the lane.
    pub step: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, lane {}, move {}", self.rank, self.lane, self.step)
    }
}

/// What a move waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaits {
    /// The next piece from this rank.
    Piece {
        /// Who has not sent it.
        peer: Rank,
        /// On which channel.
        channel: u16,
    },
    /// A free slot on the link to this rank.
    Credit {
        /// Who has not released one.
        peer: Rank,
        /// On which channel.
        channel: u16,
    },
}

/// A move that cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// The move.
    pub at: Place,
    /// What it waits for.
    pub awaits: Awaits,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.awaits {
            Awaits::Piece { peer, channel } => {
                write!(f, "{} waits for a piece from rank {peer} (channel {channel})", self.at)
            }
            Awaits::Credit { peer, channel } => {
                write!(f, "{} waits for a credit from rank {peer} (channel {channel})", self.at)
            }
        }
    }
}

/// One piece of a rank's contribution: the identity of an element that a move carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// Whose send buffer.
    pub rank: Rank,
    /// Which chunk of it.
    pub chunk: u32,
}

impl fmt::Display for Contribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}'s input chunk {}", self.rank, self.chunk)
    }
}

/// Why a plan is rejected. Chunks are numbered as in [`crate::plan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The plan as a whole cannot be.
    #[error("{what}")]
    Spec {
        /// What cannot be, and what could.
        what: String,
    },

    /// A lane asks for more scratch than the engine gives.
    #[error("rank {rank}, lane {lane}: declares {scratch} pieces of scratch; at most {limit} are given")]
    ScratchLimit {
        /// Whose program.
        rank: Rank,
        /// Which lane.
        lane: u32,
        /// What it declares.
        scratch: u32,
        /// What there is.
        limit: u32,
    },

    /// A move without sources or without sinks.
    #[error("{at}: has no {side}; a move needs at least one source and one sink")]
    Empty {
        /// The move.
        at: Place,
        /// `source` or `sink`.
        side: &'static str,
    },

    /// A chunk or scratch piece that does not exist.
    #[error("{at}: {verb} {what} {index}, but there are {len} of it here")]
    OutOfBounds {
        /// The move.
        at: Place,
        /// `reads` or `writes`.
        verb: &'static str,
        /// `input chunk`, `output chunk` or `scratch`.
        what: &'static str,
        /// The number in the plan.
        index: u32,
        /// How many there are.
        len: u32,
    },

    /// A peer that is not another member.
    #[error("{at}: names rank {peer} as a peer; a peer is one of the other {} ranks", ranks - 1)]
    Peer {
        /// The move.
        at: Place,
        /// The peer in the plan.
        peer: Rank,
        /// Members of the communicator.
        ranks: u32,
    },

    /// One move uses the same link or writes the same memory twice.
    #[error("{at}: {what} twice in one move")]
    Twice {
        /// The move.
        at: Place,
        /// What it does twice.
        what: String,
    },

    /// Two lanes use the same end of a link: whose message is it?
    #[error(
        "{at}: uses the {end} end of the link from rank {from} to rank {to} on channel {channel}, which \
         belongs to lane {owner}; take another channel"
    )]
    SharedLink {
        /// The move.
        at: Place,
        /// `sending` or `receiving`.
        end: &'static str,
        /// Who sends.
        from: Rank,
        /// Who receives.
        to: Rank,
        /// On which channel.
        channel: u16,
        /// The lane that used it first.
        owner: u32,
    },

    /// More messages are sent than received.
    #[error(
        "{at}: sends message {} of this tile to rank {to} on channel {channel}, which receives {received}",
        received + 1
    )]
    Unreceived {
        /// The first move whose message nobody takes.
        at: Place,
        /// To whom.
        to: Rank,
        /// On which channel.
        channel: u16,
        /// How many the receiver takes.
        received: u32,
    },

    /// More messages are received than sent.
    #[error(
        "{at}: waits forever for message {} of this tile from rank {from} on channel {channel}, which sends \
         {sent}",
        sent + 1
    )]
    Unsent {
        /// The first move that waits in vain.
        at: Place,
        /// For whom.
        from: Rank,
        /// On which channel.
        channel: u16,
        /// How many the sender sends.
        sent: u32,
    },

    /// An input chunk that its rank never reads, so that its contribution is missing.
    #[error("rank {rank}: never reads input chunk {chunk}, so that its contribution is missing")]
    NeverRead {
        /// Whose.
        rank: Rank,
        /// Which.
        chunk: u32,
    },

    /// An output chunk that its rank never writes.
    #[error("rank {rank}: never writes output chunk {chunk}")]
    NeverWritten {
        /// Whose.
        rank: Rank,
        /// Which.
        chunk: u32,
    },

    /// A read of memory that holds nothing yet.
    #[error("{at}: reads {what} {index} before it is written in this tile")]
    Unwritten {
        /// The move.
        at: Place,
        /// `output chunk` or `scratch`.
        what: &'static str,
        /// Which.
        index: u32,
    },

    /// Every lane of a cycle waits for the next.
    #[error("deadlock with {credits} credits per link: {}", Cycle(cycle))]
    Deadlock {
        /// Slots of each link.
        credits: u32,
        /// Who waits for whom; the last waits for the first.
        cycle: Vec<Wait>,
    },

    /// A move combines values in a collective that only moves them.
    #[error("{at}: combines {sources} sources, but {collective} does not reduce")]
    Combines {
        /// The move.
        at: Place,
        /// How many.
        sources: usize,
        /// The collective.
        collective: Collective,
    },

    /// A move combines different elements.
    #[error(
        "{at}: combines elements that do not belong together: source 0 holds {first}, source {source_index} holds {other}"
    )]
    Mixed {
        /// The move.
        at: Place,
        /// One contribution in the first source.
        first: Contribution,
        /// The number of the source that does not fit.
        source_index: usize,
        /// One contribution in it.
        other: Contribution,
    },

    /// A value goes into a chunk whose length may be another.
    #[error(
        "{at}: writes part {part} of a block into output chunk {chunk}, which is part {wants} of its block"
    )]
    WrongPart {
        /// The move.
        at: Place,
        /// The value's part.
        part: u32,
        /// The chunk.
        chunk: u32,
        /// The chunk's part.
        wants: u32,
    },

    /// At the end an output chunk holds something else.
    #[error("rank {rank}, output chunk {chunk} (last written by {by}): holds {holds}, should hold {wants}")]
    Misplaced {
        /// Whose.
        rank: Rank,
        /// Which.
        chunk: u32,
        /// The last move that wrote it.
        by: Place,
        /// One contribution in it.
        holds: Contribution,
        /// One that belongs there.
        wants: Contribution,
    },

    /// At the end a contribution is missing.
    #[error("rank {rank}, output chunk {chunk} (last written by {by}): misses {missing}")]
    Missing {
        /// Whose.
        rank: Rank,
        /// Which.
        chunk: u32,
        /// The last move that wrote it.
        by: Place,
        /// What is missing.
        missing: Contribution,
    },

    /// A contribution was counted twice.
    #[error("{at}: counts {double} twice, and it ends in output chunk {chunk} of rank {rank}")]
    Double {
        /// The move that combined two values with it.
        at: Place,
        /// What is in twice.
        double: Contribution,
        /// Where it ends.
        rank: Rank,
        /// In which chunk.
        chunk: u32,
    },

    /// Two lanes of a rank meet in a chunk, and no message orders them.
    #[error("{first} and {second}: race for {what} chunk {chunk}; no message orders them")]
    Race {
        /// One move.
        first: Place,
        /// The other; at least one of them writes.
        second: Place,
        /// `output`, or `input and output` where the buffers are the same.
        what: &'static str,
        /// The chunk of the receive buffer.
        chunk: u32,
    },
}

/// A cycle of waits, cut where it would fill the screen.
struct Cycle<'a>(&'a [Wait]);

impl fmt::Display for Cycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (i, wait) in self.0.iter().take(SHOWN).enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            wait.fmt(f)?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, "; and {more} more, the last of which waits for the first"),
            _ => Ok(()),
        }
    }
}

//! Who waited for whom.

use crate::program::{Direction, End, Listing, Operand, Program, Report};
use std::fmt;

/// A block that has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// Of which rank.
    pub rank: usize,
    /// Which of its blocks.
    pub block: usize,
    /// What it has said.
    pub report: Report,
    /// For whom it waited; `None` where it waited for nobody.
    pub peer: Option<u32>,
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { failure, lane, mv, tile, expected, found, .. } = self.report;
        write!(f, "rank {} block {} ", self.rank, self.block)?;
        match self.peer {
            Some(peer) => write!(f, "waited for rank {peer}")?,
            None => f.write_str("waited for nobody")?,
        }
        write!(f, " in lane {lane} move {mv} tile {tile}: {failure:?}, wanted {expected}, found {found}")
    }
}

/// The peer at the link that a report of a program's block names.
pub(crate) fn peer_of(program: &Program, report: &Report) -> Option<u32> {
    let (input, output) = program.buffer_bytes();
    let listing = Listing::read(program.words(), input as u64, output as u64).ok()?;
    let lane = listing.lanes.get(report.lane as usize)?;
    let mv = lane.moves.get(report.mv as usize)?;
    let operand = mv.from.iter().chain(&mv.into).nth(report.operand as usize)?;
    let (Operand::Receive(end) | Operand::Send(end)) = operand else { return None };
    let End { peer, direction, .. } = program.ends().get(usize::from(lane.first_end) + *end as usize)?;
    debug_assert_eq!(matches!(operand, Operand::Receive(_)), *direction == Direction::Receive);
    Some(*peer)
}

//! Plans for people: one rank per section, its lanes, numbered moves.

use super::{Move, Plan, Rank, Sink, Source};
use std::fmt;

impl Plan {
    /// What the plan is for, in one line: `all_reduce by ring, 4 ranks, 4 parts per block`.
    pub fn title(&self) -> String {
        let spec = &self.spec;
        let root = if spec.collective.rooted() { format!(", root {}", spec.root) } else { String::new() };
        let s = |n: u32| if n == 1 { "" } else { "s" };
        format!(
            "{} by {}, {} rank{}{root}, {} part{} per block",
            spec.collective,
            self.algorithm,
            spec.ranks,
            s(spec.ranks),
            spec.parts,
            s(spec.parts)
        )
    }

    /// What one rank does, as text. Says so where there is no such rank.
    pub fn text_of(&self, rank: Rank) -> impl fmt::Display + '_ {
        RankText { plan: self, rank }
    }
}

/// All ranks. Long for many of them: [`Plan::text_of`] prints one.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title())?;
        for rank in 0..self.programs.len() {
            write!(f, "{}", self.text_of(rank as Rank))?;
        }
        Ok(())
    }
}

struct RankText<'a> {
    plan: &'a Plan,
    rank: Rank,
}

impl fmt::Display for RankText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(program) = self.plan.programs.get(self.rank as usize) else {
            return writeln!(f, "rank {}: not in this plan", self.rank);
        };
        writeln!(f, "rank {}", self.rank)?;
        for (number, lane) in program.lanes.iter().enumerate() {
            write!(f, "  lane {number}")?;
            if lane.scratch > 0 {
                write!(f, ", scratch {}", lane.scratch)?;
            }
            writeln!(f)?;
            let width = lane.moves.len().saturating_sub(1).to_string().len();
            for (step, m) in lane.moves.iter().enumerate() {
                writeln!(f, "    {step:width$}: {m}")?;
            }
        }
        Ok(())
    }
}

/// `[link 2, input 1] -> [output 1, link 0]`; a channel other than 0 follows a slash: `link 2/1`.
impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        list(f, &self.from)?;
        f.write_str("] -> [")?;
        list(f, &self.into)?;
        f.write_str("]")
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Input(chunk) => write!(f, "input {chunk}"),
            Source::Output(chunk) => write!(f, "output {chunk}"),
            Source::Scratch(piece) => write!(f, "scratch {piece}"),
            Source::Link(link) => {
                write!(f, "link {}", link.peer)?;
                channel(f, link.channel)
            }
        }
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sink::Output(chunk) => write!(f, "output {chunk}"),
            Sink::Scratch(piece) => write!(f, "scratch {piece}"),
            Sink::Links(links) => {
                f.write_str(if links.peers.len() == 1 { "link " } else { "links " })?;
                for (i, peer) in links.peers.iter().enumerate() {
                    if i > 0 {
                        f.write_str("+")?;
                    }
                    write!(f, "{peer}")?;
                }
                channel(f, links.channel)
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

fn channel(f: &mut fmt::Formatter<'_>, channel: u16) -> fmt::Result {
    if channel == 0 { Ok(()) } else { write!(f, "/{channel}") }
}

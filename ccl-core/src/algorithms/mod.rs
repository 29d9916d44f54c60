//! Algorithms: small pure functions from a [`Spec`] and a rank to a [`Program`].
//!
//! They do no I/O and know no transport. A rank writes its own program without writing those of the
//! others, so that a thousand ranks in one process do not hold a million programs; [`plan`] writes all of
//! them, for the verifier, the simulator and people.

pub mod binomial;
pub mod bruck;
pub mod chain;
mod cube;
pub mod exchange;
pub mod halving;
pub mod hierarchical;
mod moves;
pub mod oneshot;
pub mod pairwise;
pub mod pat;
pub mod recursive;
pub mod ring;
mod spread;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod tree;
pub mod twoshot;
mod widen;

use crate::plan::{Collective, Placement, Plan, Program, Rank, Spec};

pub use binomial::Binomial;
pub use bruck::Bruck;
pub use chain::Chain;
pub use exchange::Exchange;
pub use halving::Halving;
pub use hierarchical::Hierarchical;
pub use oneshot::OneShot;
pub use pairwise::Pairwise;
pub use pat::Pat;
pub use recursive::Recursive;
pub use ring::Ring;
pub use tree::Tree;
pub use twoshot::TwoShot;
pub use widen::{widen, widen_plan};

/// A way to do some collectives.
pub trait Algorithm: Sync {
    /// Its name in variables, plan files and tables: `ring`.
    fn name(&self) -> &'static str;

    /// Into how many parts it cuts a block, or `None` where it does not do this collective for ranks that lie
    /// like this.
    fn parts(&self, collective: Collective, placement: Placement) -> Option<u32>;

    /// What `rank` does. Only called with the parts that [`parts`](Algorithm::parts) gave.
    fn program(&self, spec: &Spec, rank: Rank) -> Program;

    /// About how many messages are in the longest row in which each waits for the one before it, in one
    /// tile: for the cost function, which cannot write a plan for a thousand ranks to find out. Only
    /// called where [`parts`](Algorithm::parts) gave some.
    fn depth(&self, collective: Collective, placement: Placement) -> u32;

    /// About how many messages of such a row go from one host to another, where there are several. Mostly as many as
    /// there would be in all if each host were one rank.
    fn crossings(&self, collective: Collective, placement: Placement) -> u32 {
        self.depth(collective, placement.hosts.into())
    }

    /// Whether the buffers may lie on each other as [`Collective::in_place_output`] says. The verifier
    /// decides for each plan; this is what is known beforehand.
    fn in_place_safe(&self, _collective: Collective, _placement: Placement) -> bool {
        true
    }
}

/// Every algorithm.
pub fn all() -> &'static [&'static dyn Algorithm] {
    &[
        &OneShot,
        &TwoShot,
        &Ring,
        &Tree,
        &Recursive,
        &Halving,
        &Pat,
        &Bruck,
        &Pairwise,
        &Chain,
        &Binomial,
        &Exchange,
        &Hierarchical,
    ]
}

/// The algorithm of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Algorithm> {
    all().iter().copied().find(|a| a.name() == name)
}

/// The whole plan: every rank's program, for ranks that lie like this (a number of them: on one host). `None`
/// where the algorithm does not do this.
pub fn plan(
    algorithm: &dyn Algorithm,
    collective: Collective,
    placement: impl Into<Placement>,
    root: Rank,
) -> Option<Plan> {
    let placement = placement.into();
    let spec = Spec::placed(collective, placement, root, algorithm.parts(collective, placement)?);
    let programs = (0..spec.ranks).map(|rank| algorithm.program(&spec, rank)).collect();
    Some(Plan { spec, algorithm: algorithm.name().to_string(), programs })
}

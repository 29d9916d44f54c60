//! Who is to blame for a call that does not end.
//!
//! [`judge`] looks for causes from the most specific to the least, and the first that it finds wins:
//!
//! 0. **A leave**: whoever asks has seen that the rank it waits for has left in order.
//! 1. **Disagreement**: two ranks were in different calls under the same number, the ends of a transfer differ, or a rank got
//!    a piece of another call, or some make on host memory the call that others make on devices. Whoever else is silent or absent, this call could not have ended.
//! 2. **Silent**: a rank does not answer. It may be why another one is absent; nothing absent makes a rank silent.
//! 3. **Absent**: a rank answers, and is not in the call that others wait in.
//! 4. **Stuck**: all are in it. The waits are followed to where they end: a rank that waits for nobody, a link whose
//!    two ends wait for each other, or a circle.
//!
//! Calls that kernels make are counted for themselves, and looked at in the same way, after the others.
//!
//! The lowest number of a call for which a cause is found is the one concerned: later calls wait for it.

mod disagreement;
mod kernels;
mod scene;
#[cfg(test)]
mod tests;
mod waiting;
mod words;

use super::RankState;
use crate::plan::Rank;
use scene::Scene;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What an inquest has found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is wrong.
    pub blame: Blame,
    /// The ranks that are to blame, in order; empty where the states do not tell.
    pub culprits: Vec<Rank>,
    /// The number of the call concerned.
    pub sequence: Option<u64>,
    /// All of it in words: who, what, since when, and what to do.
    pub text: String,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// Ranks never entered the call that the others wait in.
    Absent,
    /// Ranks do not answer at all: stopped, or without a core to run on.
    Silent,
    /// Ranks are in different calls, or in the same one with different arguments.
    Disagreement,
    /// All are in the call, and pieces do not move on some link.
    Stuck,
    /// The states do not tell.
    Unclear,
}

/// Who asked for a verdict, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A call has passed its deadline.
    Timeout {
        /// Whose.
        by: Rank,
        /// How long nothing has moved.
        waited: Duration,
    },
    /// A rank got a piece of another call than its own.
    Mismatch {
        /// Who got it.
        by: Rank,
        /// Who sent it.
        peer: Rank,
    },
    /// A rank waits in a call for one that has left in order.
    Left {
        /// Who waits.
        by: Rank,
        /// Who has left.
        peer: Rank,
        /// The call's number.
        sequence: u64,
    },
    /// Somebody wants to know.
    Asked,
}

impl Reason {
    /// For a message.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What `to_bytes` wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Reason> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Who is to blame, from what the ranks say they do.
///
/// `states` has the ranks that were asked: `None` stands for no answer. Of ranks that it does not name nothing is said.
/// The order of `states` does not matter.
pub fn judge(ranks: u32, reason: &Reason, states: &[(Rank, Option<RankState>)]) -> Verdict {
    judge_at(ranks, reason, states, &|_| None)
}

/// [`judge`], where `place` says of a rank that did not answer where it runs: `pid 4711 on node7`.
pub fn judge_at(
    ranks: u32,
    reason: &Reason,
    states: &[(Rank, Option<RankState>)],
    place: &dyn Fn(Rank) -> Option<String>,
) -> Verdict {
    let scene = Scene::new(ranks, states);
    let of_kernels = kernels::states(states);
    let kernels = Scene::new(ranks, &of_kernels);
    let is_inside =
        |scene: &Scene<'_>, rank: &Rank| scene.states.get(rank).is_some_and(|s| !s.running.is_empty());
    let is_of_kernels =
        matches!(reason, Reason::Mismatch { by, .. } if is_inside(&kernels, by) && !is_inside(&scene, by));
    waiting::left(reason, place)
        .or_else(|| disagreement::collectives(&scene))
        .or_else(|| disagreement::transfers(&scene))
        .or_else(|| disagreement::collectives(&kernels))
        .or_else(|| kernels::transfers(&kernels, reason))
        .or_else(|| kernels::apart(&scene, &kernels))
        .or_else(|| kernels::transfer_apart(&scene, &kernels))
        .or_else(|| disagreement::messages(if is_of_kernels { &kernels } else { &scene }, reason))
        .or_else(|| waiting::silent(&scene, place))
        .or_else(|| waiting::absent(&scene))
        .or_else(|| waiting::absent_from_transfer(&scene, reason))
        .or_else(|| waiting::absent(&kernels))
        .or_else(|| waiting::absent_from_transfer(&kernels, reason))
        .or_else(|| waiting::stuck(&scene))
        .or_else(|| waiting::stuck(&kernels))
        .unwrap_or_else(|| waiting::unclear(&scene, reason))
}

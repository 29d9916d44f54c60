//! Who is to blame for a call that does not end.

use crate::plan::Rank;
use serde::{Deserialize, Serialize};

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
}

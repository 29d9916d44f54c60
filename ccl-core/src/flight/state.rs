//! What a rank is doing, as data.

use crate::plan::Rank;
use serde::{Deserialize, Serialize};

/// What one rank of a communicator does at one moment. Times are of its host's monotonic clock, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankState {
    /// Names the communicator: the same on all its ranks.
    pub communicator: u64,
    /// The rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: u32,
    /// Its host's name.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When this was read.
    pub now_ns: u64,
    /// Collectives begun so far.
    pub calls: u64,
    /// The calls that run now.
    pub running: Vec<CallState>,
    /// The collective that ended last.
    pub last: Option<CallState>,
    /// The collectives that ended before it, the latest first: a rank may be some calls ahead of its peers.
    #[serde(default)]
    pub earlier: Vec<CallState>,
    /// The transfers that ended last.
    #[serde(default)]
    pub transfers: Vec<CallState>,
    /// What the running calls wait for; empty where they have not waited long.
    pub waits: Vec<WaitState>,
    /// How far a call is that has not moved for long.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// What its kernels do, where it has some.
    #[serde(default)]
    pub kernels: Option<KernelState>,
    /// Why it takes no more calls, if so.
    pub broken: Option<String>,
}

/// Calls that kernels make on the memory of devices. They are counted for themselves, and transfers apart from collectives: each rank
/// counts its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// Calls that kernels have begun.
    pub calls: u64,
    /// The one that runs.
    pub running: Option<CallState>,
    /// The one that ended last.
    pub last: Option<CallState>,
    /// The sends and receives that run: those of a group are over together.
    #[serde(default)]
    pub transfers: Vec<CallState>,
    /// Those that ended last.
    #[serde(default)]
    pub ended: Vec<CallState>,
    /// For whom the transfers wait, where that is known: kernels say it when they are ended.
    #[serde(default)]
    pub awaited: Vec<Rank>,
    /// Calls that were made on registered buffers.
    #[serde(default)]
    pub mapped: u64,
    /// Whether one-shot all-reduces are made by multicast: `on`, `off`, or why not though it was wanted.
    #[serde(default)]
    pub multicast: String,
}

/// How much of a call is done, in tiles over all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// So many are.
    pub done: u64,
    /// Of so many.
    pub total: u64,
}

/// One call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallState {
    /// A collective's number on the communicator, or a transfer's on its link; from 0.
    pub sequence: u64,
    /// `all_reduce` and so on; `send` or `receive`.
    pub name: String,
    /// The other end of a transfer.
    pub peer: Option<Rank>,
    /// Elements of one block; 0 where the blocks differ.
    pub count: u64,
    /// Their type.
    pub dtype: String,
    /// The operator of a call that reduces.
    pub op: Option<String>,
    /// The root of a rooted one.
    pub root: Option<Rank>,
    /// How it is done.
    pub algorithm: String,
    /// Bytes of the longer of the rank's two buffers.
    pub bytes: u64,
    /// What its ranks must have in common, in 64 bits, without its number.
    pub fingerprint: u64,
    /// When it began, where that was looked at.
    pub started_ns: Option<u64>,
    /// When it ended, where that was looked at.
    pub ended_ns: Option<u64>,
    /// Whether it ended with an error.
    #[serde(default)]
    pub failed: bool,
}

/// What one lane of a running call waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitState {
    /// The lane, the move in it, the tile.
    pub lane: u32,
    /// The move.
    #[serde(rename = "move")]
    pub mv: u32,
    /// The tile.
    pub tile: u64,
    /// What for.
    pub on: WaitFor,
    /// Who could end it.
    pub peers: Vec<Rank>,
    /// Which of the links to them.
    pub channel: u16,
    /// Since when nothing has moved.
    pub since_ns: u64,
}

/// What a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// A piece from a peer.
    Piece,
    /// A free slot on the way to peers.
    Credit,
}

impl RankState {
    /// For a message; at most some KiB.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What `to_bytes` wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<RankState> {
        serde_json::from_slice(bytes).ok()
    }
}

impl std::fmt::Display for CallState {
    /// As errors show it: `all_reduce #91 (4096 x f32, sum, ring)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} #{} ({} x {}", self.name, self.sequence, self.count, self.dtype)?;
        if let Some(op) = &self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, ", peer {peer}")?;
        }
        if !self.algorithm.is_empty() {
            write!(f, ", {}", self.algorithm)?;
        }
        f.write_str(")")
    }
}

//! Links beside those of a communicator's calls, for what moves pieces in a thread of its own.

use super::routes::Routes;
use super::{Communicator, Opener};
use crate::error::{Error, Result};
use crate::kernels::Piece;
use crate::plan::Rank;
use crate::transport::{Arrival, Exchange, Fabric, LinkKey, ReceiverId, SenderId, Sent, Window};
use std::ops::Range;
use std::time::{Duration, Instant};

/// One link to and one from each of some peers, over transports of their own: nothing of it is shared with calls, so it
/// may be used while they are made. Peers are named by their place among those that it was opened with.
pub struct SideLinks {
    routes: Routes,
    peers: Vec<Rank>,
    ends: Vec<(SenderId, ReceiverId)>,
    slot_bytes: usize,
}

impl Communicator {
    /// Opens links beside those of calls, over what `opener` opens. All ranks must call it at the same place among their
    /// calls, and whoever names a peer must be named by it.
    pub fn open_side_links(&mut self, opener: &dyn Opener, peers: &[Rank]) -> Result<SideLinks> {
        self.usable()?;
        let (rank, deadline) = (self.rank, Instant::now() + self.config.init_timeout);
        let Some(bootstrap) = &mut self.bootstrap else {
            return Err(Error::invalid(
                "links of a rank that is alone",
                "make a communicator of several ranks",
            ));
        };
        let mut routes = Routes::open(&self.config, bootstrap, opener)?;
        let both = |&peer: &Rank| {
            let (to, from) =
                (LinkKey { from: rank, to: peer, channel: 0 }, LinkKey { from: peer, to: rank, channel: 0 });
            [to, from]
        };
        routes.open_links(peers.iter().flat_map(both), &mut bootstrap.exchange(deadline))?;
        let ends = peers.iter().map(|&peer| routes.ends_of(peer)).collect::<Result<_>>()?;
        let slot_bytes = routes.limits().map_or(0, |(slot_bytes, _)| slot_bytes);
        Ok(SideLinks { routes, peers: peers.to_vec(), ends, slot_bytes })
    }

    /// Swaps words with the peers of such links, at most 4096 bytes each, in their order. All ranks must call it at the same place among their calls.
    pub fn swap_with_side(&mut self, links: &SideLinks, words: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.usable()?;
        let deadline = Instant::now() + self.config.init_timeout;
        let Some(bootstrap) = &mut self.bootstrap else { return Ok(Vec::new()) };
        let blobs: Vec<_> = links.peers.iter().copied().zip(words).collect();
        bootstrap.exchange(deadline).swap(&blobs)
    }

    /// The host of each rank, by a number: ranks of one host have the same. All ranks get the same answer.
    pub fn hosts(&self) -> Vec<u32> {
        self.routes.numbered_hosts()
    }
}

impl SideLinks {
    /// Who is at the other ends.
    pub fn peers(&self) -> &[Rank] {
        &self.peers
    }

    /// The longest piece.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Copies a piece and hands it over: see [`Fabric::send`]. False for want of credit.
    pub fn send(&mut self, to: usize, piece: Piece, tag: u64) -> Result<bool> {
        Ok(self.routes.send(self.ends[to].0, piece, tag)? == Sent::Done)
    }

    /// Lets a peer put into memory of this rank, which is then the target of its link: see [`Transport::admit`](crate::transport::Transport::admit).
    pub fn admit(&mut self, from: usize, target: &Window) -> Result<Vec<u8>> {
        self.routes.admit(self.ends[from].1, target)
    }

    /// Takes that back.
    pub fn dismiss(&mut self, from: usize) {
        self.routes.dismiss(self.ends[from].1);
    }

    /// Makes memory the source of puts to a peer, which has said this of its target.
    pub fn aim(&mut self, to: usize, source: &Window, target: &[u8]) -> Result<()> {
        self.routes.aim(self.ends[to].0, source, target)
    }

    /// The network devices over which a peer may be reached.
    pub fn devices(&self, peer: usize) -> Vec<String> {
        self.routes.devices(self.peers[peer])
    }

    /// Brings bytes of the source to the same place of the peer's target, and hands over a word behind them: see [`Fabric::put`].
    pub fn put(&mut self, to: usize, bytes: Range<usize>, word: Piece, tag: u64) -> Result<bool> {
        self.routes.put(self.ends[to].0, bytes, word, tag)
    }

    /// How many puts to a peer are over: see [`Fabric::puts_over`].
    pub fn puts_over(&mut self, to: usize) -> Result<u64> {
        self.routes.puts_over(self.ends[to].0)
    }

    /// The oldest piece that was not released: see [`Fabric::peek`].
    pub fn peek(&mut self, from: usize) -> Result<Option<Arrival>> {
        self.routes.peek(self.ends[from].1)
    }

    /// Gives it back.
    pub fn release(&mut self, from: usize) -> Result<()> {
        self.routes.release(self.ends[from].1)
    }

    /// Hands on what was sent and is still here, and mends what has failed. True once there is nothing left.
    pub fn flush(&mut self) -> Result<bool> {
        self.routes.flush()
    }

    /// Sleeps until something may have come, at most for `limit`.
    pub fn park(&mut self, limit: Duration) -> Result<()> {
        self.routes.park(limit, self.peers.iter().copied())
    }

    /// Nobody waits any more for what was sent.
    pub fn withdraw(&mut self) {
        self.routes.withdraw();
    }
}

impl std::fmt::Debug for SideLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SideLinks").field("peers", &self.peers).field("slot_bytes", &self.slot_bytes).finish()
    }
}

//! Memory that both ends of a link have shown to the network, for pieces that nobody copies.
//!
//! A *target* is memory of a receiver, into which the sender of one link may write; a *source* is memory of that sender. Both are of the same
//! length. A [put](super::Fabric::put) has the network bring some bytes of the source to the same place of the target, and hands over a piece
//! behind them: whoever peeks at that piece may read the bytes. Who writes when into which place of a target is agreed on by the two ends: a transport does
//! not know it.
//!
//! Bytes of the source must not change before their put is [over](super::Fabric::puts_over). They may lie in memory that no processor
//! reads, such as that of a device: a transport hands out addresses of it, and touches nothing.

use crate::kernels::PieceMut;
use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory to be a source or a target.
#[derive(Clone)]
pub struct Window {
    /// All of it. Whoever makes the window vouches that it is there as long as `owner`.
    pub memory: PieceMut,
    /// How the network's devices are told of it, if not by its address.
    pub dma_buf: Option<DmaBuf>,
    /// What keeps it there. The transport keeps that until no device and no peer reaches the memory any more.
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// Memory of a device as the kernel hands it on to others.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    /// Closed when the last window with it is dropped; devices that know the memory by then keep it.
    pub descriptor: Arc<OwnedFd>,
    /// Where in it the window's memory begins.
    pub offset: u64,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("bytes", &self.memory.len()).field("dma_buf", &self.dma_buf).finish()
    }
}

//! A device in use: its protection domain, its completion queues and the channel that wakes who waits for them.

use super::recovery::Endpoint;
use super::work::Work;
use crate::choice::rails::Rail;
use crate::verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Context, Extent, Memory, ProtectionDomain, Region,
};
use ccl_core::transport::Window;
use ccl_core::{Error, Result};
use std::os::fd::BorrowedFd;

/// Entries of the first completion queue of a device.
const FIRST_ENTRIES: u32 = 4096;

/// Polls of a software device that may find nothing before its kernel threads get a turn.
const PATIENCE: u32 = 256;

/// A device in use.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    /// Most ranks have one; another one is made when the queue pairs could fill those that are there.
    pub(crate) queues: Vec<CompletionQueue>,
    /// Entries of each that no queue pair has been promised.
    room: Vec<u32>,
    /// Whether it has failed for good. Its completion queues are not looked at any more.
    pub(crate) dead: bool,
    relaxed: bool,
    /// Whether this machine's processors do the device's work.
    software: bool,
    /// Polls in a row that found nothing.
    idle: u32,
    /// Pieces on their way whose time is taken, and when it was last looked for completions of them.
    pub(crate) watched: u32,
    pub(crate) looked: u64,
    /// Polls, and the completions that they gave.
    pub(crate) work: Work,
}

impl Adapter {
    /// A device, whose writes may pass one another on PCIe if `relaxed`.
    pub(crate) fn new(context: Context, software: bool, relaxed: bool) -> Result<Adapter> {
        let domain = ProtectionDomain::new(&context)?;
        let channel = CompletionChannel::new(&context)?;
        let (queues, room) = (Vec::new(), Vec::new());
        Ok(Adapter {
            context,
            domain,
            channel,
            queues,
            room,
            dead: false,
            relaxed,
            software,
            idle: 0,
            watched: 0,
            looked: 0,
            work: Work::default(),
        })
    }

    /// A completion queue with room for so many more completions, and its place.
    pub(crate) fn queue(&mut self, entries: u32) -> Result<(usize, CompletionQueue)> {
        if let Some(at) = self.room.iter().position(|room| *room >= entries) {
            self.room[at] -= entries;
            return Ok((at, self.queues[at].clone()));
        }
        let most = self.context.limits().completions;
        if entries > most {
            return Err(Error::unsupported(
                format!("ib: {entries} completions of one queue pair on {}", self.context.name()),
                format!(
                    "its completion queues have at most {most} entries: set fewer credits (RDMACCL_CREDITS)"
                ),
            ));
        }
        // Each new one is larger, so that there are few.
        let wanted = self.queues.last().map_or(FIRST_ENTRIES, |last| last.entries().saturating_mul(2));
        let queue =
            CompletionQueue::new(&self.context, wanted.max(entries).min(most), Some(&self.channel), 0)?;
        self.room.push(queue.entries().saturating_sub(entries));
        self.queues.push(queue.clone());
        Ok((self.queues.len() - 1, queue))
    }

    /// Gives back what a queue pair was promised that is no more.
    pub(crate) fn give_back(&mut self, queue: usize, entries: u32) {
        if let Some(room) = self.room.get_mut(queue) {
            *room += entries;
        }
    }

    /// The device has failed for good.
    pub(crate) fn bury(&mut self) {
        self.dead = true;
        self.queues.clear();
        self.room.clear();
    }

    /// Takes completions of all queues, as many as there are and as `into` has room for.
    #[inline(always)]
    pub(crate) fn poll(&mut self, into: &mut [Completion]) -> Result<usize> {
        let Some((first, others)) = self.queues.split_first() else { return Ok(0) };
        let mut found = first.poll(into)?.len();
        for queue in others {
            found += queue.poll(&mut into[found..])?.len();
        }
        self.work.polls += self.queues.len() as u64;
        self.work.completions += found as u64;
        if found > 0 {
            self.idle = 0;
        } else if self.software {
            self.make_way();
        }
        Ok(found)
    }

    /// A poll has found nothing. Threads that wait for a software device keep the kernel's threads, which do its work, from
    /// their cores; so they let them have a turn now and then.
    #[inline]
    fn make_way(&mut self) {
        self.idle += 1;
        if self.idle >= PATIENCE {
            self.idle = 0;
            std::thread::yield_now();
        }
    }

    /// Lets the device read memory that is sent from.
    pub(crate) fn register_sends(&self, memory: &Memory) -> Result<Region> {
        self.domain.register(memory, Access::READ)
    }

    /// Lets peers write.
    pub(crate) fn register_slots(&self, memory: &Memory) -> Result<Region> {
        let ordering = if self.relaxed { Access::RELAXED_ORDERING } else { Access::READ };
        self.domain.register(memory, Access::REMOTE_WRITE.and(ordering))
    }

    /// Lets the device read, and peers write, memory of a user.
    pub(crate) fn register_user(&self, extent: Extent) -> Result<Region> {
        let ordering = if self.relaxed { Access::RELAXED_ORDERING } else { Access::READ };
        self.domain.register_foreign(extent, Access::REMOTE_WRITE.and(ordering))
    }

    /// Lets the device touch a window, as `access` says for a device whose writes may pass one another, or not.
    pub(crate) fn register_window(&self, window: &Window, access: impl Fn(bool) -> Access) -> Result<Region> {
        let (extent, access) = (Extent::of(window.memory.as_piece()), access(self.relaxed));
        match &window.dma_buf {
            Some(dma_buf) => self.domain.register_dma_buf(extent, dma_buf, access),
            None => self.domain.register_foreign(extent, access),
        }
    }

    /// What to sleep on: completions, and the device's events.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.fd(), self.context.events_fd()]
    }
}

/// A rail with the adapter that it belongs to.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) rail: Rail,
    /// Its place among the adapters.
    pub(crate) adapter: usize,
    /// Whether it carries traffic, as far as the device's events say.
    pub(crate) active: bool,
    /// Those of the GIDs that peers were told of which are not there any more.
    pub(crate) missing: Vec<usize>,
    /// The end for datagrams, once there are peers.
    pub(crate) control: Option<Endpoint>,
    /// Bytes of pieces that went out by queue pairs which were replaced.
    pub(crate) sent: u64,
}

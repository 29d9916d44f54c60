//! A device in use: its protection domain, its completion queues and the channel that wakes who waits for them.

use crate::choice::rails::Rail;
use crate::verbs::{Access, CompletionChannel, CompletionQueue, Context, Memory, ProtectionDomain, Region};
use ccl_core::{Error, Result};
use std::os::fd::BorrowedFd;

/// Entries of the first completion queue of a device.
const FIRST_ENTRIES: u32 = 1024;

/// Polls of a software device that may find nothing before its kernel threads get a turn.
const PATIENCE: u32 = 16;

/// A device in use.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    /// Most ranks have one; another one is made when the queue pairs could fill those that are there.
    pub(crate) queues: Vec<CompletionQueue>,
    /// Entries of the last queue that no queue pair has been promised.
    room: u32,
    relaxed: bool,
    /// Whether this machine's processors do the device's work.
    software: bool,
    /// Polls in a row that found nothing.
    idle: u32,
}

impl Adapter {
    /// A device, whose writes may pass one another on PCIe if `relaxed`.
    pub(crate) fn new(context: Context, software: bool, relaxed: bool) -> Result<Adapter> {
        let domain = ProtectionDomain::new(&context)?;
        let channel = CompletionChannel::new(&context)?;
        Ok(Adapter { context, domain, channel, queues: Vec::new(), room: 0, relaxed, software, idle: 0 })
    }

    /// A completion queue with room for so many more completions.
    pub(crate) fn queue(&mut self, entries: u32) -> Result<CompletionQueue> {
        if let Some(queue) = self.queues.last().filter(|_| self.room >= entries) {
            self.room -= entries;
            return Ok(queue.clone());
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
        self.room = queue.entries().saturating_sub(entries);
        self.queues.push(queue.clone());
        Ok(queue)
    }

    /// A poll has found so many completions. Threads that wait for a software device keep the kernel's threads, which do its
    /// work, from their cores; so they let them have a turn now and then.
    #[inline]
    pub(crate) fn polled(&mut self, found: usize) {
        if !self.software {
            return;
        }
        self.idle = if found > 0 { 0 } else { self.idle + 1 };
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
}

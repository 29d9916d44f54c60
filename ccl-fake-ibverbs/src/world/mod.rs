//! The devices and everything that was made on them. Plain state under one lock; no unsafe code.
//!
//! What lies in memory is reached through two functions that `ffi` gives: [`Mover`].

mod commands;
mod completion;
mod events;
mod objects;
mod queue_pair;
mod traffic;

pub(crate) use completion::Cq;
pub(crate) use objects::{Ah, Context, DmaBuf, Gid, Key};
pub(crate) use queue_pair::{Payload, Qp, Receive, Send, Target};

use crate::script::Settings;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// How the world touches memory.
#[derive(Clone, Copy)]
pub(crate) struct Mover {
    /// Copies so many bytes from this address.
    pub(crate) read: fn(u64, usize) -> Vec<u8>,
    /// Copies these bytes to this address.
    pub(crate) write: fn(u64, &[u8]),
    /// Notes in a list at this address that so many bytes from an offset on wait to be flushed.
    pub(crate) note: fn(u64, u64, u64),
}

/// All there is.
pub(crate) struct World {
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<Key, Context>,
    /// Protection domains, each with its context.
    pub(crate) pds: BTreeMap<Key, Key>,
    pub(crate) mrs: BTreeMap<Key, objects::Mr>,
    /// Completion channels.
    pub(crate) channels: BTreeMap<Key, objects::Channel>,
    pub(crate) cqs: BTreeMap<Key, Cq>,
    pub(crate) qps: BTreeMap<Key, Qp>,
    pub(crate) ahs: BTreeMap<Key, Ah>,
    /// Lists of devices that were not freed.
    pub(crate) lists: u64,
    /// What functions were called how often, and what they were given.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    mover: Mover,
    next: Key,
    faults: Vec<Fault>,
    endings: Vec<Ending>,
    losses: Vec<Loss>,
    memlock: Option<u64>,
    delay: u64,
}

/// A device.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) sysfs: String,
    pub(crate) ports: Vec<Port>,
    /// Polls between two completions.
    pub(crate) pace: u64,
    /// What it has of what.
    pub(crate) limits: Settings,
}

/// A port.
pub(crate) struct Port {
    pub(crate) settings: Settings,
    pub(crate) gids: BTreeMap<u32, Gid>,
    /// Sends that left it, or waited to.
    sends: u64,
    /// Whether what is sent while it is down waits, rather than fail.
    stall: bool,
    /// Changes to come: at this number of sends, down (and whether traffic waits) or up.
    plans: Vec<(u64, Turn)>,
}

#[derive(Clone, Copy)]
enum Turn {
    Down { stall: bool },
    Up,
}

/// Calls that are to fail.
struct Fault {
    verb: String,
    errno: i32,
    /// Calls before the first that fails.
    before: u64,
    times: u64,
}

/// A send that is to end badly.
struct Ending {
    status: u32,
    vendor: u32,
    /// Sends before it.
    before: u64,
    on: Option<String>,
    /// Whether the peer gets it all the same.
    delivered: bool,
}

/// Datagrams of a device that are to be lost.
struct Loss {
    on: String,
    /// Datagrams before the first.
    before: u64,
    times: u64,
}

/// The errno of what failed.
pub(crate) type Errno = i32;

impl World {
    pub(crate) fn new(mover: Mover) -> World {
        World {
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            pds: BTreeMap::new(),
            mrs: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ahs: BTreeMap::new(),
            lists: 0,
            counts: BTreeMap::new(),
            mover,
            next: 0x11,
            faults: Vec::new(),
            endings: Vec::new(),
            losses: Vec::new(),
            memlock: None,
            delay: 0,
        }
    }

    /// Objects that were made and not destroyed.
    pub(crate) fn live(&self) -> u64 {
        let kept = [
            self.contexts.len(),
            self.pds.len(),
            self.mrs.len(),
            self.channels.len(),
            self.cqs.len(),
            self.qps.len(),
            self.ahs.len(),
        ];
        self.lists + kept.iter().sum::<usize>() as u64
    }

    /// Counts a call, and fails it if a script says so.
    pub(crate) fn call(&mut self, verb: &'static str) -> Result<(), Errno> {
        *self.counts.entry(verb).or_default() += 1;
        let mut failed = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.verb == verb && fault.times > 0) {
            if fault.before > 0 {
                fault.before -= 1;
            } else if failed.is_none() {
                fault.times -= 1;
                failed = Some(fault.errno);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// A number that nothing had before, so that a stale one is never valid.
    fn key(&mut self) -> Key {
        self.next += 1;
        self.next
    }

    fn limit(&self, device: usize, name: &str) -> u64 {
        self.devices[device].limits.get(name).copied().unwrap_or(0)
    }

    fn port(&self, device: usize, port: u8) -> Option<&Port> {
        self.devices[device].ports.get(usize::from(port).checked_sub(1)?)
    }
}

/// Things that wait, and a descriptor that is readable as long as some do.
pub(crate) struct Waiting<T> {
    pub(crate) fd: OwnedFd,
    items: VecDeque<T>,
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> io::Result<Waiting<T>> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Waiting { fd, items: VecDeque::new() })
    }

    fn push(&mut self, item: T) {
        self.items.push_back(item);
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The oldest, for whom has read the descriptor once.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// Forgets some.
    fn forget(&mut self, which: impl Fn(&T) -> bool) {
        let before = self.items.len();
        self.items.retain(|item| !which(item));
        for _ in self.items.len()..before {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

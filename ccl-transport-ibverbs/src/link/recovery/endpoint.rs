//! The end for datagrams of one rail: a queue pair whose number stays the same, whatever happens to the rail.

use super::word::BYTES;
use crate::link::adapter::Adapter;
use crate::link::work::Id;
use crate::verbs::{
    Access, AddressHandle, Caps, DatagramSetup, Memory, QueuePair, QueuePairKind, QueuePairSetup,
    ReceiveBatch, Region, SendBatch, SendWork, Verb,
};
use ccl_core::Result;

/// Words that may wait to be read; more are lost, and said again.
const RECEIVES: u16 = 64;
/// Words that may be on their way out.
const SENDS: u32 = 32;
/// Bytes in front of a datagram that came.
const ROUTE: usize = 40;
/// Bytes of memory for each.
const PLACE: usize = 320;
const _: () = assert!(ROUTE + BYTES <= PLACE);

/// One rail's end.
pub(crate) struct Endpoint {
    pair: QueuePair,
    setup: DatagramSetup,
    memory: Memory,
    region: Region,
    /// The rail's number.
    rail: u16,
    outstanding: u32,
    /// Receives that are not posted.
    taken: u16,
    sends: SendBatch,
    receives: ReceiveBatch,
    /// Its queue pair is in error, and must begin anew.
    pub(crate) failed: bool,
}

impl Endpoint {
    pub(crate) fn new(adapter: &mut Adapter, rail: u16, setup: DatagramSetup) -> Result<Endpoint> {
        let caps = Caps {
            sends: SENDS,
            receives: RECEIVES.into(),
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: BYTES as u32,
        };
        let (_, queue) = adapter.queue(2 * (caps.sends + caps.receives))?;
        let kind = QueuePairKind::Datagram;
        let pair = adapter.domain.queue_pair(&QueuePairSetup {
            kind,
            sends_to: &queue,
            receives_to: &queue,
            caps,
        })?;
        let memory = Memory::allocate(PLACE * (usize::from(RECEIVES) + 1))?;
        let region = adapter.domain.register(&memory, Access::LOCAL_WRITE)?;
        let mut endpoint = Endpoint {
            pair,
            setup,
            memory,
            region,
            rail,
            outstanding: 0,
            taken: 0,
            sends: SendBatch::with_capacity(1),
            receives: ReceiveBatch::with_capacity(RECEIVES.into()),
            failed: false,
        };
        endpoint.start()?;
        Ok(endpoint)
    }

    fn start(&mut self) -> Result<()> {
        self.pair.start_datagrams(&self.setup)?;
        (self.outstanding, self.taken, self.failed) = (0, 0, false);
        (0..RECEIVES).for_each(|place| self.prepare(place));
        self.pair.post_receive(&mut self.receives)
    }

    /// By which peers reach it.
    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Sends a word, unless too many are on their way.
    pub(crate) fn send(&mut self, way: &AddressHandle, (queue_pair, key): (u32, u32), word: [u8; BYTES]) {
        if self.failed || self.outstanding == SENDS {
            return;
        }
        let at = PLACE * usize::from(RECEIVES);
        self.memory.write(at, word);
        self.sends.push(SendWork {
            id: self.id(0),
            verb: Verb::Datagram { way, queue_pair, key, immediate: None },
            bytes: &[self.region.sge(self.memory.slice(at, BYTES))],
            inline: true,
            signaled: true,
            solicited: false,
        });
        match self.pair.post_send(&mut self.sends) {
            Ok(()) => self.outstanding += 1,
            Err(error) => {
                tracing::debug!(target: "net", %error, "a word could not be sent");
                self.sends.clear();
                self.failed = true;
            }
        }
    }

    /// A send is done (`kind` 0), or a word has come: its bytes, if it is as long as one.
    pub(crate) fn complete(&mut self, kind: u16, bytes: usize) -> Option<[u8; BYTES]> {
        let Some(place) = kind.checked_sub(1) else {
            self.outstanding = self.outstanding.saturating_sub(1);
            return None;
        };
        let word = (bytes == ROUTE + BYTES).then(|| self.memory.read(PLACE * usize::from(place) + ROUTE));
        self.taken += 1;
        if !self.failed {
            self.prepare(place);
            self.failed = self.pair.post_receive(&mut self.receives).is_err();
            self.taken -= 1;
        }
        word
    }

    /// A work request came back in error.
    pub(crate) fn fail(&mut self, kind: u16) {
        if !self.failed {
            self.failed = true;
            self.receives.clear();
            if let Err(error) = self.pair.fail() {
                tracing::debug!(target: "net", %error, "an end for datagrams");
            }
        }
        self.taken += u16::from(kind > 0);
    }

    /// Begins anew after a failure, once all receives have come back.
    pub(crate) fn revive(&mut self) {
        if !self.failed || self.taken < RECEIVES {
            return;
        }
        if let Err(error) = self.pair.reset().and_then(|()| self.start()) {
            tracing::debug!(target: "net", %error, "an end for datagrams could not begin anew");
            (self.failed, self.taken) = (true, RECEIVES);
        }
    }

    fn prepare(&mut self, place: u16) {
        let memory = self.memory.slice_mut(PLACE * usize::from(place), ROUTE + BYTES);
        self.receives.push(self.id(place + 1), Some(self.region.sge_mut(memory)));
    }

    fn id(&self, kind: u16) -> u64 {
        Id { lane: Id::CONTROL, sends: kind, timed: false, era: self.rail }.encode()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Endpoint").field(&self.pair).finish()
    }
}

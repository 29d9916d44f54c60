//! Ends of connections over the fake library.

// Each test program uses its part.
#![allow(dead_code)]

use ccl_core::kernels::Buffers;
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::verbs::*;

/// The fake library.
pub(crate) fn fake_library() -> Library {
    library(Some(Fake::library().to_str().unwrap())).unwrap()
}

/// An open device of the fake library.
pub(crate) fn open(name: &str) -> Context {
    device(name).open().unwrap()
}

/// A device of the fake library.
pub(crate) fn device(name: &str) -> Device {
    fake_library().devices().unwrap().into_iter().find(|device| device.name() == name).unwrap()
}

/// What most tests want of a queue pair.
pub(crate) const CAPS: Caps = Caps { sends: 8, receives: 8, send_sges: 2, receive_sges: 1, inline_bytes: 64 };

/// One end of a connection, with a page of memory that the peer may write.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) channel: CompletionChannel,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: Memory,
    pub(crate) region: Region,
    pub(crate) pair: QueuePair,
    pub(crate) gid: GidEntry,
}

impl End {
    /// An end that is not connected.
    pub(crate) fn new(device: &str, kind: QueuePairKind) -> End {
        let context = open(device);
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 64, Some(&channel), 0).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let region = domain.register(&memory, Access::REMOTE_WRITE).unwrap();
        let setup = QueuePairSetup { kind, sends_to: &queue, receives_to: &queue, caps: CAPS };
        let pair = domain.queue_pair(&setup).unwrap();
        let gid = context.gids(1).unwrap().remove(0);
        End { context, channel, queue, domain, memory, region, pair, gid }
    }

    /// Takes all steps towards a peer.
    pub(crate) fn connect(&self, peer: &End) {
        self.pair.init(1, 0, Access::REMOTE_WRITE).unwrap();
        self.pair.ready_to_receive(&self.towards(peer)).unwrap();
        self.pair.ready_to_send(&SENDING).unwrap();
    }

    /// What connects to a peer.
    pub(crate) fn towards(&self, peer: &End) -> ReadyToReceive {
        ReadyToReceive {
            path: Path::to_gid(1, self.gid.index, peer.gid.gid),
            mtu: Mtu::M1024,
            peer: peer.pair.number(),
            first_packet: 7,
            reads_answered: 1,
            not_ready_timer: 12,
        }
    }

    /// Where the peer may write, from an offset on.
    pub(crate) fn at(&self, offset: usize) -> Remote {
        self.region.remote(self.memory.slice_mut(offset, 4096 - offset))
    }

    /// Bytes of its memory, for a send.
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.region.sge(self.memory.slice(offset, len))
    }

    /// Writes into its memory.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.slice_mut(offset, bytes.len()).copy_from(Buffers::new(bytes, &mut []).input());
    }

    /// Reads its memory.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Buffers::new(&[], &mut bytes).output().copy_from(self.memory.slice(offset, len));
        bytes
    }

    /// Posts one send.
    pub(crate) fn post(&self, work: SendWork<'_>) -> ccl_core::Result<()> {
        let mut batch = SendBatch::with_capacity(1);
        batch.push(work);
        self.pair.post_send(&mut batch)
    }

    /// Posts receives without memory.
    pub(crate) fn receive(&self, ids: std::ops::Range<u64>) {
        let mut batch = ReceiveBatch::with_capacity(8);
        ids.for_each(|id| batch.push(id, None));
        self.pair.post_receive(&mut batch).unwrap();
    }

    /// All completions that there are.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        self.queue.poll(&mut [Completion::default(); 64]).unwrap().to_vec()
    }

    /// Each completion's number and status.
    pub(crate) fn statuses(&self) -> Vec<(u64, Status)> {
        self.poll().iter().map(|completion| (completion.id(), completion.status())).collect()
    }
}

/// How most tests send.
pub(crate) const SENDING: ReadyToSend =
    ReadyToSend { timeout: 14, retries: 7, not_ready_retries: 7, first_packet: 7, reads_started: 1 };

/// Two connected ends.
pub(crate) fn pair() -> (End, End) {
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    left.connect(&right);
    right.connect(&left);
    (left, right)
}

/// A signaled send.
pub(crate) fn work<'a>(id: u64, verb: Verb<'a>, bytes: &'a [Sge]) -> SendWork<'a> {
    SendWork { id, verb, bytes, inline: false, signaled: true, solicited: false }
}

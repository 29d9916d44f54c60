//! A call whose last piece came before the news that it would wait in vain, and was not seen: it is looked for once more.

use ccl_core::bootstrap::{Bootstrap, UniqueId};
use ccl_core::communicator::{AbortHandle, Call, Communicator, Opener};
use ccl_core::config::Config;
use ccl_core::flight::{Memory, lines_for};
use ccl_core::kernels::{Buffers, Piece, PieceMut};
use ccl_core::transport::{
    Arrival, Capabilities, Counters, Exchange, Fabric, LinkKey, LocalHub, LocalTransport, Offer, Reach,
    ReceiverId, Refer, SenderId, Transport, UserMemory,
};
use ccl_core::{Collective, DataType, Rank, ReduceOp, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What a rank does not see until it sleeps.
#[derive(Default)]
struct Blindness {
    is_on: AtomicBool,
    /// Whose end its first look waits for, as if its thread had had no core since just before the last piece came. Where it is
    /// nobody's, a look waits for the piece alone.
    until: OnceLock<AbortHandle>,
}

/// A transport whose pieces are not seen for a while.
struct Blind(LocalTransport, Arc<Blindness>);

impl Fabric for Blind {
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
        self.0.reserve(to, len)
    }

    fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
        self.0.refer(to, piece)
    }

    fn settled(&mut self, to: SenderId) -> Result<bool> {
        self.0.settled(to)
    }

    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
        self.0.publish(to, tag)
    }

    fn offer(&mut self, from: ReceiverId, offer: Offer) -> Result<()> {
        self.0.offer(from, offer)
    }

    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
        if !self.1.is_on.load(Ordering::Acquire) {
            return self.0.peek(from);
        }
        let begin = Instant::now();
        while match self.1.until.get() {
            Some(handle) => handle.error().is_none(),
            None => self.0.peek(from)?.is_none(),
        } {
            assert!(begin.elapsed() < Duration::from_secs(60), "neither the end nor the piece ever came");
            std::thread::yield_now();
        }
        Ok(None)
    }

    fn release(&mut self, from: ReceiverId) -> Result<()> {
        self.0.release(from)
    }
}

impl Transport for Blind {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn address(&self) -> Vec<u8> {
        self.0.address()
    }

    fn probe(&self, peer: Rank, address: &[u8]) -> std::result::Result<Reach, String> {
        self.0.probe(peer, address)
    }

    fn connect(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        self.0.connect(links, exchange)
    }

    fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<SenderId> {
        self.0.sender(peers, channel)
    }

    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        self.0.receiver(peer, channel)
    }

    fn park(&mut self, limit: Duration) -> Result<()> {
        self.1.is_on.store(false, Ordering::Release);
        self.0.park(limit)
    }

    fn register(&mut self, memory: &UserMemory) -> Result<bool> {
        self.0.register(memory)
    }

    fn withdraw(&mut self) -> Vec<Rank> {
        self.0.withdraw()
    }

    fn counters(&self) -> Vec<(LinkKey, Counters)> {
        self.0.counters()
    }

    fn memory(&self) -> u64 {
        self.0.memory()
    }
}

struct Hub(LocalHub, Arc<Blindness>);

impl Opener for Hub {
    fn local(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>> {
        let own = self.0.transport(bootstrap.rank());
        Ok(vec![if bootstrap.rank() == 0 { Box::new(Blind(own, self.1.clone())) } else { Box::new(own) }])
    }

    fn network(&self, _: &Bootstrap) -> Result<Vec<Box<dyn Transport>>> {
        Ok(Vec::new())
    }
}

fn sum(comm: &mut Communicator) -> Result<u32> {
    let call = Call {
        collective: Collective::AllReduce,
        count: 1,
        dtype: DataType::U32,
        op: ReduceOp::Sum,
        root: 0,
    };
    let mut word = (comm.rank() + 1).to_le_bytes();
    comm.run(&call, Buffers::in_place(&mut word, 0..4, 0..4))?;
    Ok(u32::from_le_bytes(word))
}

/// What a rank does.
type Part<'a> = &'a (dyn Fn(&mut Communicator, &Blindness) + Sync);

/// Two ranks that make a call, and what each does then.
fn both(then: [Part<'_>; 2]) {
    let vars = [("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())];
    let config = Config::from_vars(vars).unwrap();
    let id = UniqueId::create(&config).unwrap();
    let (hub, blindness) = (LocalHub::new(2, 4096, 4), Arc::new(Blindness::default()));
    std::thread::scope(|scope| {
        for (rank, then) in (0..).zip(then) {
            let (config, id, opener) = (config.clone(), &id, Hub(hub.clone(), blindness.clone()));
            scope.spawn(move || {
                let end = Instant::now() + Duration::from_secs(60);
                let bootstrap = Bootstrap::join(id, rank, 2, &config, end).unwrap();
                let memory = Memory::heap(lines_for(16));
                let mut comm = Communicator::new(bootstrap, &opener, config, memory).unwrap();
                assert_eq!(sum(&mut comm).unwrap(), 3);
                then(&mut comm, &opener.1);
            });
        }
    });
}

#[test]
fn a_call_that_its_peer_has_done_before_it_ended_is_done() {
    let ends: [&(dyn Fn(&mut Communicator) + Sync); 2] =
        [&|comm| comm.abort_handle().abort(), &|comm| comm.revoke("on purpose")];
    for end in ends {
        both([
            &|comm, blindness| {
                blindness.until.get_or_init(|| comm.abort_handle());
                blindness.is_on.store(true, Ordering::Release);
                assert_eq!(sum(comm).unwrap(), 3);
                assert!(sum(comm).is_err(), "the peer is gone");
            },
            &|comm, _| {
                assert_eq!(sum(comm).unwrap(), 3);
                end(comm);
            },
        ]);
    }
}

#[test]
fn a_call_for_which_there_was_no_core_until_its_limit_is_done() {
    both([
        &|comm, blindness| {
            comm.set_timeout(Duration::from_millis(1));
            blindness.is_on.store(true, Ordering::Release);
            assert_eq!(sum(comm).unwrap(), 3);
            assert!(sum(comm).is_err(), "the peer does not come");
        },
        &|comm, _| {
            assert_eq!(sum(comm).unwrap(), 3);
            let health = comm.abort_handle();
            let begin = Instant::now();
            while health.error().is_none() {
                assert!(begin.elapsed() < Duration::from_secs(60), "nobody told");
                std::thread::yield_now();
            }
        },
    ]);
}

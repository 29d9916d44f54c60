//! Registered memory: sent from where it lies, and written where it goes.

mod hosts;

use ccl_core::kernels::{Direction, Piece};
use ccl_core::transport::conformance::{receive, send};
use ccl_core::transport::{
    Fabric, KnownMemory, Offer, ReceiverId, Refer, SenderId, Sent, Transport, UserMemory,
};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::IbTransport;
use hosts::pair::{Random, counters, pair, piece, sink};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Of more than 8 KiB, so that pieces choose among the rails.
const SLOT: usize = 12288;
const CREDITS: u32 = 4;
const GUARD: Duration = Duration::from_secs(60);

fn user(piece: Piece) -> UserMemory {
    UserMemory { piece, owner: None }
}

#[test]
fn registered_memory_is_sent_from_where_it_lies() {
    let _fake = Fake::start(&hosts::script(2, 1));
    let (mut t, to, from) = pair(SLOT, CREDITS);
    let mut memory = vec![7u8; 3 * SLOT];
    assert_eq!(t[0].refer(to, piece(&memory[..SLOT])).unwrap(), Refer::NotMapped, "not registered");
    t[0].register(&user(piece(&memory))).unwrap();
    assert_eq!(t[0].refer(to, piece(&memory[..100])).unwrap(), Refer::NotMapped, "short");
    for k in 0..20 {
        memory.fill(k);
        assert_eq!(t[0].refer(to, piece(&memory[5..5 + SLOT])).unwrap(), Refer::Ready);
        t[0].publish(to, 1).unwrap();
        assert!(t[0].settled(to).unwrap(), "this device is done at once");
        // It is the caller's again.
        memory.fill(0xff);
        assert_eq!(receive(&mut t[1], from), Some((vec![k; SLOT], 1)));
    }
    let counted = counters(&t[0]);
    assert_eq!((counted.referenced, counted.referenced_bytes), (20, 20 * SLOT as u64));
    // A slot in its place, and the other way round.
    assert_eq!(t[0].refer(to, piece(&memory[..SLOT])).unwrap(), Refer::Ready);
    assert!(send(&mut t[0], to, &[1; SLOT], 2));
    assert!(t[0].reserve(to, SLOT).unwrap().is_some());
    assert_eq!(t[0].refer(to, piece(&memory[..SLOT])).unwrap(), Refer::NotMapped);
    t[0].publish(to, 2).unwrap();
    assert_eq!(receive(&mut t[1], from), Some((vec![1; SLOT], 2)));
    t[0].deregister(piece(&memory)).unwrap();
    assert_eq!(t[0].refer(to, piece(&memory[..SLOT])).unwrap(), Refer::NotMapped);
}

/// What [`KNOWN`] knows.
static COMING_AND_GOING: Mutex<(u64, Vec<Arc<Vec<u8>>>)> = Mutex::new((0, Vec::new()));

const KNOWN: KnownMemory = KnownMemory {
    changes: || COMING_AND_GOING.lock().unwrap().0,
    all: || {
        let memory = &COMING_AND_GOING.lock().unwrap().1;
        memory.iter().map(|one| UserMemory { piece: piece(one), owner: Some(Arc::clone(one) as _) }).collect()
    },
};

fn become_known(memory: &[&Arc<Vec<u8>>]) {
    let mut known = COMING_AND_GOING.lock().unwrap();
    *known = (known.0 + 1, memory.iter().map(|one| Arc::clone(one)).collect());
}

#[test]
fn known_memory_need_not_be_registered_and_is_let_go_when_it_goes() {
    let fake = Fake::start(&hosts::script(2, 1));
    let (mut t, to, from) = pair(SLOT, CREDITS);
    let idle = fake.live();
    t.iter_mut().for_each(|t| t.know(KNOWN));
    let (one, other) = (Arc::new(vec![3u8; 2 * SLOT]), Arc::new(vec![4u8; 2 * SLOT]));
    assert_eq!(t[0].refer(to, piece(&one[..SLOT])).unwrap(), Refer::NotMapped, "nothing is known");
    let sends = |t: &mut [IbTransport], memory: &[u8]| {
        assert_eq!(t[0].refer(to, piece(&memory[1..1 + SLOT])).unwrap(), Refer::Ready);
        t[0].publish(to, 1).unwrap();
        assert!(t[0].settled(to).unwrap());
        assert_eq!(receive(&mut t[1], from), Some((memory[1..1 + SLOT].to_vec(), 1)));
    };
    become_known(&[&one, &other]);
    assert_eq!(fake.live(), idle, "devices are told when it is used");
    sends(&mut t, &one);
    sends(&mut t, &other);
    let with_both = fake.live();
    // The user registers it too: that is a thing of its own, and ends by itself.
    t[0].register(&user(piece(&one))).unwrap();
    t[0].deregister(piece(&one)).unwrap();
    sends(&mut t, &one);
    // Another owner has the same bytes: as when memory is freed and given out again.
    let again = Arc::new((*one).clone());
    become_known(&[&again]);
    assert_eq!(t[0].refer(to, piece(&one[..SLOT])).unwrap(), Refer::NotMapped, "gone");
    assert_eq!(t[0].refer(to, piece(&other[..SLOT])).unwrap(), Refer::NotMapped, "gone");
    assert!(fake.live() < with_both, "the device has let go of both");
    sends(&mut t, &again);
    // Where a call has failed, devices touch nothing any more.
    t[0].withdraw();
    assert_eq!(t[0].refer(to, piece(&again[..SLOT])).unwrap(), Refer::NotMapped);
    become_known(&[]);
}

#[test]
fn memory_that_a_device_cannot_register_goes_through_slots() {
    let fake = Fake::start(&hosts::script(2, 1));
    let (mut t, to, from) = pair(SLOT, CREDITS);
    let memory = vec![3u8; SLOT];
    fake.run("fail reg_mr errno=ENOMEM times=9; fail reg_mr_iova2 errno=ENOMEM times=9");
    t[0].register(&user(piece(&memory))).unwrap();
    for _ in 0..3 {
        assert_eq!(t[0].refer(to, piece(&memory)).unwrap(), Refer::NotMapped);
        assert!(send(&mut t[0], to, &memory, 1));
        assert_eq!(receive(&mut t[1], from), Some((memory.clone(), 1)));
    }
}

/// A call after the other, each of some pieces, from and into registered memory or not.
struct Calls {
    random: Random,
    source: Vec<u8>,
    into: Vec<u8>,
    calls: u64,
}

impl Calls {
    const MOST: usize = 12 * SLOT;

    fn new(seed: u64, t: &mut [IbTransport]) -> Calls {
        let (source, mut into) = (vec![0; Calls::MOST], vec![0; Calls::MOST]);
        t[0].register(&user(piece(&source))).unwrap();
        t[1].register(&user(sink(&mut into).as_piece())).unwrap();
        Calls { random: Random(seed), source, into, calls: 0 }
    }

    fn run(&mut self, t: &mut [IbTransport], to: SenderId, from: ReceiverId) {
        self.calls += 1;
        let (tag, random) = (self.calls, &mut self.random);
        let len = 1 + random.up_to(Calls::MOST as u64 - 1) as usize;
        random.fill(&mut self.source[..len]);
        let wanted = self.source[..len].to_vec();
        let (refers, offers) = (random.up_to(3) > 0, random.up_to(3) > 0);
        let into = sink(&mut self.into).slice(0, len);
        let pieces = len.div_ceil(SLOT);
        let (mut sent, mut received, mut settled) = (0, 0, false);
        let mut offered = !offers;
        let start = Instant::now();
        while received < pieces || !settled {
            let at = sent * SLOT;
            if sent < pieces && random.up_to(2) > 0 {
                let bytes = piece(&self.source).slice(at, SLOT.min(len - at));
                let referred = if refers { t[0].refer(to, bytes).unwrap() } else { Refer::NotMapped };
                let done = match referred {
                    Refer::Ready => t[0].publish(to, tag).map(|()| true).unwrap(),
                    Refer::NoCredit => false,
                    Refer::NotMapped => t[0].send(to, bytes, tag).unwrap() == Sent::Done,
                };
                sent += usize::from(done);
            } else if sent == pieces && !settled && t[0].settled(to).unwrap() {
                // From now on it is the caller's, who changes it.
                (settled, self.source) = (true, std::mem::take(&mut self.source));
                self.source.fill(0xee);
            }
            // Also after the first pieces have come.
            if !offered && random.up_to(3) == 0 && received == 0 {
                offered = true;
                t[1].offer(from, Offer { tag, sink: into, piece: SLOT, direction: Direction::Forwards })
                    .unwrap();
            }
            if random.up_to(2) > 0
                && let Some(arrival) = t[1].peek(from).unwrap()
            {
                let place = into.slice(received * SLOT, SLOT.min(len - received * SLOT));
                assert_eq!((arrival.tag, arrival.piece.len()), (tag, place.len()));
                if !arrival.piece.is(place.as_piece()) {
                    place.copy_from(arrival.piece);
                }
                t[1].release(from).unwrap();
                received += 1;
            }
            if random.up_to(50) == 0 {
                t.iter_mut().for_each(|t| t.park(Duration::ZERO).unwrap());
            }
            assert!(start.elapsed() < GUARD, "call {tag}: {sent} and {received} of {pieces}, {settled}");
        }
        let wrong = (0..len).filter(|&at| self.into[at] != wanted[at]).collect::<Vec<_>>();
        let seen = wrong.first().map(|at| (at, self.into[*at], wanted[*at]));
        assert!(
            wrong.is_empty(),
            "call {tag} of {len} bytes, refers: {refers}, offers: {offers}: {} bytes are wrong, first {seen:?}",
            wrong.len()
        );
    }
}

#[test]
fn calls_in_all_ways_give_the_same_bytes() {
    for seed in 1..20 {
        // Over one rail, and over several that are not alike, so that pieces overtake one another.
        let rails = 1 + seed as u32 % 3;
        let fake = Fake::start(&hosts::script(2, rails));
        for rail in 1..rails {
            fake.run(&format!("pace h0r{rail} {}; pace h1r{rail} {}", seed % 4, seed % 5 * rail as u64));
        }
        let (mut t, to, from) = pair(SLOT, CREDITS);
        let mut calls = Calls::new(seed, &mut t);
        for _ in 0..100 {
            calls.run(&mut t, to, from);
        }
        let (there, here) = (counters(&t[1]), counters(&t[0]));
        assert!(here.referenced > 50 && here.direct > 10 && here.pieces > here.direct + 50, "{here:?}");
        assert_eq!((here.direct, here.direct_bytes), (there.direct, there.direct_bytes));
        let work = t[1].work();
        assert!(work.offers > 10 && work.offers <= 100, "{work:?}");
    }
}

/// Nothing is written twice into what was offered for another call, nor read from what is the caller's again.
#[test]
fn queue_pairs_may_fail_meanwhile() {
    let mut repairs = 0;
    for seed in 1..40 {
        let fake = Fake::start(&hosts::script(2, 1 + seed % 2));
        let (mut t, to, from) = pair(SLOT, CREDITS);
        let mut calls = Calls::new(seed.into(), &mut t);
        for call in 0..40 {
            if call % 3 == 0 {
                let nth = 1 + calls.random.up_to(30);
                let delivered = ["no", "yes"][calls.random.up_to(1) as usize];
                let on = ["h0r0", "h1r0"][calls.random.up_to(1) as usize];
                fake.run(&format!(
                    "complete status=IBV_WC_RETRY_EXC_ERR nth={nth} on={on} delivered={delivered}"
                ));
            }
            calls.run(&mut t, to, from);
        }
        assert!(counters(&t[0]).direct > 0 && counters(&t[0]).referenced > 0);
        repairs += t[0].work().repairs;
    }
    assert!(repairs > 100, "{repairs}");
}

//! The contract as tests, for every transport: [`transport_conformance!`](crate::transport_conformance) with a
//! function from a number of ranks to that many unconnected transports.
//!
//! Most tests move all ranks from one thread, since no call of the data path waits; so they are deterministic.

use super::{Counters, LinkKey, ReceiverId, SenderId, Transport};
use crate::plan::Rank;
use std::thread;
use std::time::Duration;

/// Instantiates the suite as `#[test]` functions.
#[macro_export]
macro_rules! transport_conformance {
    ($make:path) => {
        $crate::transport_conformance!($make: order_and_tags lengths credits_are_counted calls_are_idempotent
            several_peers_share_a_piece one_slow_reader_holds_all both_directions_and_channels
            what_is_taken_is_merged_and_given_back opening_is_idempotent misuse_is_an_error counters_count park_sees_what_came park_wakes
            addresses_probe a_seeded_stress);
    };
    ($make:path: $($test:ident)*) => {
        $(#[test]
        fn $test() {
            $crate::transport::conformance::$test($make);
        })*
    };
}

/// Instantiates the tests of references, for transports that have them: with a second function that copies bytes into
/// memory that peers can see.
#[macro_export]
macro_rules! reference_conformance {
    ($make:path, $memory:path) => {
        $crate::reference_conformance!($make, $memory: references_arrive_where_they_lie
            references_side_by_side_are_one_piece references_take_credits a_reference_settles_with_its_last_reader
            references_and_slots_take_turns a_release_of_a_reference_wakes what_was_withdrawn_is_not_trusted);
    };
    ($make:path, $memory:path: $($test:ident)*) => {
        $(#[test]
        fn $test() {
            $crate::transport::conformance::references::$test($make, $memory);
        })*
    };
}

/// Instantiates the tests of offers, for transports that take them: with a second function that makes memory which peers can be let
/// write to.
#[macro_export]
macro_rules! offer_conformance {
    ($make:path, $memory:path) => {
        $crate::offer_conformance!($make, $memory: offered_pieces_come_into_their_place offered_pieces_are_written_in_one_go
            what_does_not_belong_there_goes_another_way what_was_sent_before_an_offer_is_counted
            a_newer_offer_replaces_one nobody_writes_to_what_was_withdrawn);
    };
    ($make:path, $memory:path: $($test:ident)*) => {
        $(#[test]
        fn $test() {
            $crate::transport::conformance::offers::$test($make, $memory);
        })*
    };
}

mod board;
mod counting;
pub mod offers;
pub mod references;
mod taking;

pub use board::{Board, stream_pair};
pub use counting::{Counting, allocations};
pub use taking::what_is_taken_is_merged_and_given_back;

/// Opens `links` among the transports, each in a thread of its own.
pub fn connect<T: Transport>(transports: &mut [T], links: &[LinkKey]) {
    let boards = Board::of(transports.len() as u32);
    thread::scope(|scope| {
        let ends = transports.iter_mut().zip(boards).zip(0..).map(|((transport, mut board), rank)| {
            let mine: Vec<_> =
                links.iter().copied().filter(|link| link.from == rank || link.to == rank).collect();
            scope.spawn(move || transport.connect(&mine, &mut board).unwrap())
        });
        let ends: Vec<_> = ends.collect();
        // Joined by hand: ThreadSanitizer sees a join, and not how a scope waits.
        ends.into_iter().for_each(|end| end.join().unwrap());
    });
}

/// All links among `ranks`, on `channels` channels.
pub fn mesh(ranks: u32, channels: u16) -> Vec<LinkKey> {
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from != to);
    pairs.flat_map(|(from, to)| (0..channels).map(move |channel| LinkKey { from, to, channel })).collect()
}

fn connected<T: Transport>(make: impl Fn(u32) -> Vec<T>, ranks: u32, channels: u16) -> Vec<T> {
    let mut transports = make(ranks);
    connect(&mut transports, &mesh(ranks, channels));
    transports
}

/// Bytes that depend on the seed and on the place.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Sends if there is a credit.
pub fn send<T: Transport>(transport: &mut T, to: SenderId, bytes: &[u8], tag: u64) -> bool {
    let Some(slot) = transport.reserve(to, bytes.len()).unwrap() else { return false };
    assert_eq!(slot.len(), bytes.len());
    sys::write(slot, bytes);
    transport.publish(to, tag).unwrap();
    true
}

/// Bytes and tag of the oldest piece, which stays.
pub fn look<T: Transport>(transport: &mut T, from: ReceiverId) -> Option<(Vec<u8>, u64)> {
    transport.peek(from).unwrap().map(|arrival| (sys::read(arrival.piece), arrival.tag))
}

/// The oldest piece, released.
pub fn receive<T: Transport>(transport: &mut T, from: ReceiverId) -> Option<(Vec<u8>, u64)> {
    let got = look(transport, from)?;
    transport.release(from).unwrap();
    Some(got)
}

/// Pieces come in order, unchanged, each with its tag; none is left over.
pub fn order_and_tags<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let limit = slot_bytes_of(&t) + 1;
    let len = |k: u64| (k as usize * 37) % limit;
    for k in 0..300u64 {
        assert!(send(&mut t[0], to, &pattern(k, len(k)), !k));
        if k % 2 == 1 {
            assert_eq!(receive(&mut t[1], from), Some((pattern(k - 1, len(k - 1)), !(k - 1))));
            assert_eq!(receive(&mut t[1], from), Some((pattern(k, len(k)), !k)));
        }
    }
    assert_eq!(receive(&mut t[1], from), None);
}

fn slot_bytes_of<T: Transport>(transports: &[T]) -> usize {
    transports[0].capabilities().slot_bytes
}

/// Every length around the limits travels whole; one byte too many is an error that leaves the link usable.
pub fn lengths<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let able = t[0].capabilities();
    assert!(
        able.inline_bytes <= able.short_bytes && able.short_bytes <= able.slot_bytes && able.credits >= 1
    );
    let around = |n: usize| n.saturating_sub(3)..=(n + 3).min(able.slot_bytes);
    let limits = [0, 64, able.inline_bytes, able.short_bytes, able.slot_bytes];
    for len in limits.into_iter().flat_map(around) {
        assert!(send(&mut t[0], to, &pattern(len as u64, len), len as u64));
        assert_eq!(receive(&mut t[1], from), Some((pattern(len as u64, len), len as u64)));
    }
    assert!(t[0].reserve(to, able.slot_bytes + 1).is_err());
    assert!(send(&mut t[0], to, b"still", 1));
    assert_eq!(receive(&mut t[1], from), Some((b"still".to_vec(), 1)));
}

/// Sends until there is no credit; how many pieces fitted: as many as promised, and not twice as many.
fn fill<T: Transport>(transport: &mut T, to: SenderId, promised: u32, piece: impl Fn(u64) -> Vec<u8>) -> u64 {
    let promised = u64::from(promised);
    let sent = (0..2 * promised).take_while(|&k| send(transport, to, &piece(k), k)).count() as u64;
    assert!((promised..2 * promised).contains(&sent), "{sent} pieces on a link that takes {promised}");
    sent
}

/// As many pieces always fit as there are credits, and long ones as there are slots; where a few more do, their releases may come
/// back together.
pub fn credits_are_counted<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let able = t[0].capabilities();
    assert!((1..=able.credits).contains(&able.slots), "{able:?}");
    let short = [0, 1, able.short_bytes].map(|len| (len, able.credits));
    for (len, fit) in short.into_iter().chain([(able.slot_bytes, able.slots)]) {
        let mut sent = fill(&mut t[0], to, fit, |k| pattern(k, len));
        let mut received = 0;
        for _ in 0..3 * fit {
            while sent - received >= u64::from(fit) {
                assert_eq!(receive(&mut t[1], from), Some((pattern(received, len), received)));
                received += 1;
            }
            assert!(send(&mut t[0], to, &pattern(sent, len), sent), "piece {sent} of {len} bytes");
            sent += 1;
        }
        while send(&mut t[0], to, &pattern(0, len), 0) {
            sent += 1;
        }
        // Room for a short one is not room for a long one.
        if t[0].reserve(to, 0).unwrap().is_some() {
            assert!(t[0].reserve(to, len).unwrap().is_none());
        }
        // Short ones still fit, until all credits are taken.
        while send(&mut t[0], to, &[], 0) {
            sent += 1;
        }
        assert!(sent - received >= u64::from(able.credits));
        while receive(&mut t[1], from).is_some() {}
    }
}

/// `reserve` before `publish` and `peek` before `release` give the same again.
pub fn calls_are_idempotent<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    for len in [1, slot_bytes_of(&t)] {
        let slot = t[0].reserve(to, len).unwrap().unwrap();
        sys::write(slot, &pattern(5, len));
        for _ in 0..2 * t[0].capabilities().credits {
            assert_eq!(t[0].reserve(to, len).unwrap().unwrap().as_mut_ptr(), slot.as_mut_ptr());
        }
        assert_eq!(look(&mut t[1], from), None, "not published yet");
        t[0].publish(to, 8).unwrap();
        let place = t[1].peek(from).unwrap().unwrap().piece.as_ptr();
        assert!(send(&mut t[0], to, &[], 9));
        for _ in 0..5 {
            assert_eq!(t[1].peek(from).unwrap().unwrap().piece.as_ptr(), place);
            assert_eq!(look(&mut t[1], from), Some((pattern(5, len), 8)));
        }
        assert_eq!(receive(&mut t[1], from), Some((pattern(5, len), 8)));
        assert_eq!(receive(&mut t[1], from), Some((vec![], 9)));
    }
}

/// A sender to several peers reaches each of them, in order with what others send on the same links.
pub fn several_peers_share_a_piece<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 4, 1);
    let all = t[0].sender(&[1, 2, 3], 0).unwrap();
    let one = t[0].sender(&[2], 0).unwrap();
    let from: Vec<_> = (1..4).map(|i| t[i].receiver(0, 0).unwrap()).collect();
    for (k, len) in [0, 7, slot_bytes_of(&t)].into_iter().cycle().take(30).enumerate() {
        let k = k as u64;
        assert!(send(&mut t[0], all, &pattern(k, len), k));
        assert!(send(&mut t[0], one, b"you", k));
        for i in 1..4 {
            assert_eq!(receive(&mut t[i], from[i - 1]), Some((pattern(k, len), k)));
        }
        assert_eq!(receive(&mut t[2], from[1]), Some((b"you".to_vec(), k)));
        assert!((1..4).all(|i| receive(&mut t[i], from[i - 1]).is_none()));
    }
}

/// The credit of the slowest reader counts; what it has not released stays as it is.
pub fn one_slow_reader_holds_all<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 3, 1);
    let both = t[0].sender(&[1, 2], 0).unwrap();
    let one = t[0].sender(&[1], 0).unwrap();
    let (fast, slow) = (t[1].receiver(0, 0).unwrap(), t[2].receiver(0, 0).unwrap());
    let (credits, len) = (u64::from(t[0].capabilities().credits), slot_bytes_of(&t));
    let mut sent = 0;
    while send(&mut t[0], both, &pattern(sent, len), sent) {
        assert_eq!(receive(&mut t[1], fast), Some((pattern(sent, len), sent)));
        sent += 1;
        assert!(sent < 2 * credits, "the slow reader holds all credits");
    }
    for k in 0..4 * credits {
        assert!(send(&mut t[0], one, &pattern(100 + k, len), k), "the fast link is free");
        assert_eq!(receive(&mut t[1], fast), Some((pattern(100 + k, len), k)));
    }
    let mut more = 0;
    for k in 0..sent {
        assert_eq!(receive(&mut t[2], slow), Some((pattern(k, len), k)), "overwritten under a reader");
        while sent + more - k <= credits {
            assert!(send(&mut t[0], both, &[], 0), "fewer than {credits} pieces are held");
            assert!(receive(&mut t[1], fast).is_some());
            more += 1;
        }
    }
}

/// Links of a pair do not disturb each other.
pub fn both_directions_and_channels<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 3, 5);
    for round in 0..10u64 {
        for link in mesh(3, 5) {
            let seed =
                round << 32 | u64::from(link.from) << 20 | u64::from(link.to) << 10 | u64::from(link.channel);
            let to = t[link.from as usize].sender(&[link.to], link.channel).unwrap();
            assert!(send(&mut t[link.from as usize], to, &pattern(seed, (seed % 200) as usize), seed));
        }
        for link in mesh(3, 5) {
            let seed =
                round << 32 | u64::from(link.from) << 20 | u64::from(link.to) << 10 | u64::from(link.channel);
            let from = t[link.to as usize].receiver(link.from, link.channel).unwrap();
            let got = receive(&mut t[link.to as usize], from);
            assert_eq!(got, Some((pattern(seed, (seed % 200) as usize), seed)));
        }
    }
}

/// Opening again, or more, leaves open links and what is on them alone; the same end has the same id.
pub fn opening_is_idempotent<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    assert!(send(&mut t[0], to, b"before", 1));
    for channels in [1, 3] {
        connect(&mut t, &mesh(2, channels));
        assert_eq!(t[0].sender(&[1], 0).unwrap(), to);
        assert_eq!(t[1].receiver(0, 0).unwrap(), from);
    }
    assert_eq!(receive(&mut t[1], from), Some((b"before".to_vec(), 1)));
    let (to, from) = (t[0].sender(&[1], 2).unwrap(), t[1].receiver(0, 2).unwrap());
    assert!(send(&mut t[0], to, b"new", 2));
    assert_eq!(receive(&mut t[1], from), Some((b"new".to_vec(), 2)));
}

/// What a caller does wrong is an error, and changes nothing.
pub fn misuse_is_an_error<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    assert!(t[0].sender(&[1], 9).is_err() && t[0].sender(&[7], 0).is_err() && t[0].sender(&[], 0).is_err());
    assert!(t[0].sender(&[1, 1], 0).is_err());
    assert!(t[1].receiver(0, 9).is_err() && t[1].receiver(7, 0).is_err());
    let mut board = Board::of(2);
    for link in [(0, 0), (1, 1), (0, 7)].map(|(from, to)| LinkKey { from, to, channel: 0 }) {
        assert!(t[0].connect(&[link], &mut board[0]).is_err(), "{link:?}");
    }
    assert!(t[0].publish(to, 0).is_err(), "nothing reserved");
    assert!(t[1].release(from).is_err(), "nothing there");
    assert!(send(&mut t[0], to, b"x", 0));
    assert!(t[1].release(from).is_err(), "not peeked at");
    assert_eq!(receive(&mut t[1], from), Some((b"x".to_vec(), 0)));
    assert!(t[1].release(from).is_err(), "released before");
    assert!(t[0].reserve(SenderId(99), 1).is_err() && t[0].publish(SenderId(99), 1).is_err());
    assert!(t[1].peek(ReceiverId(99)).is_err() && t[1].release(ReceiverId(99)).is_err());
}

/// Pieces, bytes, inline pieces and stalls, at both ends.
pub fn counters_count<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let able = t[0].capabilities();
    let inline = u64::from(able.inline_bytes >= 1);
    for _ in 0..3 {
        assert!(receive(&mut t[1], from).is_none());
        assert!(send(&mut t[0], to, &[1], 0) && receive(&mut t[1], from).is_some());
    }
    let filled = fill(&mut t[0], to, able.slots, |_| pattern(0, able.slot_bytes));
    while receive(&mut t[1], from).is_some() {}
    let key = LinkKey { from: 0, to: 1, channel: 0 };
    let of = |t: &T| t.counters().into_iter().find(|(link, _)| *link == key).unwrap().1;
    let bytes = 3 + filled * able.slot_bytes as u64;
    let pieces = 3 + filled;
    let sent = Counters { pieces, bytes, inline: 3 * inline, stalls: 1, ..Counters::default() };
    assert_eq!(of(&t[0]), sent);
    assert_eq!(of(&t[1]), Counters { stalls: 4, ..sent });
    assert_eq!(t[0].counters().len(), 2, "one entry per link");
}

/// `park` does not sleep over what came before it; and comes back when nothing comes.
pub fn park_sees_what_came<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    t[1].park(Duration::from_millis(1)).unwrap();
    assert!(send(&mut t[0], to, b"x", 0));
    t[1].park(FOREVER).unwrap();
    assert!(receive(&mut t[1], from).is_some());
    let credits = t[0].capabilities().credits;
    let filled = fill(&mut t[0], to, credits, |_| b"x".to_vec());
    t[0].park(Duration::from_millis(1)).unwrap();
    for _ in u64::from(credits)..=filled {
        assert!(receive(&mut t[1], from).is_some());
    }
    t[0].park(FOREVER).unwrap();
    assert!(send(&mut t[0], to, b"x", 0));
}

/// Longer than a test may take: who sleeps so long has missed something.
const FOREVER: Duration = Duration::from_secs(3600);

/// Two ranks that sleep whenever they have nothing to do: a lost wake-up would stop them.
pub fn park_wakes<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let (left, right) = t.split_at_mut(1);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for k in 0..2000u64 {
                while !send(&mut left[0], to, &k.to_le_bytes(), k) {
                    left[0].park(FOREVER).unwrap();
                }
            }
        });
        for k in 0..2000u64 {
            let got = loop {
                match receive(&mut right[0], from) {
                    Some(got) => break got,
                    None => right[0].park(FOREVER).unwrap(),
                }
            };
            assert_eq!(got, (k.to_le_bytes().to_vec(), k));
        }
        sender.join().unwrap();
    });
}

/// Ranks of one maker reach each other; nonsense is refused with a reason.
pub fn addresses_probe<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let t = make(3);
    assert!(!t[0].name().is_empty());
    assert!(t.iter().all(|t| t.address().len() <= 256));
    let reach = t[0].probe(2, &t[2].address()).unwrap();
    assert!(reach.latency_ns > 0.0 && reach.message_ns > 0.0 && reach.bandwidth > 0.0);
    assert!(!t[0].probe(2, b"nonsense").unwrap_err().is_empty());
    assert!(t[0].probe(9, &t[2].address()).is_err());
}

/// Threads that send and receive in a seeded order, with lengths of all kinds, on all links.
pub fn a_seeded_stress<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    const RANKS: u32 = 4;
    const PIECES: u64 = 400;
    let mut t = connected(make, RANKS, 2);
    thread::scope(|scope| {
        let ranks = t.iter_mut().zip(0..);
        let ranks: Vec<_> =
            ranks.map(|(t, rank)| scope.spawn(move || stress(t, rank, RANKS, PIECES))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// One rank of the stress: channel 0 to each peer alone, channel 1 to all peers at once.
pub fn stress<T: Transport>(transport: &mut T, rank: Rank, ranks: u32, pieces: u64) {
    let slot_bytes = transport.capabilities().slot_bytes;
    let peers: Vec<Rank> = (0..ranks).filter(|&peer| peer != rank).collect();
    let seed_of = |from: Rank, to: Rank, k: u64| u64::from(from) << 48 | u64::from(to) << 32 | k;
    let bytes_of = |seed: u64| {
        let dice = pattern(seed, 4);
        let word = u32::from_le_bytes([dice[0], dice[1], dice[2], dice[3]]) as usize;
        pattern(
            seed,
            if word.is_multiple_of(3) { word / 3 % (slot_bytes + 1) } else { word / 3 % 130.min(slot_bytes) },
        )
    };
    // The last "peer" is all of them.
    let everybody = ranks;
    let mut out: Vec<(Rank, SenderId, u64)> =
        peers.iter().map(|&peer| (peer, transport.sender(&[peer], 0).unwrap(), 0)).collect();
    out.push((everybody, transport.sender(&peers, 1).unwrap(), 0));
    let mut incoming: Vec<(Rank, Rank, ReceiverId, u64)> = Vec::new();
    for &peer in &peers {
        incoming.push((peer, rank, transport.receiver(peer, 0).unwrap(), 0));
        incoming.push((peer, everybody, transport.receiver(peer, 1).unwrap(), 0));
    }
    let mut order = pattern(u64::from(rank) + 1, 4096).into_iter().cycle();
    let mut idle = 0;
    while out.iter().any(|(.., k)| *k < pieces) || incoming.iter().any(|(.., k)| *k < pieces) {
        let pick = usize::from(order.next().unwrap_or(0)) % (out.len() + incoming.len());
        let moved = if let Some((to, id, k)) = out.get_mut(pick) {
            let seed = seed_of(rank, *to, *k);
            let sent = *k < pieces && send(transport, *id, &bytes_of(seed), seed);
            *k += u64::from(sent);
            sent
        } else {
            let at = pick - out.len();
            let (from, to, id, k) = &mut incoming[at];
            let got = receive(transport, *id);
            let seed = seed_of(*from, *to, *k);
            assert!(
                got.as_ref().is_none_or(|got| *got == (bytes_of(seed), seed)),
                "piece {k} of rank {from}"
            );
            *k += u64::from(got.is_some());
            got.is_some()
        };
        idle = if moved { 0 } else { idle + 1 };
        if idle > 64 {
            thread::yield_now();
        }
    }
}

#[allow(unsafe_code)] // Tests read and write slots as a kernel does.
mod sys {
    //! Touching pieces.
    use crate::kernels::{Piece, PieceMut};

    pub(super) fn write(slot: PieceMut, bytes: &[u8]) {
        assert_eq!(slot.len(), bytes.len());
        // SAFETY: the slot is writable for its length and nobody else's, until it is published.
        unsafe { slot.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(super) fn read(piece: Piece) -> Vec<u8> {
        // SAFETY: the piece is readable for its length and does not change until it is released.
        unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len()) }.to_vec()
    }
}

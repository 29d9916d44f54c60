//! What a broken or hostile peer may write into the shared memory, and a peer whose wake-up does not come.

use super::Words;
use crate::bell::PIECE;
use crate::ring::{Body, Credit, Entry, LENT_BYTES, Passing, SHORT_BYTES};
use crate::sync::Ordering;
use crate::{SharedMemory, ShmConfig, ShmTransport};
use ccl_core::ErrorKind;
use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{connect, receive, send};
use ccl_core::transport::{Fabric, LinkKey, Refer, Transport};
use std::thread;
use std::time::Duration;

const FOREVER: Duration = Duration::from_secs(3600);
const CREDITS: u32 = 4;
const CONFIG: ShmConfig =
    ShmConfig { slot_bytes: 8192, credits: Some(CREDITS), max_links: Some(4), host_id: None };

/// Two ranks with a link from rank 0 to rank 1, which is the first in the segment of rank 0.
fn pair() -> Vec<ShmTransport> {
    let mut pair: Vec<_> = (0..2).map(|rank| ShmTransport::new(rank, 2, &CONFIG).unwrap()).collect();
    connect(&mut pair, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    pair
}

/// The words of that link.
fn words(t: &[ShmTransport]) -> (&Credit, &Entry) {
    let Words { credit, entries, .. } = t[0].segment.link(0);
    // SAFETY: they lie in the segment, which `t` keeps; any bytes are valid.
    unsafe { (credit.as_ref(), entries.as_ref()) }
}

fn names(error: &ccl_core::Error, rank: u32) -> bool {
    let is_from = matches!(error.kind(), ErrorKind::Transport { peer: Some(peer), .. } if *peer == rank);
    is_from && error.to_string().contains("damaged")
}

#[test]
fn a_forged_message_is_an_error_that_names_the_sender() {
    let slots = CONFIG.geometry(2).unwrap().slots();
    let slot = |number, at, passing| Body::Slot { number, at, passing, by_words: false };
    let too_long = CONFIG.slot_bytes as u32 + 1;
    let forged = [
        (9, 8, Body::Line),
        (1, SHORT_BYTES as u32 + 1, Body::Line),
        (1, too_long, slot(0, 0, Passing::Stays)),
        (1, (1 << 29) - 1, slot(0, 0, Passing::Over)),
        (1, 8, slot(slots, 0, Passing::Stays)),
        (1, 8, slot(u32::MAX, 0, Passing::Stays)),
        (1, 8, slot(0, (1 << 29) - 1, Passing::Over)),
        (1, 8, slot(0, 0, Passing::Back)),
        (1, 8, slot(slots, 0, Passing::Back)),
        (1, 8, Body::Offered),
        (1, 8, Body::Lent { number: 0, offset: 0 }),
        (1, 8, Body::Lent { number: 256, offset: 0 }),
        (1, 8, Body::Lent { number: (1 << 24) - 1, offset: LENT_BYTES - 1 }),
    ];
    for (sequence, len, body) in forged {
        let mut t = pair();
        let from = t[1].receiver(0, 0).unwrap();
        words(&t).1.forge(sequence, len, body);
        let error = t[1].peek(from).unwrap_err();
        assert!(names(&error, 0), "{error}");
        // It also ends a sleep.
        t[1].park(FOREVER).unwrap();
    }
}

/// Lent memory is left by one byte, at its start or behind its end.
#[test]
fn a_piece_outside_of_lent_memory_is_an_error() {
    let memory = SharedMemory::alloc(1).unwrap();
    let len = (2 << 20) as u32;
    for (offset, len, is_inside) in [
        (0, len, true),
        (5, len - 5, true),
        (5, len - 4, false),
        (len, 0, true),
        (len, 1, false),
        (u32::MAX, 8, false),
    ] {
        let mut t = pair();
        let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
        let piece = Buffers::new(&memory, &mut []).input();
        assert_eq!(t[0].refer(to, piece).unwrap(), Refer::Ready);
        t[0].publish(to, 3).unwrap();
        let number = t[1].incoming[0].number().expect("it was lent");
        words(&t).1.forge(1, len, Body::Lent { number, offset: u64::from(offset) });
        match t[1].peek(from) {
            Ok(arrival) => assert!(is_inside && arrival.unwrap().piece.len() == len as usize),
            Err(error) => assert!(!is_inside && names(&error, 0), "{error}"),
        }
    }
}

#[test]
fn what_networks_may_know_comes_and_goes_with_the_memory() {
    let known = SharedMemory::known();
    let owner_of = |at: usize| {
        let all = (known.all)();
        let one = all.into_iter().find(|one| one.piece.as_ptr().addr() == at)?;
        assert!(one.piece.len().is_multiple_of(2 << 20), "all that is mapped");
        one.owner
    };
    let before = (known.changes)();
    let memory = SharedMemory::alloc(100).unwrap();
    let at = memory.as_mut_ptr().addr();
    let (here, _owner) = ((known.changes)(), owner_of(at).expect("it is known"));
    assert_ne!(here, before);
    // Who has its owner keeps it where it is, but not known.
    drop(memory);
    assert_ne!((known.changes)(), here);
    assert!(owner_of(at).is_none());
}

#[test]
fn a_forged_credit_is_an_error_that_names_the_receiver() {
    let mut t = pair();
    let to = t[0].sender(&[1], 0).unwrap();
    for k in 0..CREDITS {
        assert!(send(&mut t[0], to, &[1; 200], u64::from(k)));
    }
    words(&t).0.forge(CREDITS + 1);
    let error = t[0].reserve(to, 8).unwrap_err();
    assert!(names(&error, 1), "{error}");
}

/// The entries beyond the shortest lap take memory when they are used, and all that was sent comes.
#[test]
fn a_sender_runs_ahead_of_a_receiver_that_lags() {
    let mut t: Vec<_> =
        (0..8).map(|rank| ShmTransport::new(rank, 8, &ShmConfig::default()).unwrap()).collect();
    connect(&mut t, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let mut tag = 0;
    let mut run = |t: &mut [ShmTransport], len: usize| {
        let first = tag;
        while send(&mut t[0], to, &vec![tag as u8; len], tag) {
            tag += 1;
        }
        for k in first..tag {
            assert_eq!(receive(&mut t[1], from), Some((vec![k as u8; len], k)));
        }
        tag - first
    };
    let guaranteed = u64::from(t[0].capabilities().credits);
    let before = t[0].memory();
    assert_eq!((guaranteed, run(&mut t, 8)), (32, 32));
    assert_eq!(t[0].memory(), before);
    let runs = [8, 1000, 8, 1000, 8].map(|len| run(&mut t, len));
    assert_eq!(runs[3..], [256, 256], "{runs:?}");
    let entries = (256 - guaranteed) * 128;
    assert_eq!(t[0].memory(), before + entries + 256 * 2048);
}

/// Where the kernel has no heavy barriers a wake-up may be lost: then sleeps are short, and the piece is found.
#[test]
fn without_heavy_barriers_a_lost_wake_up_costs_a_nap() {
    let mut t = pair();
    let mut sleeper = t.pop().unwrap();
    let from = sleeper.receiver(0, 0).unwrap();
    sleeper.barrier = false;
    let bell = std::sync::Arc::clone(&sleeper.segment);
    let asleep = thread::spawn(move || {
        sleeper.park(FOREVER).unwrap();
        receive(&mut sleeper, from)
    });
    while bell.bell().word().load(Ordering::Acquire) & PIECE == 0 {
        thread::yield_now();
    }
    // Written, and the bell is not rung.
    words(&t).1.forge(1, 0, Body::Line);
    assert_eq!(asleep.join().unwrap(), Some((Vec::new(), 0)));
}

/// Each says where it is, and whoever has not said so, or is no peer, is nowhere.
#[test]
fn peers_know_on_which_core_a_rank_is() {
    let mut t = pair();
    assert_eq!((t[0].core_of(1), t[1].core_of(0)), (None, None));
    t[0].set_core(0);
    t[1].set_core(5);
    assert_eq!((t[0].core_of(1), t[1].core_of(0)), (Some(5), Some(0)));
    t[1].set_core(3);
    assert_eq!(t[0].core_of(1), Some(3));
    assert_eq!((t[0].core_of(0), t[0].core_of(2)), (None, None));
}

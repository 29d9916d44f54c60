//! What a broken or hostile peer may write into the shared memory, and a peer whose wake-up does not come.

use crate::bell::PIECE;
use crate::ring::{Credit, Entry, INLINE_BYTES};
use crate::sync::Ordering;
use crate::{ShmConfig, ShmTransport};
use ccl_core::ErrorKind;
use ccl_core::transport::conformance::{connect, receive, send};
use ccl_core::transport::{Fabric, LinkKey, Transport};
use std::thread;
use std::time::Duration;

const FOREVER: Duration = Duration::from_secs(3600);
const CONFIG: ShmConfig = ShmConfig { slot_bytes: 8192, credits: 4, max_links: Some(4), host_id: None };

/// Two ranks with a link from rank 0 to rank 1, which is the first in the segment of rank 0.
fn pair() -> Vec<ShmTransport> {
    let mut pair: Vec<_> = (0..2).map(|rank| ShmTransport::new(rank, 2, &CONFIG).unwrap()).collect();
    connect(&mut pair, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    pair
}

/// The words of that link.
fn words(t: &[ShmTransport]) -> (&Credit, &Entry) {
    let (credit, entry) = t[0].segment.link(0);
    // SAFETY: they lie in the segment, which `t` keeps; any bytes are valid.
    unsafe { (credit.as_ref(), entry.as_ref()) }
}

fn names(error: &ccl_core::Error, rank: u32) -> bool {
    let is_from = matches!(error.kind(), ErrorKind::Transport { peer: Some(peer), .. } if *peer == rank);
    is_from && error.to_string().contains("damaged")
}

#[test]
fn a_forged_message_is_an_error_that_names_the_sender() {
    let slots = CONFIG.credits * CONFIG.max_links.unwrap();
    let too_long = CONFIG.slot_bytes as u32 + 1;
    let forged = [
        (9, 8, None),
        (1, INLINE_BYTES as u32 + 1, None),
        (1, too_long, Some(0)),
        (1, i32::MAX as u32, Some(0)),
        (1, 8, Some(slots)),
        (1, 8, Some(u32::MAX)),
    ];
    for (sequence, len, slot) in forged {
        let mut t = pair();
        let from = t[1].receiver(0, 0).unwrap();
        words(&t).1.forge(sequence, len, slot);
        let error = t[1].peek(from).unwrap_err();
        assert!(names(&error, 0), "{error}");
        // It also ends a sleep.
        t[1].park(FOREVER).unwrap();
    }
}

#[test]
fn a_forged_credit_is_an_error_that_names_the_receiver() {
    let mut t = pair();
    let to = t[0].sender(&[1], 0).unwrap();
    for k in 0..CONFIG.credits {
        assert!(send(&mut t[0], to, &[1; 200], u64::from(k)));
    }
    words(&t).0.forge(CONFIG.credits + 1);
    let error = t[0].reserve(to, 8).unwrap_err();
    assert!(names(&error, 1), "{error}");
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
    words(&t).1.forge(1, 0, None);
    assert_eq!(asleep.join().unwrap(), Some((Vec::new(), 0)));
}

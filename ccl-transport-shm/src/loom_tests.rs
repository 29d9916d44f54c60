//! The protocols under loom: the interleavings with at most three preemptions, and every allowed reordering, of
//! two or three threads.
//!
//! Each was seen to fail. `ring`: Relaxed in place of Release or of Acquire, at the flag or at `released`, is
//! caught as a race on the payload by the first two, and at the flag by the third. `pool`: a slot freed after the first of its readers is caught
//! by the second. `bell`: a `must_ring` without its barrier is caught by the two that have bells. `offer`: either of the two full barriers
//! left out, or the second look, is caught as a race on the memory, and so is Relaxed in place of Release or Acquire at `taken`; at `stands`
//! that mixes the terms, as leaving out the barrier of `make` does.

#![allow(clippy::undocumented_unsafe_blocks)] // loom checks each access; that is what the tests are

use crate::bell::{Bell, CREDIT, PIECE};
use crate::offer::{Offering, Terms};
use crate::pool::{Place, Pool, Warm};
use crate::ring::{Body, Credit, Entry, Laps, Passing, RecvEnd, SendEnd};
use crate::sync::{Cell, Ordering, light_barrier};
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const CREDITS: u32 = 2;
const LAPS: Laps = Laps { least: CREDITS, most: CREDITS };
const ONE: Laps = Laps { least: 1, most: 1 };

struct Link {
    entries: [Entry; CREDITS as usize],
    credit: Credit,
}

impl Link {
    fn new() -> Link {
        Link { entries: [Entry::new(), Entry::new()], credit: Credit::new() }
    }
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// Three messages through two entries: loom's cells fail the test if a read and a write of the payload are
/// not ordered.
#[test]
fn loom_ring_wraps_around() {
    model(|| {
        let link = Arc::new(Link::new());
        let there = Arc::clone(&link);
        let sender = thread::spawn(move || {
            let mut end = SendEnd::new(LAPS);
            for k in 0..3u8 {
                while !end.has_credit() {
                    if end.refresh(&there.credit).unwrap() == 0 {
                        thread::yield_now();
                    }
                }
                let entry = &there.entries[end.at()];
                entry.inline.with_mut(|bytes| unsafe { (*bytes)[0] = 10 + k });
                let wraps = end.ends_lap();
                end.publish(entry, u64::from(k), 1, Body::Line, wraps);
                if wraps {
                    end.begin_lap(&there.credit);
                }
            }
        });
        let mut end = RecvEnd::new(LAPS);
        for k in 0..3u8 {
            let message = loop {
                match end.peek(&link.entries[end.at()]).unwrap() {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((message.tag, message.len, message.body), (u64::from(k), 1, Body::Line));
            link.entries[end.at()].inline.with(|bytes| assert_eq!(unsafe { (*bytes)[0] }, 10 + k));
            end.release(message.wraps, &link.credit);
        }
        sender.join().unwrap();
    });
}

/// A message that is seen behind another one, before that is released, is whole; so is a place where none has come yet, though it holds what could be it.
#[test]
fn loom_ring_is_seen_ahead() {
    model(|| {
        let link = Arc::new(Link::new());
        let laps = Laps { least: 1, most: CREDITS };
        // As if it were left from all sequence numbers ago.
        let mut before = SendEnd::new(LAPS);
        before.publish(&Entry::new(), 0, 0, Body::Line, false);
        before.publish(&link.entries[1], 99, 1, Body::Line, true);
        let there = Arc::clone(&link);
        let sender = thread::spawn(move || {
            let mut end = SendEnd::new(laps);
            end.starve();
            there.entries[end.beyond()].clear();
            for k in 0..2u8 {
                let entry = &there.entries[end.at()];
                entry.inline.with_mut(|bytes| unsafe { (*bytes)[0] = 10 + k });
                end.publish(entry, u64::from(k), 1, Body::Line, end.ends_lap());
            }
        });
        let end = RecvEnd::new(laps);
        let first = loop {
            match end.peek(&link.entries[0]).unwrap() {
                Some(message) => break message,
                None => thread::yield_now(),
            }
        };
        let at = end.next(0, first.wraps);
        if let Some(second) = end.peek_ahead(1, at, &link.entries[at as usize]).unwrap() {
            assert_eq!((first.tag, second.tag), (0, 1));
            link.entries[1].inline.with(|bytes| assert_eq!(unsafe { (*bytes)[0] }, 11));
        }
        sender.join().unwrap();
    });
}

/// A lap that becomes longer while the receiver reads: an entry that holds what could be its next message is cleared before it looks there.
#[test]
fn loom_ring_becomes_longer() {
    model(|| {
        let link = Arc::new(Link::new());
        let laps = Laps { least: 1, most: CREDITS };
        // As if it were left from all sequence numbers ago.
        let mut before = SendEnd::new(LAPS);
        before.publish(&Entry::new(), 0, 0, Body::Line, false);
        before.publish(&link.entries[1], 99, 1, Body::Line, true);
        let there = Arc::clone(&link);
        let sender = thread::spawn(move || {
            let mut end = SendEnd::new(laps);
            end.starve();
            for k in 0..2u8 {
                let wraps = end.ends_lap();
                if !wraps && !end.goes_on() {
                    there.entries[end.beyond()].clear();
                }
                let entry = &there.entries[end.at()];
                entry.inline.with_mut(|bytes| unsafe { (*bytes)[0] = 10 + k });
                end.publish(entry, u64::from(k), 1, Body::Line, wraps);
                if wraps {
                    end.begin_lap(&there.credit);
                }
            }
        });
        let mut end = RecvEnd::new(laps);
        for k in 0..2u8 {
            let message = loop {
                match end.peek(&link.entries[end.at()]).unwrap() {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message.tag, u64::from(k));
            link.entries[end.at()].inline.with(|bytes| assert_eq!(unsafe { (*bytes)[0] }, 10 + k));
            end.release(message.wraps, &link.credit);
        }
        sender.join().unwrap();
    });
}

/// One slot for two readers, written again when both have released it and not before.
///
/// Nobody waits here, which would multiply the interleavings of three threads: whoever finds nothing leaves. That both
/// readers and the writer get through is one of the interleavings, and counted.
#[test]
fn loom_shared_slot_is_reused_after_the_last_reader() {
    static REUSED: AtomicUsize = AtomicUsize::new(0);
    model(|| {
        let links = Arc::new([Link::new(), Link::new()]);
        let slot_bytes = Arc::new(Cell::new(0u8));
        let readers: Vec<_> = (0..2)
            .map(|i| {
                let (links, slot_bytes) = (Arc::clone(&links), Arc::clone(&slot_bytes));
                thread::spawn(move || {
                    let mut end = RecvEnd::new(ONE);
                    if let Some(message) = end.peek(&links[i].entries[0]).unwrap() {
                        slot_bytes.with(|byte| assert_eq!(unsafe { *byte }, 10));
                        end.release(message.wraps, &links[i].credit);
                    }
                })
            })
            .collect();
        let mut pool = Pool::new(Warm { slots: 1, near: 1, passed: 0, away: 0, pass_below: 0 }, 256);
        pool.grow(1);
        let mut ends = [SendEnd::new(ONE), SendEnd::new(ONE)];
        let (Place { slot, .. }, _) = pool.take(200).unwrap();
        slot_bytes.with_mut(|byte| unsafe { *byte = 10 });
        pool.share(slot, 2);
        for (end, link) in ends.iter_mut().zip(links.iter()) {
            end.publish(
                &link.entries[0],
                0,
                200,
                Body::Slot { number: slot, at: 0, passing: Passing::Stays, by_words: false },
                true,
            );
        }
        let mut released = 0;
        for (end, link) in ends.iter_mut().zip(links.iter()) {
            for _ in 0..end.refresh(&link.credit).unwrap() {
                pool.put(slot);
                released += 1;
            }
        }
        match pool.take(200) {
            Some((Place { slot: again, .. }, _)) => {
                assert_eq!((again, released), (slot, 2), "a slot is free that a peer may read");
                slot_bytes.with_mut(|byte| unsafe { *byte = 11 });
                REUSED.fetch_add(1, Relaxed);
            }
            None => assert!(released < 2, "both have released it"),
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert!(REUSED.load(Relaxed) > 0, "the interleaving that matters was not among them");
}

/// A slot that passes to and fro: each side writes to it after it has read what the other wrote. Neither looks at a credit, as the slot itself
/// says that it was released.
#[test]
fn loom_passed_slot_has_one_writer_at_a_time() {
    model(|| {
        let links = Arc::new([Link::new(), Link::new()]);
        let slot_bytes = Arc::new(Cell::new(0u8));
        let side = |me: usize, hands: Passing, gets: Passing, rounds: u8| {
            let (links, slot_bytes) = (Arc::clone(&links), Arc::clone(&slot_bytes));
            move || {
                let (mut send, mut recv) = (SendEnd::new(LAPS), RecvEnd::new(LAPS));
                let (out, back) = (&links[me], &links[1 - me]);
                for round in 0..rounds {
                    if me == 1 || round > 0 {
                        let message = loop {
                            match recv.peek(&back.entries[recv.at()]).unwrap() {
                                Some(message) => break message,
                                None => thread::yield_now(),
                            }
                        };
                        assert_eq!(
                            message.body,
                            Body::Slot { number: 0, at: 0, passing: gets, by_words: false }
                        );
                        slot_bytes.with(|byte| assert_eq!(unsafe { *byte }, 2 * round + me as u8));
                        recv.release(message.wraps, &back.credit);
                    }
                    slot_bytes.with_mut(|byte| unsafe { *byte = 2 * round + me as u8 + 1 });
                    let body = Body::Slot { number: 0, at: 0, passing: hands, by_words: false };
                    let wraps = send.ends_lap();
                    send.publish(&out.entries[send.at()], 0, 200, body, wraps);
                    if wraps {
                        send.begin_lap(&out.credit);
                    }
                }
            }
        };
        let other = thread::spawn(side(1, Passing::Back, Passing::Over, 2));
        side(0, Passing::Over, Passing::Back, 2)();
        other.join().unwrap();
    });
}

/// A sleeper that armed its bell either sees the piece at its last look, or is woken. The futex is modelled by
/// its result: the word is no longer what the sleeper armed, and whoever cleared it wakes.
#[test]
fn loom_no_wake_up_is_lost() {
    model(|| {
        let (link, bell) = (Arc::new(Link::new()), Arc::new(Bell::new()));
        let (there, theirs) = (Arc::clone(&link), Arc::clone(&bell));
        let waker = thread::spawn(move || {
            let mut end = SendEnd::new(LAPS);
            end.publish(&there.entries[0], 1, 0, Body::Line, false);
            theirs.must_ring(PIECE)
        });
        bell.arm(PIECE);
        light_barrier(); // the heavy barrier's half on this side
        let seen = RecvEnd::new(LAPS).peek(&link.entries[0]).unwrap().is_some();
        let woken = waker.join().unwrap();
        assert!(seen || woken, "the sleeper sleeps and nobody wakes it");
        assert!(!woken || bell.word().load(Ordering::Relaxed) == 0, "it would sleep in spite of the waker");
    });
}

/// The same for a credit; and a sleeper that waits for pieces only is not woken by one.
#[test]
fn loom_credits_wake_who_waits_for_them() {
    model(|| {
        let (link, bell) = (Arc::new(Link::new()), Arc::new(Bell::new()));
        let mut end = SendEnd::new(ONE);
        end.publish(&link.entries[0], 1, 0, Body::Line, true);
        let (there, theirs) = (Arc::clone(&link), Arc::clone(&bell));
        let waker = thread::spawn(move || {
            let mut end = RecvEnd::new(ONE);
            let message = end.peek(&there.entries[0]).unwrap().expect("it was published");
            end.release(message.wraps, &there.credit);
            (theirs.must_ring(CREDIT), theirs.must_ring(PIECE))
        });
        bell.arm(CREDIT);
        light_barrier();
        let seen = end.refresh(&link.credit).unwrap() == 1;
        let (woken, otherwise) = waker.join().unwrap();
        assert!(seen || woken);
        assert!(!otherwise, "news that it does not wait for");
    });
}

/// Memory that was withdrawn is its owner's alone, whether the sender has written to it or not; both happen.
#[test]
fn loom_nobody_writes_to_what_was_withdrawn() {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    model(|| {
        let line = Arc::new((Offering::new(), Cell::new(0u8)));
        let there = Arc::clone(&line);
        let sender = thread::spawn(move || {
            let (offering, memory) = &*there;
            if offering.take(|terms| (terms.tag == 7).then_some(())).is_some() {
                memory.with_mut(|byte| unsafe { *byte += 1 });
                offering.leave();
            }
        });
        let (offering, memory) = &*line;
        offering.make(1, &Terms { tag: 7, ..Terms::default() });
        offering.withdraw();
        while offering.is_taken() {
            thread::yield_now();
        }
        let is_written = memory.with_mut(|byte| unsafe { std::mem::replace(&mut *byte, 9) }) == 1;
        if is_written { &WRITTEN } else { &LEFT }.fetch_add(1, Relaxed);
        sender.join().unwrap();
        memory.with(|byte| assert_eq!(unsafe { *byte }, 9));
    });
    assert!(WRITTEN.load(Relaxed) > 0 && LEFT.load(Relaxed) > 0);
}

/// A sender that looks while the receiver changes its mind has the terms of one offer or of none.
#[test]
fn loom_terms_belong_together() {
    static TAKEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    model(|| {
        let offering = Arc::new(Offering::new());
        let there = Arc::clone(&offering);
        let terms = |k: u32| Terms { tag: k.into(), first: k, ..Terms::default() };
        offering.make(1, &terms(1));
        let sender = thread::spawn(move || {
            if let Some(taken) = there.take(|terms| Some(*terms)) {
                assert_eq!(taken, terms(taken.first));
                TAKEN[taken.first as usize - 1].fetch_add(1, Relaxed);
            }
        });
        offering.make(2, &terms(2));
        sender.join().unwrap();
    });
    assert!(TAKEN.iter().all(|count| count.load(Relaxed) > 0));
}

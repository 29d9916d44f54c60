//! The part of the contract that is about references.

use super::{connected, pattern, receive, send, slot_bytes_of, sys};
use crate::error::ErrorKind;
use crate::kernels::{Buffers, Direction, Piece};
use crate::transport::{Counters, LinkKey, Refer, SenderId, Transport};
use std::ops::Deref;
use std::thread;
use std::time::Duration;

fn piece(bytes: &[u8]) -> Piece {
    Buffers::new(bytes, &mut []).input()
}

/// Sends by reference if there is a credit.
fn lend<T: Transport>(transport: &mut T, to: SenderId, bytes: &[u8], tag: u64) -> bool {
    match transport.refer(to, piece(bytes)).unwrap() {
        Refer::Ready => transport.publish(to, tag).map(|()| true).unwrap(),
        Refer::NoCredit => false,
        Refer::NotMapped => panic!("this memory should be mapped"),
    }
}

/// Any part of the memory, of any length and more often than there are credits; nothing goes through a slot.
pub fn references_arrive_where_they_lie<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let rows = [memory(&pattern(3, 100_000)), memory(&pattern(4, 70_000))];
    let mut sent = Counters::default();
    for k in 0..4 * u64::from(t[0].capabilities().credits) {
        let row = &rows[k as usize % 2];
        let at = (k as usize * 977) % (row.len() - 5000);
        let bytes = &row[at..at + 1 + (k as usize * 131) % 5000];
        assert!(lend(&mut t[0], to, bytes, k));
        assert!(!t[0].settled(to).unwrap());
        assert_eq!(receive(&mut t[1], from), Some((bytes.to_vec(), k)));
        assert!(t[0].settled(to).unwrap());
        sent.pieces += 1;
        sent.bytes += bytes.len() as u64;
    }
    let key = LinkKey { from: 0, to: 1, channel: 0 };
    for t in &t {
        let (_, counted) = t.counters().into_iter().find(|(link, _)| *link == key).unwrap();
        assert_eq!((counted.pieces, counted.bytes, counted.inline), (sent.pieces, sent.bytes, 0));
        assert_eq!((counted.referenced, counted.referenced_bytes), (sent.pieces, sent.bytes));
    }
}

/// What lies side by side is seen as one piece, as far as it has come, and each of the pieces is released by itself.
pub fn references_side_by_side_are_one_piece<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    const PIECE: usize = 2000;
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let row = memory(&pattern(8, 4 * PIECE));
    let is_one = t[0].capabilities().one_host;
    // Sends these pieces with these tags, and looks at up to `most` of them at once; how many were one piece.
    let mut look = |sent: [(usize, u64); 4], most: usize, direction: Direction| {
        assert!(t[1].peek_stretch(from, most, direction).unwrap().is_none());
        for (at, tag) in sent {
            assert!(lend(&mut t[0], to, &row[at * PIECE..][..PIECE], tag));
        }
        let mut seen = Vec::new();
        let mut left = &sent[..];
        while !left.is_empty() {
            let found = loop {
                if let Some(found) = t[1].peek_stretch(from, most, direction).unwrap() {
                    break found;
                }
            };
            let (arrival, pieces) = found;
            let of = &left[..pieces];
            let first = of.iter().map(|(at, _)| at * PIECE).min().unwrap();
            assert_eq!(arrival.tag, of[0].1);
            assert_eq!(sys::read(arrival.piece), row[first..first + pieces * PIECE]);
            for (at, tag) in of {
                assert_eq!(receive(&mut t[1], from), Some((row[at * PIECE..][..PIECE].to_vec(), *tag)));
            }
            seen.push(pieces);
            left = &left[pieces..];
        }
        assert!(t[0].settled(to).unwrap());
        if !is_one {
            assert_eq!(std::mem::take(&mut seen), [1; 4]);
        }
        seen
    };
    // More often than there are credits, so that every place in a ring is the first one, and the last.
    for _ in 0..300 {
        use Direction::{Backwards, Forwards};
        let upwards = [(0, 7), (1, 7), (2, 7), (3, 7)];
        let downwards = [(3, 7), (2, 7), (1, 7), (0, 7)];
        let expected = |seen: &[usize]| if is_one { seen.to_vec() } else { Vec::new() };
        assert_eq!(look(upwards, 9, Forwards), expected(&[4]));
        assert_eq!(look(downwards, 9, Backwards), expected(&[4]));
        assert_eq!(look(upwards, 3, Forwards), expected(&[3, 1]));
        assert_eq!(look(upwards, 9, Backwards), expected(&[1; 4]));
        assert_eq!(look([(0, 7), (1, 7), (2, 8), (3, 8)], 9, Forwards), expected(&[2, 2]), "another call");
        assert_eq!(look([(0, 7), (1, 7), (3, 7), (2, 7)], 9, Forwards), expected(&[2, 1, 1]), "a gap");
    }
}

/// They hold credits like pieces in slots, and asking twice changes nothing.
pub fn references_take_credits<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let row = memory(&pattern(5, 4096));
    let credits = u64::from(t[0].capabilities().credits);
    for k in 0..credits {
        assert!(lend(&mut t[0], to, &row[k as usize..][..1000], k));
    }
    for _ in 0..2 {
        assert_eq!(t[0].refer(to, piece(&row)).unwrap(), Refer::NoCredit);
    }
    for k in 0..credits {
        assert_eq!(receive(&mut t[1], from), Some((row[k as usize..][..1000].to_vec(), k)));
        for _ in 0..3 {
            assert_eq!(t[0].refer(to, piece(&row[..7])).unwrap(), Refer::Ready);
        }
        t[0].publish(to, 99).unwrap();
        assert!(t[0].publish(to, 99).is_err(), "nothing is referred to any more");
        assert_eq!(t[0].refer(to, piece(&row)).unwrap(), Refer::NoCredit);
    }
    assert!(!t[0].settled(to).unwrap());
    for _ in 0..credits {
        assert_eq!(receive(&mut t[1], from), Some((row[..7].to_vec(), 99)));
    }
    assert!(t[0].settled(to).unwrap());
}

/// A reference to several peers is settled when the slowest has released it.
pub fn a_reference_settles_with_its_last_reader<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 3, 1);
    let both = t[0].sender(&[1, 2], 0).unwrap();
    let one = t[0].sender(&[1], 0).unwrap();
    let from: Vec<_> = (1..3).map(|i| t[i].receiver(0, 0).unwrap()).collect();
    let row = memory(&pattern(6, 3000));
    assert!(lend(&mut t[0], both, &row, 1));
    assert_eq!(receive(&mut t[1], from[0]), Some((row.to_vec(), 1)));
    assert!(!t[0].settled(both).unwrap());
    assert!(t[0].settled(one).unwrap(), "the link to rank 1 holds nothing");
    assert_eq!(receive(&mut t[2], from[1]), Some((row.to_vec(), 1)));
    assert!(t[0].settled(both).unwrap());
}

/// Both kinds keep their order on a link; what was reserved last is what is published; slots never unsettle.
pub fn references_and_slots_take_turns<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let row = memory(&pattern(7, 8192));
    for (k, len) in [0, 8, slot_bytes_of(&t)].into_iter().cycle().take(30).enumerate() {
        let k = k as u64;
        let bytes = pattern(k, len);
        assert!(send(&mut t[0], to, &bytes, k));
        assert!(t[0].settled(to).unwrap());
        assert!(lend(&mut t[0], to, &row[k as usize..], k));
        assert_eq!(receive(&mut t[1], from), Some((bytes.clone(), k)));
        assert_eq!(receive(&mut t[1], from), Some((row[k as usize..].to_vec(), k)));

        assert_eq!(t[0].refer(to, piece(&row)).unwrap(), Refer::Ready);
        assert!(send(&mut t[0], to, &bytes, k), "a slot in place of a reference");
        assert_eq!(receive(&mut t[1], from), Some((bytes, k)));
        let slot = t[0].reserve(to, len).unwrap().unwrap();
        assert_eq!(t[0].refer(to, piece(&row)).unwrap(), Refer::NotMapped, "a slot was given already");
        assert_eq!(t[0].reserve(to, len).unwrap().unwrap().as_mut_ptr(), slot.as_mut_ptr());
        t[0].publish(to, k).unwrap();
        assert_eq!(receive(&mut t[1], from).unwrap().0.len(), len);
        assert!(t[0].settled(to).unwrap());
    }

    let able = t[0].capabilities();
    let long = pattern(8, able.slot_bytes);
    assert!((0..able.slots).all(|_| send(&mut t[0], to, &long, 1)));
    if able.slots < able.credits {
        assert_eq!(t[0].refer(to, piece(&row)).unwrap(), Refer::Ready);
    }
    assert!(!send(&mut t[0], to, &long, 1), "no slot is free");
    assert!(receive(&mut t[1], from).is_some() && send(&mut t[0], to, &long, 1));
}

/// Whoever waits for its references to settle is woken by the release.
pub fn a_release_of_a_reference_wakes<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let row = memory(&pattern(8, 500));
    let mut reader = t.pop().unwrap();
    for k in 0..20 {
        assert!(lend(&mut t[0], to, &row, k));
        thread::scope(|scope| {
            let reading = scope.spawn(|| assert!(receive(&mut reader, from).is_some()));
            while !t[0].settled(to).unwrap() {
                t[0].park(Duration::from_secs(3600)).unwrap();
            }
            reading.join().unwrap();
        });
    }
}

/// After a call that failed, a reader that may have read bytes of another time is told so.
pub fn what_was_withdrawn_is_not_trusted<T: Transport, M: Deref<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let row = memory(&pattern(9, 500));
    assert!(send(&mut t[0], to, b"in a slot", 1) && lend(&mut t[0], to, &row, 2));
    t[0].withdraw();
    assert_eq!(receive(&mut t[1], from), Some((b"in a slot".to_vec(), 1)), "slots are not taken back");
    assert!(t[1].peek(from).unwrap().is_some());
    let error = t[1].release(from).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Transport { peer: Some(0), .. }), "{error}");
}

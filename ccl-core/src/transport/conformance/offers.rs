//! The part of the contract that is about offers.

use super::{connected, look, pattern, receive, send, slot_bytes_of, sys};
use crate::kernels::{Buffers, Direction, PieceMut};
use crate::transport::{LinkKey, Offer, ReceiverId, SenderId, Stretch, Transport, UserMemory};
use std::ops::DerefMut;

const TAG: u64 = 7;

/// Two ranks, a link from the first to the second, and one back.
struct Pair<T> {
    t: Vec<T>,
    to: SenderId,
    from: ReceiverId,
    slot: usize,
}

impl<T: Transport> Pair<T> {
    fn new(make: impl Fn(u32) -> Vec<T>) -> Pair<T> {
        let mut t = connected(make, 2, 1);
        let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
        let slot = slot_bytes_of(&t);
        Pair { t, to, from, slot }
    }

    /// Shows memory to the transport, offers it for pieces as long as a slot, and lets the sender hear of it.
    fn offer(&mut self, sink: PieceMut) {
        self.offer_in(sink, Direction::Forwards);
    }

    fn offer_in(&mut self, sink: PieceMut, direction: Direction) {
        self.t[1].register(&UserMemory { piece: sink.as_piece(), owner: None }).unwrap();
        self.t[1].offer(self.from, Offer { tag: TAG, sink, piece: self.slot, direction }).unwrap();
        self.ping();
    }

    /// What the second has said before has come to the first after this.
    fn ping(&mut self) {
        let (to, from) = (self.t[1].sender(&[0], 0).unwrap(), self.t[0].receiver(1, 0).unwrap());
        assert!(send(&mut self.t[1], to, b"ping", 0));
        assert_eq!(receive(&mut self.t[0], from), Some((b"ping".to_vec(), 0)));
    }

    /// By way of what was offered, if the sender can ask for that.
    fn send(&mut self, bytes: &[u8], tag: u64) {
        let mut sinks = [PieceMut::EMPTY];
        match self.t[0].reserve_offered(self.to, Stretch::one(bytes.len()), tag, &mut sinks).unwrap() {
            0 => assert!(send(&mut self.t[0], self.to, bytes, tag)),
            sinks_given => {
                assert_eq!((sinks_given, sinks[0].len()), (1, bytes.len()));
                sys::write(sinks[0], bytes);
                self.t[0].publish(self.to, tag).unwrap();
            }
        }
    }

    /// The piece that comes next is these bytes; where it lies.
    fn receive(&mut self, bytes: &[u8], tag: u64) -> *const u8 {
        let at = self.t[1].peek(self.from).unwrap().map(|arrival| arrival.piece.as_ptr());
        assert_eq!(look(&mut self.t[1], self.from), Some((bytes.to_vec(), tag)));
        self.t[1].release(self.from).unwrap();
        at.unwrap()
    }

    fn direct(&self, rank: usize) -> (u64, u64) {
        let key = LinkKey { from: 0, to: 1, channel: 0 };
        let (_, counted) = self.t[rank].counters().into_iter().find(|(link, _)| *link == key).unwrap();
        (counted.direct, counted.direct_bytes)
    }
}

/// Memory of so many bytes that keeps its place, of zeros.
fn zeros<M: DerefMut<Target = [u8]>>(memory: impl Fn(&[u8]) -> M, len: usize) -> (M, PieceMut) {
    let mut bytes = memory(&vec![0; len]);
    let sink = Buffers::new(&[], &mut bytes).output();
    (bytes, sink)
}

/// One after the other, the last of them shorter, for more than there are credits; then the same the other way.
pub fn offered_pieces_come_into_their_place<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut pair = Pair::new(make);
    let (slot, pieces) = (pair.slot, 2 * pair.t[0].capabilities().credits as usize);
    let (_keep, sink) = zeros(&memory, pieces * slot + slot / 2);
    let whole = pattern(5, sink.len());
    pair.send(b"not of these", 1);
    pair.receive(b"not of these", 1);
    for (round, direction) in (1..).zip([Direction::Forwards, Direction::Backwards]) {
        sys::write(sink, &vec![0; sink.len()]);
        pair.offer_in(sink, direction);
        for done in 0..=pieces {
            let at = direction.part(done, pieces + 1) * slot;
            let bytes = &whole[at..whole.len().min(at + slot)];
            pair.send(bytes, TAG);
            assert_eq!(pair.receive(bytes, TAG), sink.slice(at, bytes.len()).as_piece().as_ptr());
        }
        assert_eq!(sys::read(sink.as_piece()), whole);
        let direct = (round * (pieces as u64 + 1), round * whole.len() as u64);
        assert_eq!([pair.direct(0), pair.direct(1)], [direct; 2]);
        // It is over.
        pair.send(&whole[..slot], TAG);
        pair.receive(&whole[..slot], TAG);
        assert_eq!(pair.direct(0), direct);
    }
}

/// Several at a time, where processors write to each other's memory: all of them, or none.
pub fn offered_pieces_are_written_in_one_go<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    const PIECES: usize = 5;
    let mut pair = Pair::new(make);
    if !pair.t[0].capabilities().one_host {
        return;
    }
    let (slot, credits) = (pair.slot, pair.t[0].capabilities().credits as usize);
    let (_keep, sink) = zeros(&memory, PIECES * slot + slot / 2);
    let whole = pattern(5, sink.len());
    for round in 0..2 * credits {
        let direction = if round % 2 == 0 { Direction::Forwards } else { Direction::Backwards };
        sys::write(sink, &vec![0; sink.len()]);
        pair.offer_in(sink, direction);
        let mut done = 0;
        for pieces in [2, PIECES - 1] {
            let part = |index: usize| direction.part(index, PIECES + 1) * slot;
            let at = part(done).min(part(done + pieces - 1));
            let bytes = &whole[at..whole.len().min(at + pieces * slot)];
            let stretch = Stretch { pieces, tile: slot, bytes: bytes.len(), direction };
            let mut sinks = [PieceMut::EMPTY];
            let wrong = [
                Stretch { pieces: credits + 1, bytes: (credits + 1) * slot, ..stretch },
                Stretch { pieces: PIECES + 2, bytes: (PIECES + 2) * slot, ..stretch },
                Stretch { tile: slot - 1, bytes: pieces * (slot - 1), ..stretch },
                Stretch { bytes: bytes.len() - 1, ..stretch },
            ];
            for wrong in wrong {
                assert_eq!(
                    pair.t[0].reserve_offered(pair.to, wrong, TAG, &mut sinks).unwrap(),
                    0,
                    "{wrong:?}"
                );
            }
            // A ring's end may leave room for fewer.
            let given = pair.t[0].reserve_offered(pair.to, stretch, TAG, &mut sinks).unwrap();
            if given == 0 {
                (0..pieces).for_each(|index| {
                    let at = stretch.offset_of(index);
                    pair.send(&bytes[at..at + stretch.len_of(index)], TAG);
                });
            } else {
                assert_eq!(
                    (given, sinks[0].len(), sinks[0].as_mut_ptr()),
                    (1, bytes.len(), sink.slice(at, 1).as_mut_ptr())
                );
                sys::write(sinks[0], bytes);
                pair.t[0].publish(pair.to, TAG).unwrap();
            }
            for index in 0..pieces {
                let (from, len) = (stretch.offset_of(index), stretch.len_of(index));
                let (all, left) = pair.t[1].peek_stretch(pair.from, PIECES, direction).unwrap().unwrap();
                assert_eq!(
                    (all.piece.len(), left),
                    ((index..pieces).map(|index| stretch.len_of(index)).sum(), pieces - index)
                );
                let landed = pair.receive(&bytes[from..from + len], TAG);
                assert_eq!(landed, sink.slice(at + from, len).as_piece().as_ptr());
            }
            done += pieces;
        }
        assert_eq!(sys::read(sink.as_piece()), whole);
    }
    assert_eq!(pair.direct(0), pair.direct(1));
    assert_eq!(pair.direct(0), ((2 * credits * (PIECES + 1)) as u64, (2 * credits * whole.len()) as u64));
}

/// A piece of another call, or of another length, leaves the memory alone; those after it know their places.
pub fn what_does_not_belong_there_goes_another_way<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut pair = Pair::new(make);
    let slot = pair.slot;
    let (_keep, sink) = zeros(&memory, 4 * slot);
    pair.offer(sink);
    let bytes = pattern(6, slot);
    for (bytes, tag) in [(&bytes[..], TAG + 1), (&bytes[1..], TAG), (&[], TAG)] {
        pair.send(bytes, tag);
        pair.receive(bytes, tag);
    }
    assert_eq!(sys::read(sink.as_piece()), vec![0; 4 * slot]);
    pair.send(&bytes, TAG);
    assert_eq!(pair.receive(&bytes, TAG), sink.slice(3 * slot, slot).as_piece().as_ptr());
    assert_eq!(pair.direct(1), (1, slot as u64));
}

/// The first place is that of the oldest piece that is not released, however it travels.
pub fn what_was_sent_before_an_offer_is_counted<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut pair = Pair::new(make);
    let slot = pair.slot;
    let rows: Vec<Vec<u8>> = (0..3).map(|k| pattern(k, slot)).collect();
    pair.send(&rows[0], TAG);
    pair.send(&rows[1], TAG);
    let (_keep, sink) = zeros(&memory, 3 * slot);
    pair.offer(sink);
    pair.send(&rows[2], TAG);
    pair.receive(&rows[0], TAG);
    pair.receive(&rows[1], TAG);
    assert_eq!(pair.receive(&rows[2], TAG), sink.slice(2 * slot, slot).as_piece().as_ptr());
    assert_eq!(sys::read(sink.slice(0, 2 * slot).as_piece()), vec![0; 2 * slot]);
}

/// Of two offers the newer counts, also where the older was not used up.
pub fn a_newer_offer_replaces_one<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut pair = Pair::new(make);
    let slot = pair.slot;
    let ((_keep, old), (_keep_too, new)) = (zeros(&memory, 2 * slot), zeros(&memory, 2 * slot));
    pair.offer(old);
    let bytes = pattern(8, slot);
    pair.send(&bytes, TAG);
    assert_eq!(pair.receive(&bytes, TAG), old.as_piece().as_ptr());
    pair.offer(new);
    pair.send(&bytes, TAG);
    assert_eq!(pair.receive(&bytes, TAG), new.as_piece().as_ptr());
    assert_eq!(sys::read(old.slice(slot, slot).as_piece()), vec![0; slot]);
}

/// Whatever becomes of what is sent then.
pub fn nobody_writes_to_what_was_withdrawn<T: Transport, M: DerefMut<Target = [u8]>>(
    make: impl Fn(u32) -> Vec<T>,
    memory: impl Fn(&[u8]) -> M,
) {
    let mut pair = Pair::new(make);
    let slot = pair.slot;
    let (_keep, sink) = zeros(&memory, 2 * slot);
    pair.offer(sink);
    assert!(pair.t[1].withdraw().is_empty());
    let bytes = pattern(9, slot);
    assert_eq!(
        pair.t[0].reserve_offered(pair.to, Stretch::one(slot), TAG, &mut [PieceMut::EMPTY]).unwrap(),
        0
    );
    if let Ok(Some(place)) = pair.t[0].reserve(pair.to, slot) {
        sys::write(place, &bytes);
        // It may fail: the call has.
        let _ = pair.t[0].publish(pair.to, TAG);
    }
    assert_eq!(sys::read(sink.as_piece()), vec![0; 2 * slot]);
}

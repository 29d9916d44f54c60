//! The sending end of one link.
//!
//! Message k travels in slot `k mod window` of the receiver's ring. Its header, and its bytes if they are few, wait in
//! line `k mod window` of the sender's; longer pieces wait in a slot of the pool. Both are free again when the receiver has
//! released the message, not when the device has sent it.

use super::offers::{RECORD, Target};
use super::pool::Pool;
use super::sys::{read_header, write_header};
use super::wire::{FIRST, FRONT, HEADER, Header, Immediate, LINE, after};
use crate::verbs::{Memory, Region, Remote, Sge};
use ccl_core::simd::{Piece, PieceMut};
use ccl_core::transport::{Counters, LinkKey};
use std::sync::Arc;

/// Where the bytes of a message wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// In its line, behind the header.
    Line,
    /// In a slot of the pool.
    Slot(u32),
    /// In registered memory of the user.
    User(Piece),
}

/// A word of a peer that no correct one could have sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// What links that were opened together need of a pair of rails.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    /// Where their rings begin at the receiver.
    pub(crate) rings: Remote,
    /// Their lines, as the adapter here knows them.
    pub(crate) region: Region,
}

/// A message that waits to be sent again.
pub(crate) struct Again {
    pub(crate) len: usize,
    pub(crate) body: Body,
    pub(crate) head: Sge,
    pub(crate) to: Remote,
    pub(crate) immediate: u32,
}

/// A link's sending end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: LinkKey,
    /// Its place among the lanes.
    pub(crate) lane: u32,
    /// The link of the other direction, whose credits go back in our headers.
    pub(crate) back: Option<u32>,
    /// Where the receiver's ring begins, and its slots' distance.
    ring: Remote,
    stride: u64,
    /// The receiver's number of the link.
    their: u32,
    /// The lines of all links that were opened together, and where ours begin.
    lines: Memory,
    first_line: usize,
    /// The lines, as the lane's adapter knows them.
    region: Region,
    /// By pair of rails; where our ring lies behind the first.
    rails: Arc<[Rails]>,
    offset: u64,
    window: u32,
    published: u32,
    released: u32,
    /// Where the next message waits, and the oldest that is not released.
    head: u32,
    tail: u32,
    /// Where the bytes of each message are that is not released.
    bodies: Box<[Body]>,
    /// The receiver's last offer, and how many there were.
    target: Option<Target>,
    heard: u32,
    /// The lane's last send of this link from a user's memory, if it is not known to be complete.
    pub(crate) lent: Option<u64>,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    pub(crate) counters: Counters,
}

impl Outgoing {
    pub(crate) fn new(
        key: LinkKey,
        lane: u32,
        (offset, stride, their): (u64, u64, u32),
        (lines, first_line): (Memory, usize),
        (rails, at): (Arc<[Rails]>, usize),
        window: u32,
    ) -> Outgoing {
        Outgoing {
            key,
            lane,
            back: None,
            ring: rails[at].rings.at(offset),
            stride,
            their,
            lines,
            first_line,
            region: rails[at].region.clone(),
            rails,
            offset,
            window,
            published: FIRST,
            released: FIRST,
            head: 0,
            tail: 0,
            bodies: vec![Body::Line; window as usize].into(),
            target: None,
            heard: 0,
            lent: None,
            reserved: false,
            counters: Counters::default(),
        }
    }

    /// Whether a message may be written.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight() < self.window
    }

    /// Messages that the receiver has not released, as far as we know.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.published.wrapping_sub(self.released)
    }

    /// Messages that the receiver has released, as far as we know.
    pub(crate) fn taken(&self) -> u32 {
        self.released
    }

    /// Messages that were published from this number on.
    pub(crate) fn since(&self, number: u32) -> u32 {
        self.published.wrapping_sub(number)
    }

    #[inline]
    fn line(&self, position: u32, offset: usize, len: usize) -> PieceMut {
        let at = (self.first_line + position as usize) * LINE;
        self.lines.slice_mut(at + offset, len)
    }

    /// Where a short message is written before it is published.
    #[inline]
    pub(crate) fn inline_piece(&self, len: usize) -> PieceMut {
        self.line(self.head, FRONT, len)
    }

    /// The next message, as the work request needs it: its bytes, which begin with the header, where to and with what number.
    /// `released` counts for the link of the other direction.
    #[inline]
    pub(crate) fn message(&self, tag: u64, len: usize, released: u32, is_inline: bool) -> (Sge, Remote, u32) {
        let header = Header { tag, number: self.published, len: len as u32, released, heard: self.heard };
        self.put(self.head, header, is_inline)
    }

    #[inline]
    fn put(&self, slot: u32, header: Header, is_inline: bool) -> (Sge, Remote, u32) {
        write_header(self.line(slot, FRONT - HEADER, HEADER), header.encode());
        let bytes = HEADER + if is_inline { header.len as usize } else { 0 };
        let sge = self.region.sge_mut(self.line(slot, FRONT - HEADER, bytes));
        let to = self.ring.at(u64::from(slot) * self.stride + (FRONT - HEADER) as u64);
        (sge, to, Immediate::Piece { link: self.their, slot }.encode())
    }

    /// Where the next message goes by the receiver's offer, and with what number.
    #[inline]
    pub(crate) fn direct(&self, tag: u64, len: usize) -> Option<(Remote, u32)> {
        let to = self.target.as_ref()?.place(self.published, tag, len)?;
        Some((to, Immediate::Direct { link: self.their, offer: self.heard }.encode()))
    }

    /// A record of an offer has come.
    pub(crate) fn hear(&mut self) -> Result<(), Corrupt> {
        let record = self.lines.read::<RECORD>(self.first_line * LINE);
        self.target = Some(Target::decode(record).ok_or(Corrupt("an offer that makes no sense"))?);
        self.heard = self.heard.wrapping_add(1);
        Ok(())
    }

    /// The lane has another queue pair, on this pair of rails. Offers were for the one before.
    pub(crate) fn move_to(&mut self, rails: usize) {
        (self.target, self.heard) = (None, 0);
        let to = &self.rails[rails];
        self.ring = to.rings.at(self.offset);
        self.region = to.region.clone();
    }

    /// The receiver expects message `next`, and has released so many.
    pub(crate) fn settle(&mut self, next: u32, released: u32, pool: &mut Pool) -> Result<(), Corrupt> {
        if self.since(next) > self.in_flight() || self.since(next) > self.since(released) {
            return Err(Corrupt("it expects a message that was never sent, or was released"));
        }
        self.credit(released, u32::MAX, pool).map(drop)
    }

    /// The message that was published so many ago, at most a window; all of it but `released` as it was then.
    pub(crate) fn again(&self, ago: u32, released: u32) -> Again {
        let slot = (self.head + self.window - ago) % self.window;
        let header = Header::decode(read_header(self.line(slot, FRONT - HEADER, HEADER).as_piece()));
        let body = self.bodies[slot as usize];
        let header = Header { released, heard: self.heard, ..header };
        let (head, to, immediate) = self.put(slot, header, matches!(body, Body::Line));
        Again { len: header.len as usize, body, head, to, immediate }
    }

    /// The message has been handed over.
    #[inline]
    pub(crate) fn published(&mut self, len: usize, body: Body, is_direct: bool) {
        self.bodies[self.head as usize] = body;
        self.head = after(self.head, self.window);
        self.published = self.published.wrapping_add(1);
        let counters = &mut self.counters;
        counters.pieces += 1;
        counters.bytes += len as u64;
        match body {
            Body::Line => counters.inline += 1,
            Body::Slot(_) => {}
            Body::User(_) => {
                counters.referenced += 1;
                counters.referenced_bytes += len as u64;
            }
        }
        if is_direct {
            counters.direct += 1;
            counters.direct_bytes += len as u64;
        }
    }

    /// The receiver has released so many messages in all, modulo 2^`bits` of `mask`. Whether that is news.
    #[inline]
    pub(crate) fn credit(&mut self, released: u32, mask: u32, pool: &mut Pool) -> Result<bool, Corrupt> {
        let more = released.wrapping_sub(self.released) & mask;
        if more > self.in_flight() {
            return Err(Corrupt("it returns credits that it never had"));
        }
        for _ in 0..more {
            let body = &mut self.bodies[self.tail as usize];
            if let Body::Slot(slot) = std::mem::replace(body, Body::Line) {
                pool.put(slot);
            }
            self.tail = after(self.tail, self.window);
            self.released = self.released.wrapping_add(1);
        }
        Ok(more > 0)
    }

    /// Copies what another link of the same sender has in its line.
    #[inline]
    pub(crate) fn copy_inline(&self, from: Piece) {
        self.inline_piece(from.len()).copy_from(from);
    }
}

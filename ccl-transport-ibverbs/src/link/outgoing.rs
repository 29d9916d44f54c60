//! The sending end of one link.
//!
//! Message k travels by whichever lane of its group is chosen, in slot `k mod window` of the receiver's ring. Its header,
//! and its bytes if they are few, wait in line `k mod window` of the sender's; longer pieces wait in a slot of the pool. Both
//! are free again when the receiver has released the message, not when the device has sent it.

use super::offers::{RECORD, Target};
use super::pool::Pool;
use super::recovery::Count;
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

/// A message as its work request needs it.
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER],
    /// The header in its line, and its bytes if they are there too.
    pub(crate) head: Sge,
    pub(crate) to: Remote,
    pub(crate) immediate: u32,
}

/// A message that is not released.
#[derive(Clone, Copy, Debug)]
struct Sent {
    body: Body,
    /// The lane that has carried it last, or one of the next two.
    lane: u32,
}

/// It waits for a lane.
const UNSENT: u32 = u32::MAX;
/// The receiver has it, whatever becomes of the lane that carried it.
const THERE: u32 = u32::MAX - 1;

/// A link's sending end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: LinkKey,
    /// Its home's place among the lanes, and that of the group of lanes.
    pub(crate) home: u32,
    pub(crate) group: u32,
    /// The lane that the message takes for which there is a reservation.
    pub(crate) chosen: u32,
    /// The link of the other direction, whose credits go back in our headers.
    pub(crate) back: Option<u32>,
    /// Its number in the group.
    number: u32,
    /// The distance of the receiver's slots.
    stride: u64,
    /// The lines of all links that were opened together, and where ours begin.
    lines: Memory,
    first_line: usize,
    /// By pair of rails; where our ring lies behind the first.
    rails: Arc<[Rails]>,
    offset: u64,
    window: u32,
    published: u32,
    released: u32,
    /// Where the next message waits, and the oldest that is not released.
    head: u32,
    tail: u32,
    /// Each message that is not released.
    sent: Box<[Sent]>,
    /// How many of them wait for a lane.
    unsent: u32,
    /// The receiver's last offer, and its number.
    target: Option<Target>,
    heard: u32,
    /// For each lane of the group, one more than the number of its last send of this link from a user's memory, unless that is
    /// known to be complete.
    pub(crate) lent: Box<[u64]>,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    pub(crate) counters: Counters,
}

impl Outgoing {
    pub(crate) fn new(
        key: LinkKey,
        (home, group, lanes): (u32, u32, usize),
        (number, offset, stride): (u32, u64, u64),
        (lines, first_line): (Memory, usize),
        rails: Arc<[Rails]>,
        window: u32,
    ) -> Outgoing {
        Outgoing {
            key,
            home,
            group,
            chosen: home,
            back: None,
            number,
            stride,
            lines,
            first_line,
            rails,
            offset,
            window,
            published: FIRST,
            released: FIRST,
            head: 0,
            tail: 0,
            sent: vec![Sent { body: Body::Line, lane: THERE }; window as usize].into(),
            unsent: 0,
            target: None,
            heard: 0,
            lent: vec![0; lanes].into(),
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

    /// Whether all that was published has been posted.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.unsent == 0
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

    /// The next message, for a pair of rails. `released` counts for the link of the other direction.
    #[inline]
    pub(crate) fn message(
        &self,
        tag: u64,
        len: usize,
        released: u32,
        is_inline: bool,
        rails: usize,
    ) -> Message {
        let header = Header { tag, number: self.published, len: len as u32, released, heard: self.heard };
        self.put(self.head, header, is_inline, rails)
    }

    #[inline]
    fn put(&self, slot: u32, header: Header, is_inline: bool, rails: usize) -> Message {
        let Rails { rings, region } = &self.rails[rails];
        let bytes = HEADER + if is_inline { header.len as usize } else { 0 };
        let head = region.sge_mut(self.line(slot, FRONT - HEADER, bytes));
        let to = rings.at(self.offset + u64::from(slot) * self.stride + (FRONT - HEADER) as u64);
        let header = header.encode();
        write_header(self.line(slot, FRONT - HEADER, HEADER), header);
        Message { header, head, to, immediate: Immediate::Piece { link: self.number, slot }.encode() }
    }

    /// Where the next message goes by the receiver's offer over a pair of rails, and with what number.
    #[inline]
    pub(crate) fn direct(&self, tag: u64, len: usize, rails: usize) -> Option<(Remote, u32)> {
        let to = self.target.as_ref()?.place(self.published, tag, len, rails)?;
        let (link, number, offer) = (self.number, self.published, self.heard);
        Some((to, Immediate::Direct { link, number, offer }.encode()))
    }

    /// A record of an offer has come.
    pub(crate) fn hear(&mut self) -> Result<(), Corrupt> {
        let record = self.lines.read::<RECORD>((self.first_line + self.window as usize) * LINE);
        let target = Target::decode(record).ok_or(Corrupt("an offer that makes no sense"))?;
        self.heard = target.number;
        self.target = Some(target);
        Ok(())
    }

    /// What a lane carried last is over. The receiver has got `came` of it; the rest is to be sent once more.
    pub(crate) fn settle(&mut self, lane: u32, came: Option<Count>, pool: &mut Pool) -> Result<(), Corrupt> {
        if let Some(came) = came {
            let is_known = |number: u32| self.published.wrapping_sub(number).cast_signed() >= 0;
            if !is_known(came.end()) {
                return Err(Corrupt("it has got a message that was never sent"));
            }
            self.credit(came.released, u32::MAX, pool)?;
        }
        for (number, slot) in self.waiting() {
            let sent = &mut self.sent[slot];
            if sent.lane == lane {
                let is_there = came.is_some_and(|came| came.has(number));
                sent.lane = if is_there { THERE } else { UNSENT };
                self.unsent += u32::from(!is_there);
            }
        }
        Ok(())
    }

    /// Number and slot of each message that is not released.
    fn waiting(&self) -> impl Iterator<Item = (u32, usize)> + use<> {
        let (released, tail, window) = (self.released, self.tail, self.window);
        (0..self.in_flight()).map(move |k| (released.wrapping_add(k), ((tail + k) % window) as usize))
    }

    /// Whether the receiver may lack messages that this lane has carried, or that wait for one.
    pub(crate) fn may_lack(&self, lane: u32) -> bool {
        self.waiting().any(|(_, slot)| [lane, UNSENT].contains(&self.sent[slot].lane))
    }

    /// The slot of the oldest message that waits for a lane, with its length and where its bytes are.
    pub(crate) fn first_unsent(&self) -> Option<(u32, usize, Body)> {
        if self.unsent == 0 {
            return None;
        }
        let (_, slot) = self.waiting().find(|(_, slot)| self.sent[*slot].lane == UNSENT)?;
        Some((slot as u32, self.header(slot as u32).len as usize, self.sent[slot].body))
    }

    fn header(&self, slot: u32) -> Header {
        Header::decode(read_header(self.line(slot, FRONT - HEADER, HEADER).as_piece()))
    }

    /// The message that waits in a slot, which this lane takes over a pair of rails; all of it but `released` as it was.
    pub(crate) fn again(&mut self, slot: u32, (lane, rails): (u32, usize), released: u32) -> Message {
        let sent = &mut self.sent[slot as usize];
        sent.lane = lane;
        let is_inline = matches!(sent.body, Body::Line);
        self.unsent -= 1;
        let header = Header { released, heard: self.heard, ..self.header(slot) };
        self.put(slot, header, is_inline, rails)
    }

    /// The message has been handed over to a lane, or waits for one.
    #[inline]
    pub(crate) fn published(&mut self, len: usize, body: Body, is_direct: bool, lane: Option<u32>) {
        self.unsent += u32::from(lane.is_none());
        self.sent[self.head as usize] = Sent { body, lane: lane.unwrap_or(UNSENT) };
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

    /// The receiver has released so many messages in all, as far as `mask` tells. What is known already is no news: it may
    /// come late, by another lane.
    #[inline]
    pub(crate) fn credit(&mut self, released: u32, mask: u32, pool: &mut Pool) -> Result<(), Corrupt> {
        let more = released.wrapping_sub(self.released) & mask;
        if more > self.in_flight() {
            let is_old = more > mask / 2;
            return if is_old { Ok(()) } else { Err(Corrupt("it returns credits that it never had")) };
        }
        for _ in 0..more {
            let sent = &mut self.sent[self.tail as usize];
            if sent.lane == UNSENT {
                return Err(Corrupt("it releases a message that it has not got"));
            }
            if let Body::Slot(slot) = std::mem::replace(&mut sent.body, Body::Line) {
                pool.put(slot);
            }
            self.tail = after(self.tail, self.window);
            self.released = self.released.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies what another link of the same sender has in its line.
    #[inline]
    pub(crate) fn copy_inline(&self, from: Piece) {
        self.inline_piece(from.len()).copy_from(from);
    }
}

//! The sending end of one link.
//!
//! Message k travels by whichever lane of its group is chosen, in slot `k mod window` of the receiver's ring. Its header,
//! and its bytes if they are few, wait in line `k mod window` of the sender's; longer pieces wait in a slot of the pool. Both
//! are free again when the receiver has released the message, not when the device has sent it.

use super::offers::{RECORD, Target};
use super::pool::Pool;
use super::puts::Puts;
use super::recovery::Count;
use super::sys::{read, write};
use super::wire::{FIRST, FRONT, HEADER, Header, Immediate, LINE, after};
use crate::verbs::{Region, Remote, Sge};
use ccl_core::kernels::{Piece, PieceMut};
use ccl_core::transport::{Counters, LinkKey};

/// Where the bytes of a message wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// In its line, behind the header.
    Line,
    /// In a slot of the pool.
    Slot(u32),
    /// In registered memory of the user.
    User(Piece),
    /// In its line, and it announces a put.
    Word,
}

impl Body {
    /// Whether the bytes go with the header.
    #[inline(always)]
    pub(crate) fn is_in_line(self) -> bool {
        matches!(self, Body::Line | Body::Word)
    }
}

/// Who has what a message announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Its receiver.
    Nobody,
    /// It waits for a lane.
    Waits,
    /// A lane, and the message's slot.
    Lane { lane: u32, slot: u32 },
}

/// A word of a peer that no correct one could have sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// What a link needs of a pair of rails.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    /// Where its ring begins at the receiver.
    pub(crate) ring: Remote,
    /// Its lines, as the adapter here knows them.
    pub(crate) lines: Sge,
    /// Keeps the lines and their registration.
    pub(crate) _region: Region,
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
    /// Its lines, which the regions of its rails keep.
    lines: PieceMut,
    /// By pair of rails.
    rails: Box<[Rails]>,
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
    /// What it needs for puts, if there may be some.
    pub(crate) puts: Option<Box<Puts>>,
    /// Whether a sender holds a reservation that uses this link.
    pub(crate) reserved: bool,
    pub(crate) counters: Counters,
}

impl Outgoing {
    pub(crate) fn new(
        key: LinkKey,
        (home, group, lanes): (u32, u32, usize),
        (number, stride): (u32, u64),
        lines: PieceMut,
        rails: Box<[Rails]>,
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
            rails,
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
            puts: None,
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
        self.lines.slice(position as usize * LINE + offset, len)
    }

    /// Where a short message is written before it is published.
    #[inline]
    pub(crate) fn inline_piece(&self, len: usize) -> PieceMut {
        self.line(self.head, FRONT, len)
    }

    /// The next message, for a pair of rails. `released` counts for the link of the other direction.
    #[inline(always)]
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

    #[inline(always)]
    fn put(&self, slot: u32, header: Header, is_inline: bool, rails: usize) -> Message {
        let Rails { ring, lines, .. } = &self.rails[rails];
        let bytes = HEADER + if is_inline { header.len as usize } else { 0 };
        let head = lines.slice(slot as usize * LINE + FRONT - HEADER, bytes);
        let to = ring.at(u64::from(slot) * self.stride + (FRONT - HEADER) as u64);
        let header = header.encode();
        write(self.line(slot, FRONT - HEADER, HEADER), header);
        Message { header, head, to, immediate: Immediate::Piece { link: self.number, slot }.encode() }
    }

    /// Whether the receiver has offered memory for messages of this tag.
    #[inline]
    pub(crate) fn has_target(&self, tag: u64) -> bool {
        self.target.as_ref().is_some_and(|target| target.tag == tag)
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
        let record = read(self.line(self.window, 0, RECORD).as_piece());
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

    /// The slot and the number of the message that comes next.
    pub(crate) fn next_message(&self) -> (u32, u32) {
        (self.head, self.published)
    }

    /// Who has a message that was published.
    pub(crate) fn carrier(&self, number: u32) -> Carrier {
        let ahead = number.wrapping_sub(self.released);
        if ahead >= self.in_flight() {
            return Carrier::Nobody;
        }
        let slot = (self.tail + ahead) % self.window;
        match self.sent[slot as usize].lane {
            THERE => Carrier::Nobody,
            UNSENT => Carrier::Waits,
            lane => Carrier::Lane { lane, slot },
        }
    }

    fn header(&self, slot: u32) -> Header {
        Header::decode(read(self.line(slot, FRONT - HEADER, HEADER).as_piece()))
    }

    /// The message that waits in a slot, which this lane takes over a pair of rails; all of it but `released` as it was.
    pub(crate) fn again(&mut self, slot: u32, (lane, rails): (u32, usize), released: u32) -> Message {
        let sent = &mut self.sent[slot as usize];
        sent.lane = lane;
        let is_inline = sent.body.is_in_line();
        self.unsent -= 1;
        let header = Header { released, heard: self.heard, ..self.header(slot) };
        self.put(slot, header, is_inline, rails)
    }

    /// The message has been handed over to a lane, or waits for one.
    #[inline(always)]
    pub(crate) fn published(&mut self, len: usize, body: Body, is_direct: bool, lane: Option<u32>) {
        self.unsent += u32::from(lane.is_none());
        self.sent[self.head as usize] = Sent { body, lane: lane.unwrap_or(UNSENT) };
        self.head = after(self.head, self.window);
        self.published = self.published.wrapping_add(1);
        let counters = &mut self.counters;
        counters.pieces += 1;
        counters.bytes += len as u64;
        match body {
            Body::Line | Body::Word => counters.inline += 1,
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
    #[inline(always)]
    pub(crate) fn credit(&mut self, released: u32, mask: u32, pool: &mut Pool) -> Result<(), Corrupt> {
        let more = released.wrapping_sub(self.released) & mask;
        if more > self.in_flight() {
            let is_old = more > mask / 2;
            return if is_old { Ok(()) } else { Err(Corrupt("it returns credits that it never had")) };
        }
        let last = self.released.wrapping_add(more);
        while self.released != last {
            let sent = &self.sent[self.tail as usize];
            if sent.lane == UNSENT {
                return Err(Corrupt("it releases a message that it has not got"));
            }
            if let Body::Slot(slot) = sent.body {
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

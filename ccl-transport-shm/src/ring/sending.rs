//! The sender's side, and how long its laps are.

use super::{Body, Corrupt, Credit, Entry, Message};
use crate::sync::Ordering;

/// How many entries of the ring a lap uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Laps {
    /// At least: so many messages may be on their way whatever happens.
    pub(crate) least: u32,
    /// At most: so many entries there are.
    pub(crate) most: u32,
}

/// So many laps after one another that the receiver has kept up with are followed by shorter ones.
pub(super) const CALM: u32 = 8;

/// The sender's count of a link.
#[derive(Debug)]
pub(crate) struct SendEnd {
    laps: Laps,
    pub(super) published: u32,
    /// The receiver's count as last loaded: loading it again is a cache miss, so it is done in need only.
    pub(super) released: u32,
    /// The entry of the next message.
    at: u32,
    /// How long this lap will be, and the one before was, whose entries may be in use still.
    pub(super) lap: u32,
    lap_before: u32,
    /// Entries that this lap has and that are ready: those of the lap before and of the shortest.
    sure: u32,
    /// So many messages at least may be written, none of which is the last that is sure of the lap: nearly always there are some, and then there is
    /// nothing to be decided.
    easy: u32,
    /// The count of published messages when there was no credit last.
    starved: Option<u32>,
    /// Laps since then that the receiver has kept up with.
    calm: u32,
}

impl SendEnd {
    pub(crate) fn new(laps: Laps) -> SendEnd {
        debug_assert!((1..=laps.most).contains(&laps.least));
        SendEnd {
            laps,
            published: 0,
            released: 0,
            at: 0,
            lap: laps.least,
            lap_before: 0,
            sure: laps.least,
            easy: laps.least - 1,
            starved: None,
            calm: 0,
        }
    }

    /// The entry that the next message goes into.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at as usize
    }

    /// The entry of the message that comes so many after the next one, if it is known to be free.
    #[inline(always)]
    pub(crate) fn ahead(&self, messages: u32) -> Option<usize> {
        if self.easy > messages { Some((self.at + messages) as usize) } else { self.further_ahead(messages) }
    }

    #[inline(never)]
    fn further_ahead(&self, messages: u32) -> Option<usize> {
        let (at, waiting) = (self.at + messages, self.outstanding() + messages);
        if at < self.lap {
            return (at >= self.lap_before || waiting < self.lap_before).then_some(at as usize);
        }
        let at = at - self.lap;
        (at < self.lap && waiting < self.lap).then_some(at as usize)
    }

    /// So many messages at least may be written one after the other, with nothing to be decided.
    pub(crate) fn easy(&self) -> u32 {
        self.easy
    }

    /// Whether there is a credit, and the message after the next one goes into an entry that is known to be ready.
    #[inline(always)]
    pub(crate) fn is_easy(&self) -> bool {
        self.easy > 0
    }

    /// Whether the message after the next one goes into an entry that the lap before and the shortest one have.
    pub(crate) fn goes_on(&self) -> bool {
        self.at + 1 < self.sure
    }

    /// If not: whether the next message ends its lap.
    pub(crate) fn ends_lap(&self) -> bool {
        self.at + 1 >= self.lap
    }

    /// If not that either: the entry of the message after it, which must be made ready.
    pub(crate) fn beyond(&self) -> usize {
        self.at as usize + 1
    }

    /// What changes with the length of this lap and of the one before.
    fn set_lap(&mut self, lap: u32) {
        self.lap = lap;
        self.sure = lap.min(self.lap_before.max(self.laps.least));
        self.count_easy();
    }

    /// What changes with what is released, too.
    fn count_easy(&mut self) {
        // Where messages of the lap before are not known to be released, as many entries are free as those that are; else all of this lap.
        let waits = self.at < self.lap_before && self.outstanding() > self.at;
        let free =
            if waits { self.lap_before.saturating_sub(self.outstanding()) } else { self.lap - self.at };
        self.easy = free.min(self.sure.saturating_sub(self.at + 1));
    }

    /// Messages that are not known to be released.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.published.wrapping_sub(self.released)
    }

    /// Whether a message may be written, as far as is known without looking.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        // Beyond the entries of the lap before all are free.
        self.outstanding() < self.lap_before || self.at >= self.lap_before
    }

    /// The count, modulo 2³², of the next message.
    pub(crate) fn published(&self) -> u32 {
        self.published
    }

    /// Looks at what the receiver has released: how many messages more than at the last look.
    #[inline]
    pub(crate) fn refresh(&mut self, credit: &Credit) -> Result<u32, Corrupt> {
        let now = credit.released.load(Ordering::Acquire);
        let more = now.wrapping_sub(self.released);
        if more > self.outstanding() {
            return Err(Corrupt("it released more messages than it was sent"));
        }
        self.released = now;
        self.count_easy();
        Ok(more)
    }

    /// The receiver's count, to tell whether something has changed.
    #[inline]
    pub(crate) fn glance(&self, credit: &Credit) -> u32 {
        credit.released.load(Ordering::Acquire)
    }

    /// The count at the last [`refresh`](SendEnd::refresh).
    #[inline]
    pub(crate) fn known(&self) -> u32 {
        self.released
    }

    /// Hands over the entry [`at`](SendEnd::at), for which there must be a credit; one that `wraps` is followed by [`begin_lap`](SendEnd::begin_lap).
    #[inline]
    pub(crate) fn publish(&mut self, entry: &Entry, tag: u64, len: u32, body: Body, wraps: bool) {
        debug_assert!(self.has_credit());
        self.published = self.published.wrapping_add(1);
        self.at += 1;
        self.easy = self.easy.saturating_sub(1);
        entry.write(self.published, &Message { len, tag, body, wraps });
    }

    /// There is no credit, though the count was looked at: the laps become longer. Counted once for each message that waits.
    #[cold]
    pub(crate) fn starve(&mut self) {
        if self.starved != Some(self.published) {
            self.starved = Some(self.published);
            self.calm = 0;
            self.set_lap((self.lap * 2).min(self.laps.most));
        }
    }

    /// A lap has ended: it may have been too long.
    #[inline(never)]
    pub(crate) fn begin_lap(&mut self, credit: &Credit) {
        (self.lap_before, self.at) = (self.at, 0);
        let mut lap = self.lap;
        if lap > self.laps.least {
            let waiting = self.published.wrapping_sub(self.glance(credit));
            self.calm = if waiting <= lap / 4 { self.calm + 1 } else { 0 };
            if self.calm == CALM {
                self.calm = 0;
                lap = (lap / 2).max(self.laps.least);
            }
        }
        self.set_lap(lap);
    }
}

//! The receiver's side.

use super::{Corrupt, Credit, Entry, Laps, Message};
use crate::sync::Ordering;

/// The receiver's count of a link.
#[derive(Debug)]
pub(crate) struct RecvEnd {
    entries: u32,
    pub(super) released: u32,
    /// The entry of the oldest message that is not released.
    pub(super) at: u32,
}

impl RecvEnd {
    pub(crate) fn new(laps: Laps) -> RecvEnd {
        RecvEnd { entries: laps.most, released: 0, at: 0 }
    }

    /// The entry of the oldest message that is not released.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at as usize
    }

    /// The oldest message that is not released, if it has come.
    #[inline(always)]
    pub(crate) fn peek(&self, entry: &Entry) -> Result<Option<Message>, Corrupt> {
        self.peek_ahead(0, self.at, entry)
    }

    /// The message that comes so many after that one, in the entry of this number, if it has come.
    #[inline(always)]
    pub(crate) fn peek_ahead(&self, ahead: u32, at: u32, entry: &Entry) -> Result<Option<Message>, Corrupt> {
        let before = self.released.wrapping_add(ahead);
        let flag = entry.flag();
        let (sequence, low) = ((flag >> 32) as u32, flag as u32);
        if sequence != before.wrapping_add(1) {
            // What may stand here instead: nothing yet, or a message of a lap before.
            return match flag == 0 || sequence.wrapping_sub(before).cast_signed() <= 0 {
                true => Ok(None),
                false => Err(Corrupt("a message carries an impossible sequence number")),
            };
        }
        let message = entry.read(low)?;
        if !message.wraps && at + 1 == self.entries {
            return Err(Corrupt("a message is followed by one outside the ring"));
        }
        Ok(Some(message))
    }

    /// The entry after that of this number, whose message may be the last of its lap.
    #[inline]
    pub(crate) fn next(&self, at: u32, wraps: bool) -> u32 {
        if wraps { 0 } else { at + 1 }
    }

    /// Returns the oldest message, which [`peek`](RecvEnd::peek) has given, and which may be the last of its lap.
    #[inline]
    pub(crate) fn release(&mut self, wraps: bool, credit: &Credit) {
        self.released = self.released.wrapping_add(1);
        self.at = self.next(self.at, wraps);
        credit.released.store(self.released, Ordering::Release);
    }

    /// Messages released so far, modulo 2³².
    #[inline]
    pub(crate) fn released(&self) -> u32 {
        self.released
    }
}

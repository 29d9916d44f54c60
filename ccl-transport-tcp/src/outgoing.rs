//! The sending end of a link.

use ccl_core::transport::{Counters, LinkKey};

/// What the sender knows of a link. Counts are modulo 2³² from 0, when the link was opened.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: LinkKey,
    /// Its socket.
    pub(crate) socket: u32,
    /// The link of the same channel that leads back, if there is one: its releases ride on this one's pieces.
    pub(crate) back: Option<u32>,
    /// Pieces that may be on it.
    window: u32,
    /// Pieces published.
    published: u32,
    /// Pieces of which the receiver has said that they are released.
    released: u32,
    /// Whether a sending end holds a reservation on it.
    pub(crate) reserved: bool,
    pub(crate) counters: Counters,
}

impl Outgoing {
    pub(crate) fn new(key: LinkKey, socket: u32, window: u32) -> Outgoing {
        let counters = Counters::default();
        Outgoing { key, socket, back: None, window, published: 0, released: 0, reserved: false, counters }
    }

    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.published.wrapping_sub(self.released) < self.window
    }

    /// The number of the piece that is published now.
    #[inline]
    pub(crate) fn publish(&mut self, len: usize, by_reference: bool) -> u32 {
        let number = self.published;
        self.published = number.wrapping_add(1);
        self.counters.pieces += 1;
        self.counters.bytes += len as u64;
        if by_reference {
            self.counters.referenced += 1;
            self.counters.referenced_bytes += len as u64;
        }
        number
    }

    /// The receiver says how many pieces it has released. Whether that is news; an error if it cannot be.
    #[inline]
    pub(crate) fn learn(&mut self, released: u32) -> Result<bool, &'static str> {
        let fresh = released.wrapping_sub(self.released);
        if fresh > self.published.wrapping_sub(self.released) {
            return Err("releases of pieces that were never sent");
        }
        self.released = released;
        Ok(fresh > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_kept_and_only_what_was_sent_can_be_released() {
        let mut link = Outgoing::new(LinkKey { from: 0, to: 1, channel: 0 }, 0, 2);
        // Just before the counts wrap.
        (link.published, link.released) = (u32::MAX, u32::MAX);
        assert_eq!(link.learn(0), Err("releases of pieces that were never sent"));
        assert_eq!([link.publish(3, false), link.publish(4, true)], [u32::MAX, 0]);
        assert!(!link.has_credit());
        assert_eq!(link.learn(u32::MAX), Ok(false));
        assert_eq!(link.learn(0), Ok(true));
        assert!(link.has_credit());
        assert!(link.learn(u32::MAX).is_err(), "releases do not go back");
        assert!(link.learn(2).is_err());
        assert_eq!(link.learn(1), Ok(true));
        let counted =
            Counters { pieces: 2, bytes: 7, referenced: 1, referenced_bytes: 4, ..Counters::default() };
        assert_eq!(link.counters, counted);
    }
}

//! How far a way between two proxies is: what may be sent, and whether what comes can be right.

use ccl_transport_cuda::engine::Gate;

/// Both directions of a way, in pieces since the beginning. All numbers wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    sent: u32,
    /// How many of them the peer's kernel has released.
    taken: u32,
    arrived: u32,
    /// How many of those that arrived the peer knows to be released.
    told: u32,
}

impl Way {
    /// The number of the piece that is sent next.
    pub(super) fn next(&self) -> u32 {
        self.sent
    }

    /// Whether the peer has a slot for it.
    pub(super) fn may_send(&self) -> bool {
        self.sent.wrapping_sub(self.taken) < Gate::CREDITS
    }

    /// It was sent: how many have been.
    pub(super) fn sent(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent
    }

    /// A piece of this number has come while this rank's kernel had released so many: its number in full, if it is the next one and has a slot.
    pub(super) fn arrives(&mut self, number: u16, released: u32) -> Option<u32> {
        let is_free = self.arrived.wrapping_sub(released) < Gate::CREDITS;
        if number != self.arrived as u16 || !is_free {
            return None;
        }
        self.arrived = self.arrived.wrapping_add(1);
        Some(self.arrived.wrapping_sub(1))
    }

    /// Whether the peer is to be told that this rank's kernel has released so many: half of the slots at a time, as it has the other
    /// half meanwhile.
    pub(super) fn owes(&self, released: u32) -> bool {
        released.wrapping_sub(self.told) >= Gate::CREDITS / 2
    }

    /// It was told.
    pub(super) fn told(&mut self, released: u32) {
        self.told = released;
    }

    /// The peer says how many its kernel has released, modulo 2^16. Whether that can be.
    pub(super) fn hears(&mut self, count: u16) -> bool {
        let more = u32::from(count.wrapping_sub(self.taken as u16));
        let can_be = more <= self.sent.wrapping_sub(self.taken);
        if can_be {
            self.taken = self.taken.wrapping_add(more);
        }
        can_be
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_has_as_many_pieces_under_way_as_there_are_slots() {
        for start in [0, u32::from(u16::MAX) - 2, u32::MAX - 2] {
            let mut way = Way { sent: start, taken: start, ..Way::default() };
            for _ in 0..Gate::CREDITS {
                assert!(way.may_send());
                way.sent();
            }
            assert!(!way.may_send());
            assert!(way.hears(start.wrapping_add(2) as u16) && way.may_send());
            assert_eq!(way.next(), start.wrapping_add(Gate::CREDITS));
            assert!(!way.hears(start.wrapping_add(1) as u16), "fewer than before");
            assert!(!way.hears(start.wrapping_add(Gate::CREDITS + 1) as u16), "more than were sent");
            assert!(way.hears(start.wrapping_add(Gate::CREDITS) as u16));
        }
    }

    #[test]
    fn what_comes_is_the_next_one_and_has_a_slot() {
        for start in [0, u32::from(u16::MAX) - 1, u32::MAX - 1] {
            let mut way = Way { arrived: start, told: start, ..Way::default() };
            assert_eq!(way.arrives(start.wrapping_add(1) as u16, start), None);
            for i in 0..Gate::CREDITS {
                assert_eq!(way.arrives(start.wrapping_add(i) as u16, start), Some(start.wrapping_add(i)));
            }
            let next = start.wrapping_add(Gate::CREDITS);
            assert_eq!(way.arrives(next as u16, start), None, "no slot");
            let released = start.wrapping_add(1);
            assert!(!way.owes(released) && way.owes(start.wrapping_add(2)));
            assert_eq!(way.arrives(next as u16, released), Some(next));
            way.told(start.wrapping_add(2));
            assert!(!way.owes(start.wrapping_add(3)));
        }
    }
}

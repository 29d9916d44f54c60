//! Memory of the pieces that are on their way in or out.
//!
//! Slots are made when they are first needed and given out last in, first out, so that a rank which keeps up works in a few
//! that stay in its cache. How many there can be follows from the links' windows.

use crate::sys::Slot;
use std::ops::{Index, IndexMut};

/// The slots of one rank.
#[derive(Debug)]
pub(crate) struct Slots {
    bytes: usize,
    all: Vec<Slot>,
    /// For each, who needs it still.
    users: Vec<u32>,
    free: Vec<u32>,
}

impl Slots {
    /// Each with room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Slots {
        Slots { bytes, all: Vec::new(), users: Vec::new(), free: Vec::new() }
    }

    /// A slot with one user.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| self.grow());
        self.users[slot as usize] = 1;
        slot
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.all.push(Slot::new(self.bytes));
        self.users.push(0);
        // Room for all of them, so that giving back never allocates.
        self.free.reserve(self.all.len());
        self.all.len() as u32 - 1
    }

    /// So many users in place of the one.
    #[inline]
    pub(crate) fn share(&mut self, slot: u32, users: u32) {
        self.users[slot as usize] = users;
    }

    /// One user fewer.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32) {
        let users = &mut self.users[slot as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(slot);
        }
    }

    /// Bytes of all of them.
    pub(crate) fn memory(&self) -> u64 {
        self.all.len() as u64 * self.bytes as u64
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, slot: u32) -> &Slot {
        &self.all[slot as usize]
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.all[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_when_its_last_user_has_given_it_back() {
        let mut slots = Slots::new(100);
        let (a, b) = (slots.take(), slots.take());
        assert_ne!(a, b);
        slots.share(a, 2);
        slots.put(a);
        slots.put(b);
        assert_eq!(slots.take(), b, "the other one is needed still");
        slots.put(a);
        assert_eq!(slots.take(), a);
        assert_eq!(slots.memory(), 200);
    }
}

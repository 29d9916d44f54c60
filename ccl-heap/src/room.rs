//! Which bytes of a slab are taken.

use std::collections::{BTreeMap, BTreeSet};

/// All blocks begin on a page, and are whole pages long.
pub(crate) const PAGE: usize = 4096;

/// A range of addresses, and which parts of it are taken. The shortest part that is long enough is given, so that long ones
/// stay whole; what is free lies in as few parts as can be.
#[derive(Debug)]
pub(crate) struct Room {
    taken: BTreeMap<usize, usize>,
    /// Length by address, and the same by length.
    free: BTreeMap<usize, usize>,
    by_length: BTreeSet<(usize, usize)>,
    /// From here on nothing was ever taken.
    fresh: usize,
}

/// A part that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) at: usize,
    /// Nobody has had any of it before.
    pub(crate) is_fresh: bool,
}

impl Room {
    /// `start` and `length` are whole pages.
    pub(crate) fn new(start: usize, length: usize) -> Room {
        let mut room =
            Room { taken: BTreeMap::new(), free: BTreeMap::new(), by_length: BTreeSet::new(), fresh: start };
        room.add(start, length);
        room
    }

    /// Whole pages, on a multiple of `alignment`, which is a power of two.
    pub(crate) fn take(&mut self, length: usize, alignment: usize) -> Option<Taken> {
        let aligned = |at: usize| at.checked_next_multiple_of(alignment);
        let fits = |&(long, at): &(usize, usize)| {
            let at_most = at + (long - length);
            aligned(at).filter(|begin| *begin <= at_most).map(|begin| (at, long, begin))
        };
        let (at, long, begin) = self.by_length.range((length, 0)..).find_map(fits)?;
        self.remove(at, long);
        self.add(at, begin - at);
        self.add(begin + length, at + long - (begin + length));
        self.taken.insert(begin, length);
        let is_fresh = begin >= self.fresh;
        self.fresh = self.fresh.max(begin + length);
        Some(Taken { at: begin, is_fresh })
    }

    /// How long the block there is, if one begins there.
    pub(crate) fn length(&self, at: usize) -> Option<usize> {
        self.taken.get(&at).copied()
    }

    /// Frees the block that begins there. False: none does.
    pub(crate) fn give(&mut self, at: usize) -> bool {
        let Some(length) = self.taken.remove(&at) else { return false };
        self.add(at, length);
        true
    }

    /// Makes a block shorter or longer where it is, if it can be.
    pub(crate) fn resize(&mut self, at: usize, length: usize) -> bool {
        let Some(now) = self.length(at) else { return false };
        let end = at + now;
        if length > now {
            let Some(&behind) = self.free.get(&end).filter(|&&behind| behind >= length - now) else {
                return false;
            };
            self.remove(end, behind);
            self.add(at + length, end + behind - (at + length));
            self.fresh = self.fresh.max(at + length);
        } else {
            self.add(at + length, now - length);
        }
        self.taken.insert(at, length);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Address and length of all blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.taken.iter().map(|(at, length)| (*at, *length))
    }

    fn remove(&mut self, at: usize, length: usize) {
        self.free.remove(&at);
        self.by_length.remove(&(length, at));
    }

    /// Frees a part, perhaps an empty one, together with what is free around it.
    fn add(&mut self, mut at: usize, mut length: usize) {
        if length == 0 {
            return;
        }
        if let Some((&before, &long)) =
            self.free.range(..at).next_back().filter(|(from, long)| *from + *long == at)
        {
            self.remove(before, long);
            (at, length) = (before, long + length);
        }
        if let Some(&behind) = self.free.get(&(at + length)) {
            self.remove(at + length, behind);
            length += behind;
        }
        self.free.insert(at, length);
        self.by_length.insert((length, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 512 * PAGE;
    const PAGES: usize = 64;

    fn room() -> Room {
        Room::new(START, PAGES * PAGE)
    }

    fn taken(room: &mut Room, pages: usize) -> usize {
        room.take(pages * PAGE, PAGE).unwrap().at
    }

    #[test]
    fn the_shortest_part_that_is_long_enough_is_taken() {
        let mut room = room();
        let [a, _, c, d] = [3, 1, 2, 1].map(|pages| taken(&mut room, pages));
        assert_eq!([a, c, d], [0, 4, 6].map(|page| START + page * PAGE));
        assert!(room.give(a) && room.give(c));
        assert_eq!(room.take(2 * PAGE, PAGE), Some(Taken { at: c, is_fresh: false }));
        assert_eq!(room.take(4 * PAGE, PAGE), Some(Taken { at: d + PAGE, is_fresh: true }));
        assert_eq!(room.take(PAGES * PAGE, PAGE), None);
        assert!(!room.give(a) && !room.give(c + PAGE), "nothing begins there");
    }

    #[test]
    fn blocks_lie_where_they_are_wanted() {
        let mut room = room();
        let first = taken(&mut room, 1);
        let block = room.take(PAGE, 16 * PAGE).unwrap();
        assert_eq!(block, Taken { at: START + 16 * PAGE, is_fresh: true });
        assert_eq!(room.take(PAGE, 64 * PAGE), None, "no such place is free");
        assert_eq!(taken(&mut room, 15), first + PAGE, "what lies before it can be taken");
    }

    #[test]
    fn blocks_become_shorter_and_longer_where_they_are() {
        let mut room = room();
        let (a, b) = (taken(&mut room, 2), taken(&mut room, 2));
        assert!(!room.resize(a, 3 * PAGE), "the next one is in its way");
        assert!(room.resize(a, PAGE) && room.resize(a, 2 * PAGE) && room.resize(a, 2 * PAGE));
        assert!(room.resize(b, (PAGES - 2) * PAGE) && !room.resize(b, (PAGES - 1) * PAGE));
        assert!(!room.resize(b + PAGE, PAGE));
        assert!(room.give(a) && room.give(b) && room.is_empty());
        assert_eq!(
            room.take(PAGES * PAGE, PAGE),
            Some(Taken { at: START, is_fresh: false }),
            "one part again"
        );
    }

    /// Beside a map of pages.
    #[test]
    fn no_page_is_given_twice_and_none_is_lost() {
        let (mut room, mut owner) = (room(), [None; PAGES]);
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        for step in 0..20_000 {
            let blocks: Vec<_> = room.blocks().collect();
            let pages = 1 + next(9);
            match next(3) {
                0 if !blocks.is_empty() => {
                    let (at, _) = blocks[next(blocks.len())];
                    assert!(room.give(at));
                }
                1 if !blocks.is_empty() => {
                    let (at, _) = blocks[next(blocks.len())];
                    room.resize(at, pages * PAGE);
                }
                _ => {
                    let alignment = PAGE << next(4);
                    if let Some(block) = room.take(pages * PAGE, alignment) {
                        assert!(block.at.is_multiple_of(alignment));
                    }
                }
            }
            owner.fill(None);
            for (at, length) in room.blocks() {
                let pages = (at - START) / PAGE..(at + length - START) / PAGE;
                assert!(owner[pages].iter_mut().all(|page| page.replace(at).is_none()), "step {step}");
            }
            // Every page that has no owner lies in a free part, and no two of those touch.
            let free: usize = room.free.values().sum();
            assert_eq!(free, PAGE * owner.iter().filter(|page| page.is_none()).count());
            let touching = room.free.iter().any(|(at, length)| room.free.contains_key(&(at + length)));
            assert!(!touching && room.free.len() == room.by_length.len());
        }
    }
}

//! The shared memory of this process as one rank sees it: which of it lies where, and which peers know of it.

use crate::ledger::{ROWS, row};
use crate::ring::LENT_BYTES;
use crate::shm::{Region, Segment, region};
use ccl_core::Rank;
use ccl_core::kernels::Piece;
use std::sync::{Arc, Weak};

/// The account of a lender.
#[derive(Debug)]
pub(crate) struct Lending {
    ranks: u32,
    /// [`region::changes`] at the last look.
    seen: u64,
    /// By address.
    known: Vec<Known>,
    /// The entry that the last piece was found in: calls mostly use one after the other of few.
    last: usize,
    /// How often each row of the ledger was given out.
    given: Box<[u16]>,
}

/// A region of this process.
#[derive(Debug)]
struct Known {
    address: usize,
    len: usize,
    region: Weak<Region>,
    /// Under which number it is lent, once it is.
    number: Option<u32>,
    /// By rank.
    told: Box<[Told]>,
}

/// What a peer knows of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing yet. So many pieces go through slots before it is tried again; the next time it will be twice as many.
    No {
        /// Pieces left.
        pieces: u16,
        /// Pieces after the next failure.
        next: u16,
    },
    /// How to map it.
    Yes,
    /// It cannot be told.
    Never,
}

impl Told {
    /// Never tried.
    const NOTHING: Told = Told::No { pieces: 0, next: 1 };
}

/// A place in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    entry: usize,
    pub(crate) offset: u64,
}

impl Lending {
    pub(crate) fn new(ranks: u32) -> Lending {
        let given = vec![0; ROWS].into();
        Lending { ranks, seen: 0, known: Vec::new(), last: 0, given }
    }

    /// Whether this process has no shared memory at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.seen == region::changes()
    }

    /// Where a piece lies, if in shared memory of this process. Looks at what this rank knows, without a lock, unless
    /// memory was allocated or freed since.
    #[inline]
    pub(crate) fn find(&mut self, piece: Piece) -> Option<Place> {
        if self.seen != region::changes() {
            self.look_around();
        }
        let address = piece.as_ptr().addr();
        let around = |known: &Known| {
            let offset = address.checked_sub(known.address)?;
            let inside = offset < known.len && piece.len() <= known.len - offset;
            Some(offset as u64).filter(|offset| inside && *offset < LENT_BYTES)
        };
        if let Some(offset) = self.known.get(self.last).and_then(around) {
            return Some(Place { entry: self.last, offset });
        }
        let entry = self.known.partition_point(|known| known.address <= address).checked_sub(1)?;
        let offset = around(&self.known[entry])?;
        self.last = entry;
        Some(Place { entry, offset })
    }

    /// Takes over what has changed.
    #[cold]
    fn look_around(&mut self) {
        // First the count: a change that comes in between is seen the next time.
        self.seen = region::changes();
        let mut before = std::mem::take(&mut self.known);
        for region in region::regions() {
            let weak = Arc::downgrade(&region);
            let known = before.iter().position(|known| known.region.ptr_eq(&weak));
            self.known.push(match known {
                Some(at) => before.swap_remove(at),
                None => Known {
                    address: region.address(),
                    len: region.len(),
                    region: weak,
                    number: None,
                    told: vec![Told::NOTHING; self.ranks as usize].into(),
                },
            });
        }
    }

    /// Under which number a region is lent, if it is.
    #[inline]
    pub(crate) fn number(&self, place: Place) -> Option<u32> {
        self.known[place.entry].number
    }

    /// What a peer knows of a region.
    #[inline]
    pub(crate) fn told(&self, place: Place, peer: Rank) -> Told {
        self.known[place.entry].told[peer as usize]
    }

    /// Notes what a peer knows.
    pub(crate) fn note(&mut self, place: Place, peer: Rank, told: Told) {
        self.known[place.entry].told[peer as usize] = told;
    }

    /// The region, with a number under which it is lent from now on; `None` if all are taken or it is freed.
    pub(crate) fn lend(&mut self, place: Place, by: &Arc<Segment>) -> Option<(Arc<Region>, u32)> {
        let region = self.known[place.entry].region.upgrade()?;
        if let Some(number) = self.known[place.entry].number {
            return Some((region, number));
        }
        let taken = |at: usize| self.known.iter().any(|known| known.number.is_some_and(|n| row(n) == at));
        let at = (0..ROWS).find(|&at| self.given[at] < u16::MAX && !taken(at))?;
        let number = (u32::from(self.given[at]) + 1) * ROWS as u32 + at as u32;
        if !region.lend(by, number) {
            return None;
        }
        self.given[at] += 1;
        self.known[place.entry].number = Some(number);
        Some((region, number))
    }
}

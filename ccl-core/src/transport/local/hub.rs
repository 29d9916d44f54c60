//! What the ranks of a [`LocalHub`] share: links, and what lies in them.

use super::super::{LinkKey, Offer, Stretch};
use crate::kernels::{Buffers, Piece, PieceMut};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What the ranks share.
#[derive(Clone, Debug)]
pub struct LocalHub {
    pub(super) shared: Arc<Shared>,
    pub(super) slot_bytes: usize,
    pub(super) credits: u32,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) links: HashMap<LinkKey, Link>,
    /// For each rank: how many pieces and credits have come to it.
    pub(super) events: Vec<u64>,
    /// Ranks whose references are not to be trusted any more.
    pub(super) withdrawn: Vec<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Link {
    /// Pieces published and not yet released, oldest first.
    pub(super) messages: VecDeque<Message>,
    /// How many were released before.
    pub(super) released: u64,
    /// What the receiver has offered last, and how many had been released then.
    pub(super) offer: Option<(Offer, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) body: Body,
    pub(super) tag: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Bytes(Arc<[u8]>),
    Reference(Piece),
    /// In memory that the receiver has offered.
    Direct(Piece),
}

impl LocalHub {
    /// A hub for `ranks` ranks, with pieces of at most `slot_bytes` bytes and `credits` of them per link.
    pub fn new(ranks: u32, slot_bytes: usize, credits: u32) -> LocalHub {
        let (events, withdrawn) = (vec![0; ranks as usize], vec![false; ranks as usize]);
        let state = State { links: HashMap::new(), events, withdrawn };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        LocalHub { shared: Arc::new(shared), slot_bytes, credits }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A link, which its ends have opened.
    pub(super) fn link(&mut self, link: LinkKey) -> &mut Link {
        self.links.entry(link).or_default()
    }
}

impl Link {
    /// What is sent next: written to where it goes, if its receiver has offered that.
    pub(super) fn land(&self, body: &Body, tag: u64) -> Body {
        let piece = body.piece();
        let Some(place) = self.offered(&Stretch::one(piece.len()), tag) else { return body.clone() };
        place.copy_from(piece);
        Body::Direct(place.as_piece())
    }

    /// Where the next pieces go, if their receiver has offered memory for all of them.
    pub(super) fn offered(&self, stretch: &Stretch, tag: u64) -> Option<PieceMut> {
        let (offer, released) = self.offer.filter(|(offer, _)| offer.tag == tag)?;
        let index = self.released + self.messages.len() as u64 - released;
        let at = Offer::place_of(offer.sink.len(), offer.piece, offer.direction, index, stretch)?;
        Some(offer.sink.slice(at, stretch.bytes))
    }
}

impl Body {
    /// Bytes of memory that it takes.
    pub(super) fn own_bytes(&self) -> u64 {
        match self {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::Reference(_) | Body::Direct(_) => 0,
        }
    }

    pub(super) fn piece(&self) -> Piece {
        match self {
            Body::Bytes(bytes) => Buffers::new(bytes, &mut []).input(),
            Body::Reference(piece) | Body::Direct(piece) => *piece,
        }
    }
}

//! The open connections of a node, and what it wants done.

use super::message::{Entry, Message};
use super::types::{Action, LinkId};
use crate::plan::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes of entries in one message.
const MESSAGE_BYTES: usize = 32 << 10;

/// What an entry takes beside its bytes.
const ENTRY_BYTES: usize = 8;

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) peer: Rank,
    /// The last sign of life, or a time from which on to wait for one.
    pub(super) heard: Duration,
    /// Whether anything was said on it yet.
    pub(super) met: bool,
    /// What the peer did last, by its own word.
    pub(super) state: Vec<u8>,
}

/// All connections that are open, and the actions that nobody has taken yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    open: BTreeMap<LinkId, Link>,
    of_peer: BTreeMap<Rank, Vec<LinkId>>,
    pub(super) actions: VecDeque<Action>,
}

impl Links {
    pub(super) fn open(&mut self, link: LinkId, peer: Rank, now: Duration) {
        self.remove(link);
        self.open.insert(link, Link { peer, heard: now, met: false, state: Vec::new() });
        self.of_peer.entry(peer).or_default().push(link);
    }

    pub(super) fn get(&mut self, link: LinkId) -> Option<&mut Link> {
        self.open.get_mut(&link)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.open.values()
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Link> {
        let gone = self.open.remove(&link)?;
        let others = self.of_peer.get_mut(&gone.peer)?;
        others.retain(|other| *other != link);
        if others.is_empty() {
            self.of_peer.remove(&gone.peer);
        }
        Some(gone)
    }

    /// The connections to `peer`.
    pub(super) fn to(&self, peer: Rank) -> &[LinkId] {
        self.of_peer.get(&peer).map_or(&[], |links| links)
    }

    pub(super) fn is_linked(&self, peer: Rank) -> bool {
        !self.to(peer).is_empty()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn send(&mut self, link: LinkId, message: Message) {
        self.act(Action::Send { link, message });
    }

    /// Says something to a peer if it is connected; if not, it will be told when it is.
    pub(super) fn send_to(&mut self, peer: Option<Rank>, message: Message) {
        if let Some(&link) = peer.and_then(|peer| self.to(peer).first()) {
            self.send(link, message);
        }
    }

    /// Says something on all connections but one.
    pub(super) fn flood(&mut self, message: &Message, except: Option<LinkId>) {
        for &link in self.open.keys().filter(|link| Some(**link) != except) {
            self.actions.push_back(Action::Send { link, message: message.clone() });
        }
    }

    /// Says something about `about` on all connections but one and those to that rank itself.
    pub(super) fn flood_past(&mut self, about: Rank, message: &Message, except: LinkId) {
        for (&link, _) in self.open.iter().filter(|(link, to)| **link != except && to.peer != about) {
            self.actions.push_back(Action::Send { link, message: message.clone() });
        }
    }

    /// Closes all connections to `peer`; the last thing said on them is `message`.
    pub(super) fn close_to(&mut self, peer: Rank, message: &Message) {
        for link in self.of_peer.remove(&peer).unwrap_or_default() {
            self.open.remove(&link);
            self.send(link, message.clone());
            self.act(Action::Close(link));
        }
    }

    pub(super) fn close_all(&mut self) {
        self.of_peer.clear();
        for link in std::mem::take(&mut self.open).into_keys() {
            self.act(Action::Close(link));
        }
    }

    /// Takes off silence for which this node is to blame.
    pub(super) fn forgive(&mut self, late: Duration, now: Duration) {
        self.open.values_mut().for_each(|link| link.heard = (link.heard + late).min(now));
    }
}

/// Entries in lists that fit a message.
pub(super) fn batches<'a>(
    entries: impl IntoIterator<Item = (&'a Rank, &'a Vec<u8>)>,
) -> impl Iterator<Item = Vec<Entry>> {
    let mut entries = entries.into_iter().peekable();
    std::iter::from_fn(move || {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((rank, entry)) =
            entries.next_if(|(_, e)| bytes == 0 || bytes + e.len() + ENTRY_BYTES <= MESSAGE_BYTES)
        {
            bytes += entry.len() + ENTRY_BYTES;
            batch.push((*rank, entry.clone()));
        }
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_everything_and_are_short() {
        let entries: BTreeMap<Rank, Vec<u8>> = (0..100)
            .map(|rank| (rank, vec![rank as u8; rank as usize * 30]))
            .chain([(100, vec![7; 99_999])])
            .collect();
        let all: Vec<Vec<Entry>> = batches(&entries).collect();
        assert!(all.len() > 4 && all.iter().all(|batch| !batch.is_empty()));
        for batch in &all {
            let bytes: usize = batch.iter().map(|(_, e)| e.len() + ENTRY_BYTES).sum();
            assert!(bytes <= MESSAGE_BYTES || batch.len() == 1, "{bytes}");
        }
        assert_eq!(all.into_iter().flatten().collect::<BTreeMap<_, _>>(), entries);
    }
}

//! What every transport knows of its links: which are open, under which numbers, and what the two ends say about new ones.

use super::{LinkKey, ReceiverId, SenderId, misuse};
use crate::error::{Error, Result};
use crate::plan::Rank;
use std::collections::{BTreeMap, HashMap};

/// The open links of a rank, and its sending ends. A transport numbers links of each direction, and ends, from 0.
#[derive(Debug)]
pub struct Directory {
    rank: Rank,
    ranks: u32,
    outgoing: HashMap<(Rank, u16), u32>,
    incoming: HashMap<(Rank, u16), u32>,
    senders: HashMap<(Vec<Rank>, u16), SenderId>,
}

/// New links between this rank and a peer, by channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewLinks {
    /// Those to the peer, in order.
    pub to: Vec<u16>,
    /// Those from it.
    pub from: Vec<u16>,
}

/// New links of one direction in short, for a word to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// How many they are.
    pub count: u32,
    /// Hash of the channels, to notice ranks that open different links.
    pub hash: u64,
}

/// What [`Directory::sender`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// An end that there is.
    Known(SenderId),
    /// The next one, over these links.
    New(SenderId, Box<[u32]>),
}

impl Directory {
    /// That of `rank` in a communicator of `ranks`.
    pub fn new(rank: Rank, ranks: u32) -> Directory {
        let (outgoing, incoming, senders) = (HashMap::new(), HashMap::new(), HashMap::new());
        Directory { rank, ranks, outgoing, incoming, senders }
    }

    /// Those of `links` that are not open yet, by peer.
    pub fn missing(&self, links: &[LinkKey]) -> Result<BTreeMap<Rank, NewLinks>> {
        let mut new: BTreeMap<Rank, NewLinks> = BTreeMap::new();
        for link in links {
            let LinkKey { from, to, channel } = *link;
            let peer = if from == self.rank { to } else { from };
            if (from != self.rank && to != self.rank) || from == to || peer >= self.ranks {
                return Err(Error::invalid(
                    format!("a link from rank {from} to rank {to} at rank {} of {}", self.rank, self.ranks),
                    "one end here and the other at a peer",
                ));
            }
            if from == self.rank && !self.outgoing.contains_key(&(peer, channel)) {
                new.entry(peer).or_default().to.push(channel);
            } else if to == self.rank && !self.incoming.contains_key(&(peer, channel)) {
                new.entry(peer).or_default().from.push(channel);
            }
        }
        for links in new.values_mut() {
            for channels in [&mut links.to, &mut links.from] {
                channels.sort_unstable();
                channels.dedup();
            }
        }
        Ok(new)
    }

    /// A link to a peer is open under this number.
    pub fn add_outgoing(&mut self, peer: Rank, channel: u16, link: u32) {
        self.outgoing.insert((peer, channel), link);
    }

    /// A link from a peer is open under this number.
    pub fn add_incoming(&mut self, peer: Rank, channel: u16, link: u32) {
        self.incoming.insert((peer, channel), link);
    }

    /// The number of the link to a peer, if it is open.
    pub fn outgoing(&self, peer: Rank, channel: u16) -> Option<u32> {
        self.outgoing.get(&(peer, channel)).copied()
    }

    /// The number of the link from a peer, if it is open.
    pub fn incoming(&self, peer: Rank, channel: u16) -> Option<u32> {
        self.incoming.get(&(peer, channel)).copied()
    }

    /// The sending end for the open links to all of `peers`; a new one is known from now on.
    pub fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<End> {
        let key = (peers.to_vec(), channel);
        if let Some(&id) = self.senders.get(&key) {
            return Ok(End::Known(id));
        }
        if peers.is_empty() || (1..peers.len()).any(|i| peers[..i].contains(&peers[i])) {
            return Err(Error::invalid(
                format!("a sender to ranks {peers:?}"),
                "name at least one peer, and each once",
            ));
        }
        let link = |&to: &Rank| {
            let open = self.outgoing(to, channel);
            open.ok_or_else(|| misuse::not_open(LinkKey { from: self.rank, to, channel }))
        };
        let links = peers.iter().map(link).collect::<Result<_>>()?;
        let id = SenderId(self.senders.len() as u32);
        self.senders.insert(key, id);
        Ok(End::New(id, links))
    }

    /// The receiving end of the open link from `peer`: it has the link's number.
    pub fn receiver(&self, peer: Rank, channel: u16) -> Result<ReceiverId> {
        let link = self.incoming(peer, channel).map(ReceiverId);
        link.ok_or_else(|| misuse::not_open(LinkKey { from: peer, to: self.rank, channel }))
    }
}

impl NewLinks {
    /// What is said of them to the peer: of those to it, and of those from it.
    pub fn rows(&self) -> (Row, Row) {
        (Row::of(&self.to), Row::of(&self.from))
    }

    /// Why the peer, which says this of its own, does not open the same links.
    pub fn differ_from(&self, (theirs_to, theirs_from): (Row, Row)) -> Option<String> {
        let (to, from) = self.rows();
        (theirs_to != from || theirs_from != to).then(|| {
            format!(
                "it opens {} links to this rank and {} from it, this rank {} and {}; both must open the same",
                theirs_to.count, theirs_from.count, from.count, to.count
            )
        })
    }
}

impl Row {
    /// Links of these channels.
    pub fn of(channels: &[u16]) -> Row {
        let mix = |hash: u64, channel: &u16| (hash ^ u64::from(*channel)).wrapping_mul(0x100_0000_01b3);
        Row { count: channels.len() as u32, hash: channels.iter().fold(0xcbf2_9ce4_8422_2325, mix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(from: Rank, to: Rank, channel: u16) -> LinkKey {
        LinkKey { from, to, channel }
    }

    #[test]
    fn what_is_open_is_not_missing() {
        let mut directory = Directory::new(1, 3);
        let links = [link(1, 2, 4), link(1, 2, 3), link(2, 1, 3), link(1, 2, 3), link(0, 1, 0)];
        let missing = directory.missing(&links).unwrap();
        assert_eq!(missing[&2], NewLinks { to: vec![3, 4], from: vec![3] });
        assert_eq!(missing[&0], NewLinks { to: vec![], from: vec![0] });
        directory.add_outgoing(2, 3, 0);
        directory.add_incoming(0, 0, 0);
        let missing = directory.missing(&links).unwrap();
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), [(2, NewLinks { to: vec![4], from: vec![3] })]);
        assert_eq!((directory.outgoing(2, 3), directory.incoming(2, 3)), (Some(0), None));
        for wrong in [link(0, 2, 0), link(1, 1, 0), link(1, 3, 0)] {
            assert!(directory.missing(&[wrong]).unwrap_err().to_string().contains("one end here"));
        }
    }

    #[test]
    fn an_end_is_made_once() {
        let mut directory = Directory::new(0, 3);
        directory.add_outgoing(1, 0, 5);
        directory.add_outgoing(2, 0, 6);
        directory.add_incoming(2, 0, 7);
        assert_eq!(directory.sender(&[1, 2], 0).unwrap(), End::New(SenderId(0), [5, 6].into()));
        assert_eq!(directory.sender(&[1, 2], 0).unwrap(), End::Known(SenderId(0)));
        assert_eq!(directory.sender(&[2], 0).unwrap(), End::New(SenderId(1), [6].into()));
        assert_eq!(directory.receiver(2, 0).unwrap(), ReceiverId(7));
        assert!(directory.receiver(1, 0).is_err() && directory.sender(&[1], 1).is_err());
        assert!(directory.sender(&[], 0).is_err() && directory.sender(&[1, 1], 0).is_err());
    }

    #[test]
    fn ranks_that_open_different_links_notice() {
        let ours = NewLinks { to: vec![0, 1], from: vec![2] };
        let mirrored = NewLinks { to: vec![2], from: vec![0, 1] };
        assert_eq!(ours.differ_from(mirrored.rows()), None);
        let other = NewLinks { to: vec![2], from: vec![1, 0] };
        assert!(ours.differ_from(other.rows()).is_some());
        assert!(ours.differ_from(ours.rows()).unwrap().contains("opens 2 links to this rank and 1 from it"));
    }
}

//! Opening links: sockets to the peers that have none yet, and a word with each.

use crate::blob::Blob;
use crate::error::broken;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::socket::Socket;
use crate::transport::TcpTransport;
use ccl_core::transport::{Exchange, LinkKey, NewLinks};
use ccl_core::{Rank, Result};
use std::collections::BTreeMap;
use std::net::TcpStream;

impl TcpTransport {
    pub(crate) fn open_links(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()> {
        let rows = self.directory.missing(links)?;
        if rows.is_empty() {
            return Ok(());
        }
        let new: Vec<Rank> = rows.keys().copied().filter(|peer| !self.peers.contains_key(peer)).collect();
        let wanted: Vec<_> = new.iter().map(|&peer| (peer, self.limits.sockets)).collect();
        let streams = if wanted.is_empty() { Vec::new() } else { exchange.streams(&wanted)? };
        let blobs: Vec<_> = rows.iter().map(|(&peer, row)| (peer, self.word_about(row).encode())).collect();
        let mut hosts = BTreeMap::new();
        for ((&peer, row), answer) in rows.iter().zip(exchange.swap(&blobs)?) {
            let word = Blob::decode(&answer).ok_or_else(|| broken(peer, "its version does not fit ours"))?;
            self.check(peer, row, &word)?;
            hosts.insert(peer, word.host);
        }
        for (peer, streams) in new.into_iter().zip(streams) {
            self.meet(peer, streams, &hosts[&peer])?;
        }
        for (&peer, row) in &rows {
            self.add(peer, row);
        }
        tracing::debug!(rank = self.rank, peers = rows.len(), links = links.len(), "links open over tcp");
        Ok(())
    }

    fn word_about(&self, new: &NewLinks) -> Blob {
        let (to_peer, from_peer) = new.rows();
        Blob { rank: self.rank, limits: self.limits, to_peer, from_peer, host: self.place.host.clone() }
    }

    fn check(&self, peer: Rank, new: &NewLinks, word: &Blob) -> Result<()> {
        if word.rank != peer {
            return Err(broken(peer, format!("the word of rank {} came in its place", word.rank)));
        }
        if word.limits != self.limits {
            let what = format!("it uses {:?}, this rank {:?}; settings must agree", word.limits, self.limits);
            return Err(broken(peer, what));
        }
        if let Some(why) = new.differ_from((word.to_peer, word.from_peer)) {
            return Err(broken(peer, why));
        }
        Ok(())
    }

    /// Keeps the sockets to a peer.
    fn meet(&mut self, peer: Rank, streams: Vec<TcpStream>, host: &str) -> Result<()> {
        if streams.len() != usize::from(self.limits.sockets) {
            return Err(broken(
                peer,
                format!("{} sockets in place of {}", streams.len(), self.limits.sockets),
            ));
        }
        let first = self.sockets.len() as u32;
        for stream in streams {
            let name = stream.peer_addr().map_or_else(|_| "a closed socket".to_string(), |a| a.to_string());
            self.sockets.push(Socket::new(stream, peer, format!("{name} on {host}")));
        }
        self.peers.insert(peer, first);
        Ok(())
    }

    /// Registers the links of a row at both ends. A link keeps to one socket, and to the same one as the link of the same
    /// channel that leads back.
    fn add(&mut self, peer: Rank, new: &NewLinks) {
        let (first, limits) = (self.peers[&peer], self.limits);
        let socket_of = |channel: u16| first + u32::from(channel % limits.sockets);
        for &channel in &new.from {
            let (key, link) =
                (LinkKey { from: peer, to: self.rank, channel }, self.ends.incoming.len() as u32);
            let socket = socket_of(channel);
            self.ends.incoming.push(Incoming::new(key, socket, limits.window(), limits.batch()));
            self.sockets[socket as usize].incoming.insert(channel, link);
            self.directory.add_incoming(peer, channel, link);
        }
        for &channel in &new.to {
            let (key, link) =
                (LinkKey { from: self.rank, to: peer, channel }, self.ends.outgoing.len() as u32);
            let socket = socket_of(channel);
            self.ends.outgoing.push(Outgoing::new(key, socket, limits.window()));
            self.sockets[socket as usize].outgoing.insert(channel, link);
            self.directory.add_outgoing(peer, channel, link);
        }
        for &channel in new.to.iter().chain(&new.from) {
            if let Some(link) = self.directory.outgoing(peer, channel) {
                self.ends.outgoing[link as usize].back = self.directory.incoming(peer, channel);
            }
        }
    }
}

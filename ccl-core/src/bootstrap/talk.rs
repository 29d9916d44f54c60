//! Conversations between two ranks that are connecting: who calls, what is said, and where it ends.
//!
//! Of two ranks the lower one calls, the other waits to be called. The caller says who it is and its blob, the other answers
//! with its own. After a swap both hang up; a stream is then taken over by a transport, as a bare socket.

use super::Bootstrap;
use super::dial::Dialer;
use super::net::{Connection, bootstrap_error};
use super::session::Purpose;
use super::wire::Message;
use crate::error::{Error, Result};
use crate::plan::Rank;
use crate::transport::MOST_STREAMS;

/// What two ranks connect for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Talk {
    /// Blobs, once.
    Swap,
    /// A stream, by its number among those of the pair.
    Stream(u16),
}

/// Somebody who has called and said who it is.
pub(super) enum Caller {
    /// For the control plane.
    Neighbour(Rank),
    /// For a talk.
    Peer(Rank, Talk),
}

impl Caller {
    /// Who has proved itself and said this first; `None` where the two do not fit.
    pub(super) fn of(connection: &Connection, first: &Message) -> Option<Caller> {
        match (connection.session.purpose()?, first) {
            (Purpose::Tree, Message::Caller { rank }) => Some(Caller::Neighbour(*rank)),
            (Purpose::Swap, Message::Caller { rank }) => Some(Caller::Peer(*rank, Talk::Swap)),
            (Purpose::Stream, Message::Stream { rank, index }) if *index < MOST_STREAMS => {
                Some(Caller::Peer(*rank, Talk::Stream(*index)))
            }
            _ => None,
        }
    }
}

impl Talk {
    fn purpose(self) -> Purpose {
        match self {
            Talk::Swap => Purpose::Swap,
            Talk::Stream(_) => Purpose::Stream,
        }
    }

    /// The caller's first words.
    fn greeting(self, own: Rank) -> Message {
        match self {
            Talk::Swap => Message::Caller { rank: own },
            Talk::Stream(index) => Message::Stream { rank: own, index },
        }
    }
}

/// One talk under way.
pub(super) struct Pair<'b> {
    pub(super) peer: Rank,
    talk: Talk,
    blob: &'b [u8],
    side: Side,
    pub(super) answer: Vec<u8>,
}

enum Side {
    /// This rank has the lower number and will connect.
    Due,
    /// It connects.
    Dialling(Dialer),
    /// This rank has the higher number and waits to be called.
    Called(Option<Connection>),
    /// The answer is on its way out.
    Leaving(Connection),
    /// With the connection, if that is to be kept: swaps among hundreds of ranks would use up a process's descriptors.
    Done(Option<Connection>),
}

impl<'b> Pair<'b> {
    /// To talk about this with a peer. One of a higher number is to be [called](Self::call).
    pub(super) fn new(bootstrap: &Bootstrap, peer: Rank, talk: Talk, blob: &'b [u8]) -> Pair<'b> {
        let side = if peer < bootstrap.rank { Side::Called(None) } else { Side::Due };
        Pair { peer, talk, blob, side, answer: Vec::new() }
    }

    /// Begins to connect.
    pub(super) fn call(&mut self, bootstrap: &Bootstrap) -> Result<()> {
        let words = vec![self.talk.greeting(bootstrap.rank), Message::Blob(self.blob.to_vec())];
        let mut addresses = bootstrap.health.members()[self.peer as usize].addresses.clone();
        if let Talk::Stream(index) = self.talk
            && bootstrap.several_interfaces
        {
            let first = usize::from(index) % addresses.len().max(1);
            addresses.rotate_left(first);
        }
        let dialer = Dialer::new(addresses, bootstrap.session, self.talk.purpose(), words)?;
        self.side = Side::Dialling(dialer);
        Ok(())
    }

    /// Whether this rank has to call, and has not.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.side, Side::Due)
    }

    /// Whether this rank has called, and was not answered.
    pub(super) fn is_calling(&self) -> bool {
        matches!(self.side, Side::Dialling(_))
    }

    /// Whether all was said and heard.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.side, Side::Done(_))
    }

    /// What of it is to be waited for.
    pub(super) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.side {
            Side::Dialling(dialer) => Some(&mut dialer.connection),
            Side::Called(connection) => connection.as_mut(),
            Side::Leaving(connection) => Some(connection),
            Side::Due | Side::Done(_) => None,
        }
    }

    /// The connection of a talk that is done and was about a stream.
    pub(super) fn into_connection(self) -> Option<Connection> {
        match self.side {
            Side::Done(connection) => connection,
            _ => None,
        }
    }

    /// The dialer, while it has not got through.
    pub(super) fn dialer(&self) -> Option<&Dialer> {
        match &self.side {
            Side::Dialling(dialer) if !dialer.is_up() => Some(dialer),
            _ => None,
        }
    }

    /// Goes as far as it can without waiting.
    pub(super) fn step(&mut self, bootstrap: &Bootstrap) -> Result<()> {
        let (peer, said) = (self.peer, "something else than its blob while connecting");
        let side = std::mem::replace(&mut self.side, Side::Called(None));
        self.side = match side {
            Side::Dialling(mut dialer) => match dialer.hear()? {
                Some(Message::Blob(bytes)) => {
                    self.answer = bytes;
                    self.over(dialer.connection)
                }
                Some(_) => return Err(bootstrap_error(format!("rank {peer} said {said}"))),
                None => {
                    if dialer.is_up() {
                        lost(peer, &dialer.connection)?;
                    }
                    Side::Dialling(dialer)
                }
            },
            Side::Called(waiting) => {
                match waiting.or_else(|| bootstrap.health.take_caller((peer, self.talk))) {
                    None => Side::Called(None),
                    Some(mut connection) => match connection.hear() {
                        Some(Message::Blob(bytes)) => {
                            self.answer = bytes;
                            connection.say(Message::Blob(self.blob.to_vec()));
                            self.left(connection)
                        }
                        Some(_) => return Err(bootstrap_error(format!("rank {peer} said {said}"))),
                        None => {
                            lost(peer, &connection)?;
                            Side::Called(Some(connection))
                        }
                    },
                }
            }
            Side::Leaving(connection) => self.left(connection),
            other => other,
        };
        Ok(())
    }

    /// Done, once the answer is out.
    fn left(&self, mut connection: Connection) -> Side {
        // What comes now on a stream is not for this conversation, and nothing comes before both have seen its end.
        connection.hear();
        if connection.is_flushed() { self.over(connection) } else { Side::Leaving(connection) }
    }

    fn over(&self, connection: Connection) -> Side {
        Side::Done((self.talk != Talk::Swap).then_some(connection))
    }
}

/// An error where a conversation that had begun is over.
fn lost(peer: Rank, connection: &Connection) -> Result<()> {
    match &connection.closed {
        Some(cause) => Err(Error::lost(peer, format!("while connecting: {cause}"))),
        None => Ok(()),
    }
}

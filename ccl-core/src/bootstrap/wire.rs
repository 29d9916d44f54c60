//! What the ranks say to each other, as bytes. Pure: no socket, no clock, no key.
//!
//! A frame is `length: u32, kind: u8, payload, tag: 16 bytes`, little-endian; `length` counts the payload
//! only and is bounded by [`MAX_PAYLOAD`]. The [session](super::session) puts the tag behind it.

use crate::plan::Rank;
use std::net::{IpAddr, SocketAddr};

/// Version of everything in this file and of the handshake. Both ends must have the same.
pub(super) const VERSION: u16 = 1;

/// Longest payload of a frame in bytes: what one connection can make its peer hold.
pub(super) const MAX_PAYLOAD: usize = 64 * 1024;

/// Longest blob of a swap and of an all-gather, in bytes.
pub(super) const MAX_BLOB: usize = 4096;

/// Bytes in front of a payload.
pub(super) const HEADER_BYTES: usize = 5;

/// Most addresses that a rank announces.
pub(super) const MAX_ADDRESSES: usize = 4;

const MAX_TEXT: usize = 1024;

/// Something that one end says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A rank to the root: here I am.
    Join { rank: Rank, ranks: u32, patience_ms: u64, member: Member },
    /// The root to a rank: all are here; connect to this parent.
    Welcome { session: [u8; 32], parent: Option<Member> },
    /// The root to a rank: it will not be.
    Refusal(Refusal),
    /// A child to its parent in the tree, or a swapping rank to a peer: who is speaking.
    Caller { rank: Rank },
    /// Entries of the all-gather with this number, on their way to the tree's root or back.
    Gather { sequence: u64, entries: Vec<(Rank, Vec<u8>)> },
    /// The all-gather with this number failed; these ranks did not come.
    Absent { sequence: u64, absent: Vec<Rank> },
    /// A rank is dead.
    Lost { rank: Rank, cause: String },
    /// The speaker leaves in order.
    Goodbye,
    /// One side of a swap.
    Blob(Vec<u8>),
}

/// Why the root sends a rank away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The deadline passed without these ranks.
    Absent(Vec<Rank>),
    /// The ranks contradict each other.
    Conflict(String),
    /// A rank that had come is gone.
    Left { rank: Rank, cause: String },
}

/// Who a rank is and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) addresses: Vec<SocketAddr>,
}

/// Bytes that are not a message, with where they stop making sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

impl Message {
    /// Kind and payload.
    pub(super) fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Writer(Vec::new());
        let kind = match self {
            Message::Join { rank, ranks, patience_ms, member } => {
                out.u32(*rank);
                out.u32(*ranks);
                out.u64(*patience_ms);
                out.member(member);
                1
            }
            Message::Welcome { session, parent } => {
                out.0.extend_from_slice(session);
                out.u8(parent.is_some() as u8);
                if let Some(parent) = parent {
                    out.member(parent);
                }
                2
            }
            Message::Refusal(Refusal::Absent(absent)) => {
                out.ranks(absent);
                3
            }
            Message::Refusal(Refusal::Conflict(text)) => {
                out.text(text);
                4
            }
            Message::Refusal(Refusal::Left { rank, cause }) => {
                out.u32(*rank);
                out.text(cause);
                5
            }
            Message::Caller { rank } => {
                out.u32(*rank);
                6
            }
            Message::Gather { sequence, entries } => {
                out.u64(*sequence);
                out.u32(entries.len() as u32);
                for (rank, bytes) in entries {
                    out.u32(*rank);
                    out.bytes(bytes);
                }
                7
            }
            Message::Absent { sequence, absent } => {
                out.u64(*sequence);
                out.ranks(absent);
                8
            }
            Message::Lost { rank, cause } => {
                out.u32(*rank);
                out.text(cause);
                9
            }
            Message::Goodbye => 10,
            Message::Blob(bytes) => {
                out.bytes(bytes);
                11
            }
        };
        (kind, out.0)
    }

    /// The message in a payload of this kind.
    pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Message, Garbled> {
        let mut from = Reader(payload);
        let message = match kind {
            1 => Message::Join {
                rank: from.u32()?,
                ranks: from.u32()?,
                patience_ms: from.u64()?,
                member: from.member()?,
            },
            2 => Message::Welcome {
                session: from.array()?,
                parent: match from.u8()? {
                    0 => None,
                    1 => Some(from.member()?),
                    _ => return Err(Garbled("parent flag")),
                },
            },
            3 => Message::Refusal(Refusal::Absent(from.ranks()?)),
            4 => Message::Refusal(Refusal::Conflict(from.text()?)),
            5 => Message::Refusal(Refusal::Left { rank: from.u32()?, cause: from.text()? }),
            6 => Message::Caller { rank: from.u32()? },
            7 => Message::Gather {
                sequence: from.u64()?,
                entries: from.list(|from| Ok((from.u32()?, from.bytes(MAX_BLOB)?.to_vec())))?,
            },
            8 => Message::Absent { sequence: from.u64()?, absent: from.ranks()? },
            9 => Message::Lost { rank: from.u32()?, cause: from.text()? },
            10 => Message::Goodbye,
            11 => Message::Blob(from.bytes(MAX_BLOB)?.to_vec()),
            _ => return Err(Garbled("kind")),
        };
        if from.0.is_empty() { Ok(message) } else { Err(Garbled("bytes after the end")) }
    }
}

impl Member {
    /// For an all-gather.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.member(self);
        out.0
    }

    /// What `to_bytes` wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Member, Garbled> {
        Reader(bytes).member()
    }
}

/// Lists are cut to this many ranks, so that a message about a huge job still fits a frame.
const MAX_RANKS: usize = 8192;

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    /// Cut at a character, where it is too long.
    fn text(&mut self, text: &str) {
        let end = text.floor_char_boundary(MAX_TEXT);
        self.bytes(&text.as_bytes()[..end]);
    }

    fn ranks(&mut self, ranks: &[Rank]) {
        let ranks = &ranks[..ranks.len().min(MAX_RANKS)];
        self.u32(ranks.len() as u32);
        for &rank in ranks {
            self.u32(rank);
        }
    }

    fn member(&mut self, member: &Member) {
        self.text(&member.host);
        self.u32(member.pid);
        let addresses = &member.addresses[..member.addresses.len().min(MAX_ADDRESSES)];
        self.u32(addresses.len() as u32);
        for address in addresses {
            match address.ip() {
                IpAddr::V4(ip) => self.bytes(&ip.octets()),
                IpAddr::V6(ip) => self.bytes(&ip.octets()),
            }
            self.u16(address.port());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Garbled> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Garbled("shorter than it says"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        Ok(*self.take(N)?.first_chunk().expect("take gave N bytes"))
    }

    fn u8(&mut self) -> Result<u8, Garbled> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Garbled> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Garbled> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Garbled> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Garbled> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Garbled("longer than allowed"));
        }
        self.take(len)
    }

    fn text(&mut self) -> Result<String, Garbled> {
        let bytes = self.bytes(MAX_TEXT)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Garbled("text is not UTF-8"))
    }

    /// A counted list. Memory grows with the bytes that are there, not with the count that they claim.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, Garbled>) -> Result<Vec<T>, Garbled> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn ranks(&mut self) -> Result<Vec<Rank>, Garbled> {
        let ranks = self.list(Self::u32)?;
        if ranks.len() > MAX_RANKS { Err(Garbled("too many ranks")) } else { Ok(ranks) }
    }

    fn member(&mut self) -> Result<Member, Garbled> {
        let host = self.text()?;
        let pid = self.u32()?;
        let addresses = self.list(|from| {
            let octets = from.bytes(16)?;
            let ip = match octets.len() {
                4 => IpAddr::from(*octets.first_chunk::<4>().expect("four octets")),
                16 => IpAddr::from(*octets.first_chunk::<16>().expect("sixteen octets")),
                _ => return Err(Garbled("address length")),
            };
            Ok(SocketAddr::new(ip, from.u16()?))
        })?;
        if addresses.len() > MAX_ADDRESSES {
            return Err(Garbled("too many addresses"));
        }
        Ok(Member { host, pid, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let member = ("[a-zäß]{0,20}", any::<u32>(), prop::collection::vec(any::<SocketAddr>(), 0..=4))
            .prop_map(|(host, pid, mut addresses)| {
                // Flow labels and scopes do not travel.
                addresses.iter_mut().for_each(|a| *a = SocketAddr::new(a.ip(), a.port()));
                Member { host, pid, addresses }
            });
        let entries = prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..50)), 0..9);
        let ranks = prop::collection::vec(any::<u32>(), 0..20);
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<u64>(), member.clone()).prop_map(
                |(rank, ranks, patience_ms, member)| Message::Join { rank, ranks, patience_ms, member }
            ),
            (any::<[u8; 32]>(), prop::option::of(member))
                .prop_map(|(session, parent)| Message::Welcome { session, parent }),
            (any::<u64>(), entries).prop_map(|(sequence, entries)| Message::Gather { sequence, entries }),
            ranks.prop_map(|absent| Message::Refusal(Refusal::Absent(absent))),
            (any::<u32>(), ".{0,9}").prop_map(|(rank, cause)| Message::Lost { rank, cause }),
            prop::collection::vec(any::<u8>(), 0..MAX_BLOB).prop_map(Message::Blob),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn messages_round_trip_and_no_shorter_or_longer_one_passes(message in message()) {
            let (kind, mut bytes) = message.encode();
            prop_assert_eq!(Message::decode(kind, &bytes), Ok(message));
            for len in 0..bytes.len() {
                prop_assert!(Message::decode(kind, &bytes[..len]).is_err());
            }
            bytes.push(0);
            prop_assert!(Message::decode(kind, &bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(kind in any::<u8>(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(kind, &bytes);
        }
    }
}

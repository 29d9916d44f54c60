//! What the ranks say to each other, as bytes. Pure: no socket, no clock, no key.
//!
//! A frame is `length: u32, kind: u8, payload, tag: 16 bytes`, little-endian; `length` counts the payload
//! only and is bounded by [`MAX_PAYLOAD`]. The [session](super::session) puts the tag behind it.

mod codec;
mod control;

use crate::control as node;
use crate::plan::Rank;
use codec::{Reader, Writer};
use std::net::SocketAddr;

/// Version of everything in this file and of the handshake. Both ends must have the same.
pub(super) const VERSION: u16 = 3;

/// Longest payload of a frame in bytes: what one connection can make its peer hold.
pub(super) const MAX_PAYLOAD: usize = 64 * 1024;

/// Longest blob of a swap and of an all-gather, in bytes.
pub(super) const MAX_BLOB: usize = 4096;

/// Bytes in front of a payload.
pub(super) const HEADER_BYTES: usize = 5;

/// Most addresses that a rank announces.
pub(super) const MAX_ADDRESSES: usize = 4;

/// Something that one end says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A rank to the root: here I am.
    Join { rank: Rank, ranks: u32, patience_ms: u64, member: Member },
    /// The root to a rank: all are here; connect to this parent.
    Welcome { session: [u8; 32], parent: Option<Member> },
    /// The root to a rank: it will not be.
    Refusal(Refusal),
    /// A rank to the root: its neighbours are connected, and will see it if it dies.
    Grown,
    /// To a neighbour in the control plane, or to a peer for a swap: who is speaking.
    Caller { rank: Rank },
    /// Between control nodes.
    Control(node::Message),
    /// One side of a swap.
    Blob(Vec<u8>),
    /// To a peer for a transport: who is speaking, and which of the two ranks' streams this shall be.
    Stream { rank: Rank, index: u16 },
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
            Message::Control(message) => {
                control::write(message, &mut out);
                7
            }
            Message::Blob(bytes) => {
                out.bytes(bytes);
                8
            }
            Message::Grown => 9,
            Message::Stream { rank, index } => {
                out.u32(*rank);
                out.u16(*index);
                10
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
            7 => Message::Control(control::read(&mut from)?),
            8 => Message::Blob(from.bytes(MAX_BLOB)?.to_vec()),
            9 => Message::Grown,
            10 => Message::Stream { rank: from.u32()?, index: from.u16()? },
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
        let ranks = prop::collection::vec(any::<u32>(), 0..20);
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<u64>(), member.clone()).prop_map(
                |(rank, ranks, patience_ms, member)| Message::Join { rank, ranks, patience_ms, member }
            ),
            (any::<[u8; 32]>(), prop::option::of(member))
                .prop_map(|(session, parent)| Message::Welcome { session, parent }),
            ranks.prop_map(|absent| Message::Refusal(Refusal::Absent(absent))),
            control::tests::message().prop_map(Message::Control),
            prop::collection::vec(any::<u8>(), 0..MAX_BLOB).prop_map(Message::Blob),
            (any::<u32>(), any::<u16>()).prop_map(|(rank, index)| Message::Stream { rank, index }),
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

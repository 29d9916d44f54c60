//! The messages of control nodes as bytes.

use super::codec::{Reader, Writer};
use super::{Garbled, MAX_BLOB};
use crate::control::{Agreement, End, EndKind, Entry, Fact, Loss, Message, Vote};

/// Longest state of a rank, and longest reason of an inquest.
const MAX_STATE: usize = 32 * 1024;

/// Longest offer in an agreement.
const MAX_OFFER: usize = 256;

pub(super) fn write(message: &Message, out: &mut Writer) {
    match message {
        Message::Ping { state } => {
            out.u8(1);
            out.bytes(state);
        }
        Message::Fact(Fact::Lost(loss)) => {
            out.u8(2);
            out.u32(loss.rank);
            out.text(&loss.cause);
            out.bytes(&loss.state);
        }
        Message::Fact(Fact::Left(rank)) => {
            out.u8(3);
            out.u32(*rank);
        }
        Message::Fact(Fact::Ended(end)) => {
            out.u8(4);
            out.u32(end.by);
            out.u8(end.kind as u8);
            out.long_text(&end.text, MAX_STATE);
        }
        Message::GatherUp { round, entries } => {
            out.u8(5);
            out.u64(*round);
            write_entries(entries, out);
        }
        Message::GatherDown { round, entries } => {
            out.u8(6);
            out.u64(*round);
            write_entries(entries, out);
        }
        Message::GatherFailed { round, absent } => {
            out.u8(7);
            out.u64(*round);
            out.ranks(absent);
        }
        Message::Vote { number, vote } => {
            out.u8(8);
            out.u64(*number);
            out.u32(vote.rank);
            out.u32(vote.head);
            out.u64(vote.flags);
            out.bytes(&vote.blob);
            out.u8(vote.decided.is_some() as u8);
            if let Some(agreement) = &vote.decided {
                write_agreement(agreement, out);
            }
        }
        Message::Decision { number, head, agreement } => {
            out.u8(9);
            out.u64(*number);
            out.u32(*head);
            write_agreement(agreement, out);
        }
        Message::Inquire { by, reason } => {
            out.u8(10);
            out.u32(*by);
            out.bytes(reason);
        }
        Message::Question { inquest } => {
            out.u8(11);
            out.u64(*inquest);
        }
        Message::Answers { inquest, entries } => {
            out.u8(12);
            out.u64(*inquest);
            write_entries(entries, out);
        }
    }
}

pub(super) fn read(from: &mut Reader<'_>) -> Result<Message, Garbled> {
    Ok(match from.u8()? {
        1 => Message::Ping { state: state(from)? },
        2 => Message::Fact(Fact::Lost(Loss { rank: from.u32()?, cause: from.text()?, state: state(from)? })),
        3 => Message::Fact(Fact::Left(from.u32()?)),
        4 => Message::Fact(Fact::Ended(End {
            by: from.u32()?,
            kind: match from.u8()? {
                1 => EndKind::Aborted,
                2 => EndKind::Revoked,
                3 => EndKind::Failed,
                4 => EndKind::Verdict,
                _ => return Err(Garbled("kind of an end")),
            },
            text: from.long_text(MAX_STATE)?,
        })),
        5 => Message::GatherUp { round: from.u64()?, entries: entries(from, MAX_BLOB)? },
        6 => Message::GatherDown { round: from.u64()?, entries: entries(from, MAX_BLOB)? },
        7 => Message::GatherFailed { round: from.u64()?, absent: from.ranks()? },
        8 => Message::Vote {
            number: from.u64()?,
            vote: Vote {
                rank: from.u32()?,
                head: from.u32()?,
                flags: from.u64()?,
                blob: from.bytes(MAX_OFFER)?.to_vec(),
                decided: match from.u8()? {
                    0 => None,
                    1 => Some(agreement(from)?),
                    _ => return Err(Garbled("flag of a decision")),
                },
            },
        },
        9 => Message::Decision { number: from.u64()?, head: from.u32()?, agreement: agreement(from)? },
        10 => Message::Inquire { by: from.u32()?, reason: state(from)? },
        11 => Message::Question { inquest: from.u64()? },
        12 => Message::Answers { inquest: from.u64()?, entries: entries(from, MAX_STATE)? },
        _ => return Err(Garbled("kind of a control message")),
    })
}

fn write_entries(entries: &[Entry], out: &mut Writer) {
    out.u32(entries.len() as u32);
    for (rank, bytes) in entries {
        out.u32(*rank);
        out.bytes(bytes);
    }
}

fn entries(from: &mut Reader<'_>, most: usize) -> Result<Vec<Entry>, Garbled> {
    from.list(|from| Ok((from.u32()?, from.bytes(most)?.to_vec())))
}

fn write_agreement(agreement: &Agreement, out: &mut Writer) {
    out.u64(agreement.flags);
    out.bytes(&agreement.blob);
    out.ranks(&agreement.gone);
}

fn agreement(from: &mut Reader<'_>) -> Result<Agreement, Garbled> {
    Ok(Agreement { flags: from.u64()?, blob: from.bytes(MAX_OFFER)?.to_vec(), gone: from.ranks()? })
}

fn state(from: &mut Reader<'_>) -> Result<Vec<u8>, Garbled> {
    from.bytes(MAX_STATE).map(<[u8]>::to_vec)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn message() -> impl Strategy<Value = Message> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..50);
        let entries =
            || prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..50)), 0..9);
        let ranks = || prop::collection::vec(any::<u32>(), 0..9);
        let agreement = || {
            (any::<u64>(), bytes(), ranks()).prop_map(|(flags, blob, gone)| Agreement { flags, blob, gone })
        };
        let kind = prop_oneof![
            Just(EndKind::Aborted),
            Just(EndKind::Revoked),
            Just(EndKind::Failed),
            Just(EndKind::Verdict)
        ];
        let vote = (any::<[u32; 2]>(), any::<u64>(), bytes(), prop::option::of(agreement()))
            .prop_map(|([rank, head], flags, blob, decided)| Vote { rank, head, flags, blob, decided });
        prop_oneof![
            bytes().prop_map(|state| Message::Ping { state }),
            (any::<u32>(), ".{0,9}", bytes())
                .prop_map(|(rank, cause, state)| Message::Fact(Fact::Lost(Loss { rank, cause, state }))),
            any::<u32>().prop_map(|rank| Message::Fact(Fact::Left(rank))),
            (any::<u32>(), kind, ".{0,40}").prop_map(|(by, kind, text)| Message::Fact(Fact::Ended(End {
                by,
                kind,
                text
            }))),
            (any::<u64>(), entries()).prop_map(|(round, entries)| Message::GatherUp { round, entries }),
            (any::<u64>(), entries()).prop_map(|(round, entries)| Message::GatherDown { round, entries }),
            (any::<u64>(), ranks()).prop_map(|(round, absent)| Message::GatherFailed { round, absent }),
            (any::<u64>(), vote).prop_map(|(number, vote)| Message::Vote { number, vote }),
            (any::<u64>(), any::<u32>(), agreement())
                .prop_map(|(number, head, agreement)| Message::Decision { number, head, agreement }),
            (any::<u32>(), bytes()).prop_map(|(by, reason)| Message::Inquire { by, reason }),
            any::<u64>().prop_map(|inquest| Message::Question { inquest }),
            (any::<u64>(), entries()).prop_map(|(inquest, entries)| Message::Answers { inquest, entries }),
        ]
    }
}

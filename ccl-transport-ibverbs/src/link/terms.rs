//! The second word between two ranks: queue pairs, and where pieces go.

use super::bytes::{Reader, Writer};
use crate::verbs::Remote;
use ccl_core::Rank;
use ccl_core::transport::Row;

/// Says that the bytes are ours, and in which version.
const MAGIC: u64 = 0x6962_7465_726d_0004;

/// Which queue pair of a connection: its way, and how many before it on that way are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) way: u16,
    pub(crate) turn: u16,
}

/// A new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newcomer {
    pub(crate) place: Place,
    /// Its number.
    pub(crate) number: u32,
    /// The number of its first packet.
    pub(crate) first_packet: u32,
}

/// One rank's word to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) rank: Rank,
    pub(crate) to_peer: Row,
    pub(crate) from_peer: Row,
    pub(crate) newcomers: Vec<Newcomer>,
    /// What datagrams to the rank must show.
    pub(crate) session: u64,
    /// For each pair of rails.
    pub(crate) rails: Vec<Landing>,
}

/// What a rank has at its end of a pair of rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Where the slots of the links from the peer begin; all links have room over each pair.
    pub(crate) rings: Remote,
    /// Where the lines of the links to the peer begin, behind which it writes its offers.
    pub(crate) lines: Remote,
    /// The number of the queue pair for datagrams.
    pub(crate) control: u32,
}

impl Terms {
    /// Queue pairs and pairs of rails that a word of 4096 bytes has room for.
    pub(crate) const MOST: usize = 140;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(MAGIC);
        out.u32(self.rank);
        for row in [self.to_peer, self.from_peer] {
            out.u32(row.count);
            out.u64(row.hash);
        }
        out.u16(self.newcomers.len() as u16);
        for Newcomer { place, number, first_packet } in &self.newcomers {
            out.u16(place.way);
            out.u16(place.turn);
            out.u32(*number);
            out.u32(*first_packet);
        }
        out.u64(self.session);
        out.u16(self.rails.len() as u16);
        for Landing { rings, lines, control } in &self.rails {
            for at in [rings, lines] {
                out.u64(at.address);
                out.u32(at.key);
            }
            out.u32(*control);
        }
        out.0
    }

    /// `None`: not a word of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Terms> {
        let mut bytes = Reader(bytes);
        (bytes.u64()? == MAGIC).then_some(())?;
        let rank = bytes.u32()?;
        let mut row = || Some(Row { count: bytes.u32()?, hash: bytes.u64()? });
        let (to_peer, from_peer) = (row()?, row()?);
        let newcomer = |bytes: &mut Reader<'_>| {
            let place = Place { way: bytes.u16()?, turn: bytes.u16()? };
            let number = bytes.u32().filter(|number| *number < 1 << 24)?;
            Some(Newcomer { place, number, first_packet: bytes.u32()? & 0xff_ffff })
        };
        let newcomers = (0..bytes.u16()?).map(|_| newcomer(&mut bytes)).collect::<Option<_>>()?;
        let session = bytes.u64()?;
        let landing = |bytes: &mut Reader<'_>| {
            let mut remote = || Some(Remote { address: bytes.u64()?, key: bytes.u32()? });
            let (rings, lines) = (remote()?, remote()?);
            Some(Landing { rings, lines, control: bytes.u32().filter(|number| *number < 1 << 24)? })
        };
        let rails = (0..bytes.u16()?).map(|_| landing(&mut bytes)).collect::<Option<_>>()?;
        bytes.end(Terms { rank, to_peer, from_peer, newcomers, session, rails })
    }
}

/// The third word: ready, or what went wrong, so that the other end can say so too.
pub(crate) fn encode_ready(outcome: Result<(), &str>) -> Vec<u8> {
    match outcome {
        Ok(()) => vec![1],
        Err(why) => {
            let mut out = Writer(vec![0]);
            let plain: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            out.text(&plain, 255);
            out.0
        }
    }
}

/// What the peer's third word says; `None`: it is none of this version.
pub(crate) fn decode_ready(bytes: &[u8]) -> Option<Result<(), String>> {
    let mut bytes = Reader(bytes);
    match bytes.u8()? {
        1 => bytes.end(Ok(())),
        0 => {
            let why = bytes.text()?;
            bytes.end(Err(why))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_way_and_nothing_else_passes() {
        let newcomer = |n: u16| Newcomer {
            place: Place { way: n, turn: n + 1 },
            number: 0xff_ff00 + u32::from(n),
            first_packet: 0x1234,
        };
        let terms = Terms {
            rank: 2,
            to_peer: Row::of(&[0, 3]),
            from_peer: Row::of(&[]),
            newcomers: (0..Terms::MOST as u16 / 2).map(newcomer).collect(),
            session: u64::MAX - 1,
            rails: vec![
                Landing {
                    rings: Remote { address: u64::MAX, key: 5 },
                    lines: Remote { address: 1, key: u32::MAX },
                    control: 0xff_ffff
                };
                Terms::MOST / 2
            ],
        };
        let bytes = terms.encode();
        assert!(bytes.len() <= 4096, "{}", bytes.len());
        assert_eq!(Terms::decode(&bytes), Some(terms));
        assert!((0..bytes.len()).all(|n| Terms::decode(&bytes[..n]).is_none()));
        assert_eq!(Terms::decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn a_failure_travels_as_text() {
        assert_eq!(decode_ready(&encode_ready(Ok(()))), Some(Ok(())));
        let told =
            decode_ready(&encode_ready(Err(&format!("no\n{}", "x".repeat(400))))).unwrap().unwrap_err();
        assert!(told.starts_with("no x") && told.len() <= 255);
        assert_eq!([decode_ready(&[]), decode_ready(&[2]), decode_ready(&[1, 0])], [None, None, None]);
    }
}

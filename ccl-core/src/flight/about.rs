//! A call in four words.

use super::CallState;
use crate::algorithms;
use crate::engine::mix;
use crate::plan::{Collective, Rank};
use crate::{DataType, ReduceOp};

/// What there is to say of a call before it begins, packed once when the call is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// From the lowest byte: name, type, operator, algorithm, and in the upper half the root or the peer.
    pub(super) what: u64,
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) fingerprint: u64,
}

/// Names of calls, by their codes: the collectives', then those of the two ends of a transfer.
const SEND: u8 = 16;
const RECEIVE: u8 = 17;
/// What a call does not have.
const NONE: u8 = u8::MAX;

/// The two ends of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It sends.
    Send,
    /// It receives.
    Receive,
}

impl About {
    /// A collective. `count` is 0 where its blocks differ.
    pub fn collective(
        (collective, root): (Collective, Rank),
        (count, dtype, op): (usize, DataType, ReduceOp),
        algorithm: &str,
        bytes: usize,
        fingerprint: u64,
    ) -> About {
        let op = if collective.reduces() { op.code() } else { NONE };
        let algorithm = algorithms::all().iter().position(|a| a.name() == algorithm);
        let algorithm = algorithm.and_then(|at| u8::try_from(at).ok()).unwrap_or(NONE);
        let what = pack([collective as u8, dtype as u8, op, algorithm], root);
        About { what, count: count as u64, bytes: bytes as u64, fingerprint }
    }

    /// One end of a transfer.
    pub fn transfer(end: End, peer: Rank, count: usize, dtype: DataType, fingerprint: u64) -> About {
        let name = match end {
            End::Send => SEND,
            End::Receive => RECEIVE,
        };
        let what = pack([name, dtype as u8, NONE, NONE], peer);
        let bytes = (count as u64).saturating_mul(dtype.size() as u64);
        About { what, count: count as u64, bytes, fingerprint }
    }

    /// Bytes of the longer buffer.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the ranks must have in common, without the call's number.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    #[inline]
    pub(super) fn is_transfer(&self) -> bool {
        self.what as u8 >= SEND
    }

    /// In words; `None` if no call has these numbers.
    pub(super) fn describe(&self) -> Option<CallState> {
        let [name, dtype, op, algorithm, other @ ..] = self.what.to_le_bytes();
        let other = Rank::from_le_bytes(other);
        let dtype = DataType::ALL.into_iter().find(|known| *known as u8 == dtype)?;
        let mut call = CallState {
            count: self.count,
            dtype: dtype.name().to_string(),
            bytes: self.bytes,
            fingerprint: self.fingerprint,
            ..CallState::default()
        };
        if name == SEND || name == RECEIVE {
            call.name = if name == SEND { "send" } else { "receive" }.to_string();
            call.peer = Some(other);
            return Some(call);
        }
        let collective = *Collective::ALL.get(usize::from(name))?;
        call.name = collective.name().to_string();
        call.root = collective.rooted().then_some(other);
        if op != NONE {
            call.op = Some(operators().nth(usize::from(op))?.to_string());
        }
        if algorithm != NONE {
            call.algorithm = algorithms::all().get(usize::from(algorithm))?.name().to_string();
        }
        Some(call)
    }
}

fn pack(codes: [u8; 4], other: u32) -> u64 {
    u64::from(u32::from_le_bytes(codes)) | u64::from(other) << 32
}

/// Names by their codes; the last one has a factor of its own on each rank.
fn operators() -> impl Iterator<Item = &'static str> {
    ReduceOp::ALL.into_iter().map(ReduceOp::name).chain(["mulsum"])
}

/// Stands for the names that the codes mean, so that a reader from another version does not misread them.
pub(super) fn vocabulary() -> u64 {
    let collectives = Collective::ALL.into_iter().map(Collective::name);
    let types = DataType::ALL.into_iter().map(DataType::name);
    let algorithms = algorithms::all().iter().map(|algorithm| algorithm.name());
    let names = collectives.chain(types).chain(operators()).chain(algorithms);
    names.fold(1, |hash, name| name.bytes().fold(mix(hash, 0), |hash, byte| mix(hash, u64::from(byte))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_and_both_ends_of_a_transfer_come_back_in_words() {
        for collective in Collective::ALL {
            let about = About::collective((collective, 3), (7, DataType::F64, ReduceOp::Max), "ring", 56, 9);
            let call = about.describe().expect("a call");
            assert_eq!(call.name, collective.name());
            assert_eq!((call.count, call.bytes, call.fingerprint), (7, 56, 9));
            assert_eq!(call.op.as_deref(), collective.reduces().then_some("max"));
            assert_eq!(call.root, collective.rooted().then_some(3));
            assert_eq!((call.dtype.as_str(), call.algorithm.as_str()), ("double", "ring"));
            assert!(!about.is_transfer());
        }
        let sends = About::transfer(End::Send, 5, 10, DataType::F32, 1);
        let call = sends.describe().expect("a call");
        assert_eq!((call.name.as_str(), call.peer, call.bytes), ("send", Some(5), 40));
        assert!(sends.is_transfer());
        let receives = About::transfer(End::Receive, 5, 10, DataType::F32, 1);
        assert_eq!(receives.describe().expect("a call").name, "receive");
    }

    #[test]
    fn numbers_that_no_call_has_are_refused() {
        for byte in 0..3 {
            let about =
                About::collective((Collective::AllReduce, 0), (1, DataType::U8, ReduceOp::Sum), "ring", 1, 0);
            let wrong = About { what: about.what | 0xfe << (8 * byte), ..about };
            assert_eq!(wrong.describe(), None, "byte {byte}");
        }
    }
}

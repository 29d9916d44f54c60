//! 64 bits that stand for a call: what ranks must agree on.

use super::Call;
use crate::engine::mix;
use crate::{Collective, DataType};
use std::ops::Range;

/// What the arguments of a call and the way it is done come to, on the communicator of this identity with this number of
/// hosts. All ranks must have the same.
pub(super) fn of_call((identity, hosts): (u64, u32), call: &Call, algorithm: &str, tile_bytes: usize) -> u64 {
    let mut hash = mix(identity, call.collective as u64);
    hash = mix(hash, call.count as u64);
    hash = mix(hash, call.dtype as u64);
    // The operator of a collective that does not reduce means nothing. A factor is each rank's own.
    hash = mix(hash, if call.collective.reduces() { u64::from(call.op.code()) + 1 } else { 0 });
    hash = mix(hash, u64::from(call.root));
    hash = mix(hash, tile_bytes as u64);
    hash = mix(hash, u64::from(hosts));
    algorithm.bytes().fold(hash, |hash, byte| mix(hash, u64::from(byte)))
}

/// What a call with blocks of different lengths adds: all lengths where all ranks know them, nothing where they are the
/// pair's business.
pub(super) fn of_blocks(fingerprint: u64, blocks: &[Range<usize>]) -> u64 {
    blocks.iter().fold(mix(fingerprint, blocks.len() as u64), |hash, block| mix(hash, block.len() as u64))
}

/// What a sender and its receiver agree on.
pub(super) fn of_transfer(identity: u64, dtype: DataType, count: usize) -> u64 {
    mix(mix(mix(identity, Collective::SendRecv as u64), dtype as u64), count as u64)
}

/// The tag of one call's pieces: its fingerprint, and which call of the communicator it is. Two calls with one number have two
/// tags, and one call with two numbers has: a difference of fingerprints stays, and an odd factor maps different numbers to different ones. Less than
/// [`mix`], for it is on every call's path.
#[inline(always)]
pub(super) fn tag(fingerprint: u64, sequence: u64) -> u64 {
    fingerprint.wrapping_add(sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Factor, ReduceOp};

    #[test]
    fn every_argument_counts() {
        let call = Call {
            collective: Collective::AllReduce,
            count: 5,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
        };
        let variants = [
            of_call((7, 1), &call, "ring", 64),
            of_call((7, 1), &Call { collective: Collective::ReduceScatter, ..call }, "ring", 64),
            of_call((7, 1), &Call { count: 6, ..call }, "ring", 64),
            of_call((7, 1), &Call { dtype: DataType::F64, ..call }, "ring", 64),
            of_call((7, 1), &Call { op: ReduceOp::Max, ..call }, "ring", 64),
            of_call((7, 1), &Call { root: 1, ..call }, "ring", 64),
            of_call((7, 1), &call, "tree", 64),
            of_call((7, 1), &call, "ring", 128),
            of_call((8, 1), &call, "ring", 64),
            of_call((7, 2), &call, "ring", 64),
        ];
        let distinct: std::collections::BTreeSet<_> = variants.iter().collect();
        assert_eq!(distinct.len(), variants.len());
        let tags = variants.iter().flat_map(|call| (0..1000).map(|sequence| tag(*call, sequence)));
        let tags: std::collections::BTreeSet<_> = tags.collect();
        assert_eq!(tags.len(), 1000 * variants.len());
        let scaled = |factor| {
            let factor = Factor::float(DataType::F32, factor).expect("a float type");
            of_call((7, 1), &Call { op: ReduceOp::PreMulSum(factor), ..call }, "ring", 64)
        };
        assert_eq!(scaled(0.5), scaled(2.0), "a factor does not count");
        assert!(!distinct.contains(&scaled(0.5)), "but the operator does");
        let gather = Call { collective: Collective::AllGather, ..call };
        let same = of_call((7, 1), &Call { op: ReduceOp::Max, ..gather }, "ring", 64);
        assert_eq!(of_call((7, 1), &gather, "ring", 64), same, "an operator that is not used does not count");
    }
}

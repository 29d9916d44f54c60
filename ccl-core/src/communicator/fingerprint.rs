//! 64 bits that stand for a call: what ranks must agree on.

use super::Call;

/// Mixes one word into a fingerprint. The constants are those of the splitmix64 generator's finaliser,
/// whose every output bit depends on every input bit.
#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    let mut x = hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the arguments of a call and the way it is done come to. All ranks must have the same.
pub(super) fn of_call(call: &Call, algorithm: &str, tile_bytes: usize) -> u64 {
    let mut hash = mix(0, call.collective as u64);
    hash = mix(hash, call.count as u64);
    hash = mix(hash, call.dtype as u64);
    // The operator of a collective that does not reduce means nothing. A factor is each rank's own.
    hash = mix(hash, if call.collective.reduces() { u64::from(call.op.code()) + 1 } else { 0 });
    hash = mix(hash, u64::from(call.root));
    hash = mix(hash, tile_bytes as u64);
    algorithm.bytes().fold(hash, |hash, byte| mix(hash, u64::from(byte)))
}

/// The tag of one call's pieces: its fingerprint, and which call of the communicator it is.
#[inline]
pub(super) fn tag(fingerprint: u64, sequence: u64) -> u64 {
    mix(fingerprint, sequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DataType, Factor, ReduceOp};

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
            of_call(&call, "ring", 64),
            of_call(&Call { collective: Collective::ReduceScatter, ..call }, "ring", 64),
            of_call(&Call { count: 6, ..call }, "ring", 64),
            of_call(&Call { dtype: DataType::F64, ..call }, "ring", 64),
            of_call(&Call { op: ReduceOp::Max, ..call }, "ring", 64),
            of_call(&Call { root: 1, ..call }, "ring", 64),
            of_call(&call, "tree", 64),
            of_call(&call, "ring", 128),
            tag(of_call(&call, "ring", 64), 0),
            tag(of_call(&call, "ring", 64), 1),
        ];
        let distinct: std::collections::BTreeSet<_> = variants.iter().collect();
        assert_eq!(distinct.len(), variants.len());
        let scaled = |factor| {
            let factor = Factor::float(DataType::F32, factor).expect("a float type");
            of_call(&Call { op: ReduceOp::PreMulSum(factor), ..call }, "ring", 64)
        };
        assert_eq!(scaled(0.5), scaled(2.0), "a factor does not count");
        assert!(!distinct.contains(&scaled(0.5)), "but the operator does");
        let gather = Call { collective: Collective::AllGather, ..call };
        let same = of_call(&Call { op: ReduceOp::Max, ..gather }, "ring", 64);
        assert_eq!(of_call(&gather, "ring", 64), same, "an operator that is not used does not count");
    }
}

//! What the fuzzers run; see `ccl_core::fuzzing`.

use crate::blob::Blob;
use crate::ring::Laps;
use crate::shm::Geometry;
use ccl_core::fuzzing::Target;
use ccl_core::transport::Row;

/// Every target of this crate.
pub const TARGETS: [Target; 1] = [("blob", blob, seeds)];

/// The word of a peer is refused, or is what it is written as.
pub fn blob(data: &[u8]) {
    if let Some(blob) = Blob::decode(data) {
        assert_eq!(blob.encode(), data, "{blob:?}");
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let blob = Blob {
        rank: 3,
        process: 1 << 100,
        segment: 2,
        token: u128::MAX,
        geometry: Geometry { laps: Laps { least: 4, most: 8 }, slot_bytes: 8192, max_links: 9 },
        wants_descriptor: true,
        barrier: false,
        first: 5,
        to_peer: Row::of(&[0, 7]),
        from_peer: Row::of(&[]),
    };
    vec![("good".into(), blob.encode())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kept_input_passes() {
        ccl_core::fuzzing::replay(&TARGETS, concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"));
    }
}

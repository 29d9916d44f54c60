//! Mixing words into the 64 bits that pieces carry.

/// Mixes one word into a fingerprint. The constants are those of the splitmix64 generator's finaliser,
/// whose every output bit depends on every input bit.
#[inline]
pub fn mix(hash: u64, word: u64) -> u64 {
    let mut x = hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

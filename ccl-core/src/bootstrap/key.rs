//! The secret that a job shares, and what is derived from it.

use crate::error::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt;

/// Bytes of a secret, of a nonce and of a whole MAC.
pub(super) const KEY_BYTES: usize = 32;

/// Bytes of the MAC behind each frame: HMAC-SHA256, cut to 128 bits.
pub(super) const TAG_BYTES: usize = 16;

/// A secret of the job, or a key derived from it. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) [u8; KEY_BYTES]);

impl Key {
    /// A fresh one, from the system's random numbers.
    pub(super) fn random() -> Result<Key> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|e| {
            let cause = std::io::Error::other(e.to_string());
            Error::system("getrandom for a secret", cause, "check that /dev/urandom is readable")
        })?;
        Ok(Key(bytes))
    }

    /// One that everybody derives who knows `seed`.
    pub(super) fn from_seed(seed: &[u8]) -> Key {
        Key(Sha256::new().chain_update(b"rdmaccl rendezvous 1").chain_update(seed).finalize().into())
    }

    /// The key for one purpose. Each part is preceded by its length, so that no two lists collide.
    pub(super) fn derive(&self, parts: &[&[u8]]) -> Key {
        Key(self.mac(parts).finalize().into_bytes().into())
    }

    /// The MAC over `parts`, as sent behind a frame.
    pub(super) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        let whole: [u8; KEY_BYTES] = self.mac(parts).finalize().into_bytes().into();
        *whole.first_chunk().expect("a tag is shorter than a MAC")
    }

    /// Whether `tag` is the MAC over `parts`; takes the same time wherever it differs.
    pub(super) fn verifies(&self, parts: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        self.mac(parts).verify_truncated_left(tag).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_division_into_parts_counts() {
        let key = Key::from_seed(b"seed");
        assert_ne!(key.derive(&[b"ab", b"c"]), key.derive(&[b"a", b"bc"]));
        let tag = key.tag(&[b"ab", b"c"]);
        assert!(key.verifies(&[b"ab", b"c"], &tag));
        assert!(!key.verifies(&[b"a", b"bc"], &tag));
        assert!(!Key::from_seed(b"other").verifies(&[b"ab", b"c"], &tag));
    }

    #[test]
    fn debug_hides_it() {
        assert_eq!(format!("{:?}", Key([7; KEY_BYTES])), "Key(secret)");
    }
}

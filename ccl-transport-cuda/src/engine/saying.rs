//! What ranks tell each other after a step that all of them make: that it went well, with words for the others, or why not.

use ccl_core::{Error, Result};

const WELL: u8 = 1;
const NOT: u8 = 0;
/// Bytes of a reason that is told.
const REASON: usize = 1000;

/// A rank's words for the others, or why it has none.
pub fn told(words: std::result::Result<&[u8], &Error>) -> Vec<u8> {
    match words {
        Ok(words) => std::iter::once(WELL).chain(words.iter().copied()).collect(),
        Err(error) => {
            let text = error.to_string();
            std::iter::once(NOT).chain(text.bytes().take(REASON)).collect()
        }
    }
}

/// The words of all, or the first rank's reason that has none.
pub fn heard(said: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let one = |(rank, words): (usize, &Vec<u8>)| match words.split_first() {
        Some((&WELL, words)) => Ok(words.to_vec()),
        other => {
            let text = other.map_or_else(Default::default, |(_, text)| String::from_utf8_lossy(text));
            Err(Error::unsupported(format!("rank {rank}: {text}"), "the ranks do without"))
        }
    };
    said.iter().enumerate().map(one).collect()
}

//! Communicators of some of a communicator's ranks.

use crate::{Communicator, ErrorKind, Rank, Result, UNIQUE_ID_BYTES, UniqueId};
use ccl_core::bootstrap::Meeting;
use std::time::Duration;

/// How long a communicator may take to know that it has ended, after a peer knew and left a split for it.
const EXPLANATION: Duration = Duration::from_millis(200);

/// What a rank wants: a colour, if it takes part, and a key.
const WORD_BYTES: usize = 9;

impl Communicator {
    /// Splits this communicator: ranks that give the same colour become a new one, numbered by their keys, and by their
    /// ranks where keys are equal. A rank without colour gets none. All ranks must call it, at the same place
    /// among their calls; this communicator goes on working.
    pub fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let mut word = [0; WORD_BYTES];
        if let Some(color) = color {
            word[0] = 1;
            word[1..5].copy_from_slice(&color.to_le_bytes());
        }
        word[5..].copy_from_slice(&key.to_le_bytes());
        let words = self.core().share(&word)?;

        let mut members: Vec<(i32, Rank)> = Vec::new();
        for (rank, theirs) in (0..).zip(&words) {
            let theirs: [u8; WORD_BYTES] =
                theirs.as_slice().try_into().map_err(|_| ErrorKind::Malformed {
                    what: format!("word of rank {rank} in a split"),
                    cause: format!("{} bytes instead of {WORD_BYTES}", theirs.len()),
                })?;
            if color.is_some() && theirs[..5] == word[..5] {
                let [.., a, b, c, d] = theirs;
                members.push((i32::from_le_bytes([a, b, c, d]), rank));
            }
        }
        members.sort_unstable();

        // The first of each group makes the place where the group meets; everybody hears of all of them, so that a
        // failure here is known there.
        let config = self.core().config().clone();
        let leader = members.first().map(|(_, rank)| *rank);
        let made = match leader == Some(self.rank()) && members.len() > 1 {
            true => Some(Meeting::open(&config)),
            false => None,
        };
        let id = made.as_ref().and_then(|made| made.as_ref().ok()).map(Meeting::id);
        let ids = self.core().share(id.map_or(&[], |id| &id.as_bytes()[..]))?;
        if let Some(Err(error)) = made {
            return Err(error);
        }

        let Some(leader) = leader else { return Ok(None) };
        let rank = members.iter().position(|(_, rank)| *rank == self.rank()).unwrap_or_default();
        let builder = Communicator::builder().rank(rank as Rank).size(members.len() as u32).config(config);
        let builder = self.on_same_device(builder);
        if members.len() == 1 {
            return builder.build().map(Some);
        }
        let id: &[u8; UNIQUE_ID_BYTES] =
            ids[leader as usize].as_slice().try_into().map_err(|_| ErrorKind::Bootstrap {
                what: format!(
                    "rank {leader}, which leads a group of a split, could not make a meeting place for it"
                ),
                source: None,
            })?;
        let mut builder = builder.unique_id(UniqueId::from_bytes(id)?);
        // Whoever waits there hears of it when this communicator is aborted, or loses one who might have been awaited.
        let (own, child) = (self.abort_handle(), builder.abort_handle());
        own.health().precede(child.health(), &[]);
        let joined = own.health().check().and_then(|()| builder.build());
        let joined = own.health().part().and(joined);
        // What has ended this communicator has ended the joining too, in words that name its own ranks.
        joined.map(Some).map_err(|error| match error.kind() {
            ErrorKind::PeerLost { .. } | ErrorKind::Ended { .. } => {
                own.health().wait_for_error(EXPLANATION).unwrap_or(error)
            }
            _ => own.error().unwrap_or(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AbortHandle, Config};

    #[test]
    fn the_end_of_the_whole_ends_a_part_for_all_its_ranks() {
        let id = UniqueId::create(&Config::default()).unwrap();
        let builder = |rank| Communicator::builder().rank(rank).size(2).unique_id(id);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let whole = AbortHandle::default();
                let mut builder = builder(1);
                whole.health().precede(builder.abort_handle().health(), &[]);
                let joined = builder.build();
                whole.revoke("by order");
                let error = whole.health().part().and(joined).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Ended { how: "revoked", .. }), "{error}");
            });
            // It knows nothing of a whole.
            let error = builder(0).build().and_then(|mut part| part.barrier()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Ended { peer: 1, how: "broken", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("made of has ended") && text.contains("by order"), "{text}");
        });
    }
}

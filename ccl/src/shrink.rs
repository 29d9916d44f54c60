//! Going on without those who are gone.

use crate::{
    AbortHandle, Agreement, Communicator, Error, ErrorKind, Rank, Result, UNIQUE_ID_BYTES, UniqueId,
};
use ccl_core::bootstrap::Meeting;

/// What all flags of an agreement must have for the new communicator to stand.
const STANDS: u64 = 1;

impl Communicator {
    /// A communicator of the ranks that are left, numbered in their old order; `exclude` names ranks to leave behind
    /// that are alive, and is mostly empty: who is dead is found out and agreed on, also when more die meanwhile. All
    /// ranks that are left must call it, with the same `exclude`, at the same place among their agreements.
    ///
    /// It works after an error, a death or a [`revoke`](Communicator::revoke), as the last use of this communicator but for
    /// dropping it; and on one that is well, which then goes on working unless somebody was excluded. The new
    /// communicator has its own connections and links, where nothing that was sent here can arrive.
    pub fn shrink(&mut self, exclude: &[Rank]) -> Result<Communicator> {
        let (rank, size) = (self.rank(), self.size());
        if let Some(wrong) = exclude.iter().find(|other| **other >= size || **other == rank) {
            return Err(Error::invalid(
                format!("rank {wrong} excluded by rank {rank} of {size}"),
                "name other ranks of the communicator; a rank that leaves drops its communicator instead",
            ));
        }
        if !exclude.is_empty() {
            self.core().exclude(exclude);
        }
        let mut gone = self.agree_on_the_gone(exclude)?;
        // Each round that fails has lost a rank.
        for _ in 0..size {
            match self.found(&gone)? {
                Founded::Stands(communicator) => return Ok(*communicator),
                Founded::Again(now) => gone = now,
            }
        }
        Err(ErrorKind::Broken("shrinking it failed as often as it has ranks".into()).into())
    }

    /// Who is gone, once all know of those who shall be.
    fn agree_on_the_gone(&mut self, exclude: &[Rank]) -> Result<Vec<Rank>> {
        let mut gone = self.agree(0)?.gone;
        // The head of the first agreement may have decided before it heard of them; it has by the next.
        while !exclude.iter().all(|rank| gone.contains(rank)) {
            gone = self.agree(0)?.gone;
        }
        Ok(gone)
    }

    /// Tries to make a communicator of all who are not gone, and agrees on whether it stands.
    fn found(&mut self, gone: &[Rank]) -> Result<Founded> {
        let members: Vec<Rank> = (0..self.size()).filter(|rank| !gone.contains(rank)).collect();
        let config = self.core().config().clone();
        let Some(place) = members.iter().position(|rank| *rank == self.rank()) else {
            return Err(ErrorKind::Excluded { cause: "the others agreed that it is gone".into() }.into());
        };
        let builder = Communicator::builder().rank(place as Rank).size(members.len() as u32).config(config);
        let builder = self.on_same_device(builder);
        if members.len() == 1 {
            return builder.build().map(Box::new).map(Founded::Stands);
        }
        // The lowest makes the place where they meet. It ends with this try, however that ends.
        let meeting = (place == 0).then(|| Meeting::open(self.core().config())).transpose();
        let blob = match &meeting {
            Ok(Some(meeting)) => meeting.id().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let told = self.core().agree(0, &blob)?;
        let joined = meeting.and_then(|_meeting| self.meet(&told, gone, builder));
        let flags = if joined.is_ok() { STANDS } else { 0 };
        let agreement = self.agree(flags)?;
        let complete = !members.iter().any(|member| agreement.gone.contains(member));
        match joined {
            Ok(communicator) if agreement.flags & STANDS != 0 && complete => {
                Ok(Founded::Stands(Box::new(communicator)))
            }
            // Whoever failed for a reason of its own says so, and the others go on when it has left.
            Err(error) if complete && !is_of_a_peer(&error) => Err(error),
            _ => Ok(Founded::Again(agreement.gone)),
        }
    }

    fn meet(&mut self, told: &Agreement, gone: &[Rank], builder: crate::Builder) -> Result<Communicator> {
        let id: &[u8; UNIQUE_ID_BYTES] = told.blob.as_slice().try_into().map_err(|_| {
            Error::from(ErrorKind::Bootstrap {
                what: "the rank that leads a shrink could not make a meeting place for it".into(),
                source: None,
            })
        })?;
        let abort = AbortHandle::default();
        let own = self.abort_handle();
        own.health().precede(abort.health(), gone);
        let joined = builder.unique_id(UniqueId::from_bytes(id)?).aborted_by(abort).build();
        own.health().part().and(joined)
    }
}

/// What came of a try.
enum Founded {
    Stands(Box<Communicator>),
    /// With those who are gone by now.
    Again(Vec<Rank>),
}

/// Whether the fault lies with others, who are gone or will be.
fn is_of_a_peer(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PeerLost { .. }
            | ErrorKind::Timeout { .. }
            | ErrorKind::Ended { .. }
            | ErrorKind::Bootstrap { .. }
    )
}

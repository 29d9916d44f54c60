//! Telling peers of shared memory, and mapping what they have told of.

use crate::connect::{broken, system};
use crate::lending::{Place, Told};
use crate::mailbox::Letter;
use crate::shm::{Loan, region};
use crate::transport::ShmTransport;
use ccl_core::kernels::Piece;
use ccl_core::transport::{ReceiverId, SenderId};
use ccl_core::{Rank, Result};

impl ShmTransport {
    /// Tells all peers of a sender; whether they know now. None of the reasons why they may not is an error:
    /// then pieces go through slots.
    #[cold]
    pub(crate) fn tell_all(&mut self, to: SenderId, place: Place) -> bool {
        let links = self.senders[to.0 as usize].links.clone();
        links.iter().all(|&link| self.tell(self.outgoing[link as usize].key.to, place))
    }

    /// Tells a peer where a region can be mapped, unless it knows; whether it does now.
    pub(crate) fn tell(&mut self, peer: Rank, place: Place) -> bool {
        let next = match self.lending.told(place, peer) {
            Told::Yes => return true,
            Told::Never => return false,
            Told::No { pieces: 0, next } => next,
            Told::No { pieces, next } => {
                self.lending.note(place, peer, Told::No { pieces: pieces - 1, next });
                return false;
            }
        };
        let later = Told::No { pieces: next, next: next.saturating_mul(2) };
        let Some((region, number)) = self.lending.lend(place, &self.segment) else { return false };
        let told = match (self.peers.get(&peer).map(|known| known.mailbox), &self.mailbox) {
            // It finds the region by its number.
            (Some(None), _) => Told::Yes,
            (Some(Some(to)), Some(mailbox)) => match mailbox.post(self.rank, Some(number), region.fd(), to) {
                Ok(true) => Told::Yes,
                // Its mailbox is full, until it reads its mail.
                Ok(false) => later,
                Err(error) => {
                    tracing::debug!(rank = self.rank, peer, %error, "shared memory cannot be passed on");
                    Told::Never
                }
            },
            _ => later,
        };
        self.lending.note(place, peer, told);
        told == Told::Yes
    }

    /// Tells all peers that are connected of the region in which a piece lies; whether there is one. Reads the mail
    /// too, since the peers may do the same.
    pub(crate) fn show(&mut self, piece: Piece) -> Result<bool> {
        self.read_mail()?;
        let Some(place) = self.lending.find(piece) else { return Ok(false) };
        let mut peers: Vec<_> = self.outgoing.iter().map(|link| link.key.to).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            // One that cannot be told now is told when it is sent a piece.
            self.tell(peer, place);
        }
        Ok(true)
    }

    /// Maps what the message at hand of this link names, and everything else that is in the mail.
    pub(crate) fn borrow(&mut self, peer: Rank, from: ReceiverId) -> Result<()> {
        self.tidy_loans();
        let known = &self.peers[&peer];
        if known.mailbox.is_none() {
            let number = self.incoming[from.0 as usize].number();
            let region =
                number.and_then(|number| Some((number, region::lent_here(known.segment.id(), number)?)));
            if let Some((number, region)) = region {
                self.borrowed[known.lender as usize].keep(Loan::here(number, region));
            }
            return Ok(());
        }
        self.read_mail()
    }

    /// Maps everything that is in the mail.
    pub(crate) fn read_mail(&mut self) -> Result<()> {
        while let Some(letter) = self.letter()? {
            self.borrow_from(letter)?;
        }
        Ok(())
    }

    /// The next letter in the mail.
    pub(crate) fn letter(&self) -> Result<Option<Letter>> {
        let Some(mailbox) = &self.mailbox else { return Ok(None) };
        mailbox.take().map_err(|e| system(self.rank, "receiving descriptors", e))
    }

    /// Maps what a letter brings, if it is of a peer and of lent memory.
    pub(crate) fn borrow_from(&mut self, letter: Letter) -> Result<()> {
        let Letter { from, number: Some(number), fd } = letter else { return Ok(()) };
        let Some(peer) = self.peers.get(&from) else { return Ok(()) };
        let loan = Loan::there(number, &fd).map_err(|what| broken(from, what))?;
        self.borrowed[peer.lender as usize].keep(loan);
        Ok(())
    }

    /// Unmaps what peers have freed, except where a piece is held that may lie in it.
    pub(crate) fn tidy_loans(&mut self) {
        for peer in self.peers.values() {
            if self.borrowed[peer.lender as usize].is_empty() {
                continue;
            }
            let holds = |link: &crate::shm::Incoming| link.lender == peer.lender && link.holds_loan();
            if !self.incoming.iter().any(holds) {
                self.borrowed[peer.lender as usize].tidy(peer.segment.ledger());
            }
        }
    }
}

//! Connections that the overlay needs and that are not there.

use super::{Node, Part};
use crate::control::types::{Action, Loss};
use crate::plan::Rank;
use std::time::Duration;

/// How long a rank waits for another that should connect to it.
pub(super) const AWAIT_DIAL: Duration = Duration::from_millis(200);

/// Ranks that are dialled together in search of one that answers.
const MOST_WAYS: usize = 64;

impl Node {
    /// Sees to it that all connections that the overlay needs are there or under way. The lower end of one
    /// connects after `patience`, the upper one later, if it must.
    pub(super) fn plan_dials(&mut self, patience: Duration) {
        if let Some(peer) = self.overlay.attachment()
            && !self.links.is_linked(peer)
        {
            self.dials.plan(peer, self.now + patience);
        }
        // Who leaves waits for nobody.
        let await_dial = if self.part == Part::Takes { AWAIT_DIAL } else { patience };
        for &peer in self.overlay.attached().iter().filter(|peer| !self.links.is_linked(**peer)) {
            self.dials.plan(peer, self.now + await_dial);
        }
        if self.dials.has_suspects() {
            self.dial_past_suspects();
        }
    }

    /// Whoever comes after suspects may know what became of them.
    pub(super) fn dial_past_suspects(&mut self) {
        let suspect = |rank: Rank| self.dials.is_suspect(rank);
        let (mut suspects, mut above) = (0, Vec::new());
        for peer in self.overlay.ways() {
            if suspect(peer) {
                suspects += 1;
            } else if self.links.is_linked(peer) || above.len() == suspects || above.len() == MOST_WAYS {
                break;
            } else {
                // As many again as have not answered, so that a thousand are passed in ten steps.
                above.push(peer);
            }
        }
        let mut below = self.overlay.attached_without(&suspect);
        below.retain(|peer| !self.links.is_linked(*peer));
        above.into_iter().for_each(|peer| self.dials.plan(peer, self.now));
        below.into_iter().for_each(|peer| self.dials.plan(peer, self.now + AWAIT_DIAL));
    }

    /// Whether this rank is connected to its attachment, if it has one.
    fn is_settled(&self) -> bool {
        self.overlay.attachment().is_none_or(|attachment| self.links.is_linked(attachment))
    }

    /// Whether nothing depends any more on what becomes of dialling `peer`.
    fn is_idle(&self, peer: Rank) -> bool {
        let needed = self.overlay.attachment() == Some(peer) || self.overlay.attached().contains(&peer);
        self.is_settled() && !needed
    }

    pub(super) fn dial(&mut self) {
        for peer in self.dials.due(self.now) {
            self.links.act(Action::Dial(peer));
        }
    }

    /// A dial has failed.
    pub(super) fn unreached(&mut self, peer: Rank, cause: String, refused: bool) {
        let other = peer < self.overlay.ranks() && peer != self.overlay.rank();
        if !other || self.overlay.is_gone(peer) || self.links.is_linked(peer) {
            return self.dials.remove(peer);
        }
        if refused {
            // Who leaves has no say in who is lost.
            if self.dials.refused(peer, self.now) && self.part == Part::Takes {
                let cause = format!("nobody listens at its address any more ({cause})");
                return self.lose(Loss { rank: peer, cause, state: Vec::new() }, None);
            }
            // It is as good as gone: whoever comes after it may know more.
            self.plan_dials(Duration::ZERO);
            return self.dial();
        }
        match self.is_idle(peer) {
            true => self.dials.remove(peer),
            false => self.dials.unanswered(peer, cause, self.now),
        }
    }

    /// Who was dialled and has not answered for the freeze timeout is lost, whether or not the dial has failed by now: at
    /// its address may be somebody who takes calls and says nothing.
    pub(super) fn look_for_unanswered(&mut self) {
        // Who leaves has no say in who is lost.
        let Some(freeze) = self.settings.freeze.filter(|_| self.part == Part::Takes) else { return };
        for (rank, silence, cause) in self.dials.silent(freeze, self.now) {
            if self.is_idle(rank) {
                self.dials.remove(rank);
                continue;
            }
            let cause = format!("not reached for {:.1} s: {cause}", silence.as_secs_f64());
            self.lose(Loss { rank, cause, state: Vec::new() }, None);
        }
    }
}

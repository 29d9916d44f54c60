//! Agreements: all vote, the head decides, and if it goes the next head finds out what it may have decided.
//!
//! A vote is for a head, and a promise to take no decision of a lower one. Heads only ever rise, and a head decides when
//! everybody who is not gone has voted for it. So when a decision was taken by anybody who is not gone, the next head
//! sees it in a vote and repeats it; and when no vote shows one, nobody will ever take one.

use super::links::Links;
use super::message::{Message, Vote};
use super::overlay::Overlay;
use super::types::{Action, Agreement as Decided, LinkId};
use crate::plan::Rank;
use std::collections::BTreeMap;

/// The agreements of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Agreements {
    /// How many this rank has begun: the number of the next.
    begun: u64,
    /// Whether it waits for the one begun last.
    wanted: bool,
    /// The last, the one that runs, and those of peers that are ahead.
    rounds: BTreeMap<u64, Round>,
}

/// One agreement.
#[derive(Clone, Debug, Default)]
struct Round {
    /// What this rank gave: flags and blob.
    mine: Option<(u64, Vec<u8>)>,
    /// The last vote of each rank that has passed here, this one's included.
    votes: BTreeMap<Rank, Vote>,
    /// By the word of which head, and what.
    decided: Option<(Rank, Decided)>,
}

impl Round {
    /// The head of which this round needs no more: it has decided.
    fn is_decided_by(&self, head: Rank) -> bool {
        self.decided.as_ref().is_some_and(|(by, _)| *by >= head)
    }
}

impl Agreements {
    /// This rank wants to agree.
    pub(super) fn begin(&mut self, flags: u64, blob: Vec<u8>, overlay: &Overlay, links: &mut Links) {
        let number = self.begun;
        self.begun += 1;
        self.wanted = true;
        self.rounds.retain(|round, _| round + 1 >= number);
        self.rounds.entry(number).or_default().mine = Some((flags, blob));
        self.vote(number, overlay, links);
    }

    /// This rank no longer waits. What it gave stays given.
    pub(super) fn give_up(&mut self, overlay: &Overlay, links: &mut Links) {
        if std::mem::take(&mut self.wanted) {
            links.act(Action::Unagreed { absent: self.absent(overlay, links) });
        }
    }

    /// For whom the last agreement waits, as far as this rank knows: those who should have voted by way of it, and
    /// whoever it cannot pass its own vote to. Who has voted for an earlier head waits itself.
    fn absent(&self, overlay: &Overlay, links: &Links) -> Vec<Rank> {
        let round = self.begun.checked_sub(1).and_then(|number| self.rounds.get(&number));
        let voted = |rank: Rank| round.is_some_and(|round| round.votes.contains_key(&rank));
        let mut absent: Vec<Rank> = match overlay.is_head() {
            true => (0..overlay.ranks()).filter(|rank| !overlay.is_gone(*rank)).collect(),
            false => overlay.attached().to_vec(),
        };
        absent.retain(|rank| !voted(*rank));
        absent.extend(overlay.attachment().filter(|attachment| !links.is_linked(*attachment)));
        absent
    }

    /// Somebody has gone: perhaps there is another head, perhaps the head waits for nobody else.
    pub(super) fn look_for_gone(&mut self, head_before: Rank, overlay: &Overlay, links: &mut Links) {
        for number in self.rounds.keys().copied().collect::<Vec<_>>() {
            if overlay.head() != head_before {
                self.vote(number, overlay, links);
            } else {
                self.look_for_end(number, overlay, links);
            }
        }
    }

    /// A vote on its way to the head.
    pub(super) fn raise(
        &mut self,
        number: u64,
        vote: Vote,
        from: Option<LinkId>,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        let known = |rank: Rank| rank < overlay.ranks();
        if !known(vote.rank) || !known(vote.head) || overlay.is_gone(vote.rank) {
            return;
        }
        let Some(round) = self.round(number) else { return };
        if let (Some(link), Some((head, agreement)), None) = (from, &round.decided, &vote.decided)
            && *head >= vote.head
        {
            let (head, agreement) = (*head, agreement.clone());
            return links.send(link, Message::Decision { number, head, agreement });
        }
        if round.votes.get(&vote.rank).is_some_and(|last| last.head >= vote.head) {
            return;
        }
        round.votes.insert(vote.rank, vote.clone());
        if overlay.is_head() {
            self.look_for_end(number, overlay, links);
        } else {
            links.send_to(overlay.attachment(), Message::Vote { number, vote });
        }
    }

    /// The word of a head.
    pub(super) fn decision(
        &mut self,
        number: u64,
        head: Rank,
        agreement: Decided,
        from: Option<LinkId>,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        let waits = self.wanted && self.begun.checked_sub(1) == Some(number);
        let Some(round) = self.round(number) else { return };
        // Without a vote of this rank a decision is of others who take it for lost.
        let Some(promised) = round.votes.get(&overlay.rank()).map(|vote| vote.head) else { return };
        if head < promised || head >= overlay.ranks() || round.is_decided_by(head) {
            return;
        }
        let first = round.decided.is_none();
        // What is decided stays; only the head that stands for it changes.
        let agreement = round.decided.take().map_or(agreement, |(_, decided)| decided);
        round.decided = Some((head, agreement.clone()));
        links.flood(&Message::Decision { number, head, agreement: agreement.clone() }, from);
        if first && waits {
            self.wanted = false;
            links.act(Action::Agreed(agreement));
        }
    }

    /// Says on a new way to the head what is on its way there.
    pub(super) fn say_again(&self, link: LinkId, links: &mut Links) {
        for (&number, round) in &self.rounds {
            for vote in round.votes.values().filter(|vote| !round.is_decided_by(vote.head)) {
                links.send(link, Message::Vote { number, vote: vote.clone() });
            }
        }
    }

    /// Says on a new connection what is decided.
    pub(super) fn say_decisions(&self, link: LinkId, links: &mut Links) {
        for (&number, round) in &self.rounds {
            if let Some((head, agreement)) = round.decided.clone() {
                links.send(link, Message::Decision { number, head, agreement });
            }
        }
    }

    /// This rank's vote for the head that it sees now.
    fn vote(&mut self, number: u64, overlay: &Overlay, links: &mut Links) {
        let Some(Round { mine: Some((flags, blob)), decided, .. }) = self.rounds.get(&number) else { return };
        let decided = decided.as_ref().map(|(_, agreement)| agreement.clone());
        let (rank, head) = (overlay.rank(), overlay.head());
        let vote = Vote { rank, head, flags: *flags, blob: blob.clone(), decided };
        self.raise(number, vote, None, overlay, links);
    }

    /// At the head: decides when everybody who is not gone has voted for it.
    fn look_for_end(&mut self, number: u64, overlay: &Overlay, links: &mut Links) {
        let (head, ranks) = (overlay.rank(), overlay.ranks());
        let Some(round) = self.rounds.get(&number) else { return };
        if !overlay.is_head() || round.votes.len() < overlay.here() || round.is_decided_by(head) {
            return;
        }
        let votes = || round.votes.values().filter(|v| v.head == head && !overlay.is_gone(v.rank));
        if votes().count() < overlay.here() {
            return;
        }
        // To the one who decides all lower ranks are gone; the last such word counts.
        let head_of =
            |decided: &&Decided| (0..).zip(&decided.gone).take_while(|(n, gone)| n == *gone).count();
        let taken = votes().filter_map(|v| v.decided.as_ref()).max_by_key(head_of);
        let agreement = taken.cloned().unwrap_or_else(|| Decided {
            flags: votes().fold(u64::MAX, |all, vote| all & vote.flags),
            blob: votes().map(|v| &v.blob).find(|blob| !blob.is_empty()).cloned().unwrap_or_default(),
            gone: (0..ranks).filter(|rank| overlay.is_gone(*rank)).collect(),
        });
        self.decision(number, head, agreement, None, overlay, links);
    }

    /// An agreement that can still be under way: a peer that has given up may be one ahead of the next.
    fn round(&mut self, number: u64) -> Option<&mut Round> {
        let possible = self.begun.saturating_sub(2)..=self.begun + 1;
        possible.contains(&number).then(|| self.rounds.entry(number).or_default())
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.rounds.values().map(|round| 1 + round.votes.len()).sum()
    }
}

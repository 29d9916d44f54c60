//! Inquests: the head asks everybody what it does.

use super::links::{Links, batches};
use super::message::{Entry, Message};
use super::overlay::Overlay;
use super::types::{Action, LinkId};
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Ranks that the head connects to because they do not answer.
const MOST_DIALLED: usize = 64;

/// A rank's part in inquests.
#[derive(Clone, Debug)]
pub(super) struct Inquests {
    /// How long the head waits for answers.
    patience: Duration,
    /// The first who asked for one, and why, as far as is known here.
    wish: Option<(Rank, Vec<u8>)>,
    /// This rank's own wish, of which nothing has come yet.
    insist: Option<Insist>,
    /// The latest that was heard of.
    latest: Option<u64>,
    /// Answers that have passed here on their way up, this rank's included.
    answers: BTreeMap<Rank, Vec<u8>>,
    /// What this rank conducts as the head.
    conducted: Option<Conducted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Insist {
    /// When to turn to the head directly: somebody on the way may be stopped.
    At(Duration),
    /// It is told as soon as there is a connection.
    Now,
}

#[derive(Clone, Debug)]
struct Conducted {
    by: Rank,
    reason: Vec<u8>,
    /// When to ask the silent ones directly, if that has not been done.
    ask_again: Option<Duration>,
    end: Duration,
}

impl Inquests {
    pub(super) fn new(patience: Duration) -> Inquests {
        Inquests {
            patience,
            wish: None,
            insist: None,
            latest: None,
            answers: BTreeMap::new(),
            conducted: None,
        }
    }

    /// Somebody wants an inquest.
    pub(super) fn inquire(
        &mut self,
        by: Rank,
        reason: Vec<u8>,
        now: Duration,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        if by >= overlay.ranks() {
            return;
        }
        self.wish.get_or_insert_with(|| (by, reason.clone()));
        if !overlay.is_head() {
            if by == overlay.rank() {
                self.insist = Some(Insist::At(now + self.patience / 8));
            }
            return links.send_to(overlay.attachment(), Message::Inquire { by, reason });
        }
        if self.conducted.is_some() {
            return;
        }
        let (ask_again, end) = (Some(now + self.patience / 2), now + self.patience);
        self.conducted = Some(Conducted { by, reason, ask_again, end });
        // Later heads are higher, so their inquests are later ones.
        let first = u64::from(overlay.rank()) << 32;
        self.enter(self.latest.map_or(first, |latest| (latest + 1).max(first)), None, links);
    }

    /// The head wants this rank's state, and everybody's.
    pub(super) fn question(&mut self, inquest: u64, from: LinkId, overlay: &Overlay, links: &mut Links) {
        if inquest >> 32 >= u64::from(overlay.ranks()) || overlay.is_head() {
            return;
        }
        if self.latest < Some(inquest) {
            return self.enter(inquest, Some(from), links);
        }
        // Asked twice: the answer may have been lost with a connection.
        if let Some(state) = self.answers.get(&overlay.rank()).filter(|_| self.latest == Some(inquest)) {
            let entries = vec![(overlay.rank(), state.clone())];
            links.send(from, Message::Answers { inquest, entries });
        }
    }

    /// Answers, this rank's or others'.
    pub(super) fn answers(
        &mut self,
        inquest: u64,
        entries: Vec<Entry>,
        from: Option<LinkId>,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        if let Some(from) = from
            && self.latest < Some(inquest)
        {
            self.question(inquest, from, overlay, links);
        }
        if self.latest != Some(inquest) {
            return;
        }
        let mut fresh = entries;
        fresh.retain(|(rank, _)| *rank < overlay.ranks() && !self.answers.contains_key(rank));
        if fresh.is_empty() {
            return;
        }
        self.answers.extend(fresh.iter().cloned());
        if overlay.is_head() {
            return self.look_for_end(overlay, links);
        }
        if from.is_none() && overlay.attachment() != Some(overlay.head()) {
            links.send_to(Some(overlay.head()), Message::Answers { inquest, entries: fresh.clone() });
        }
        links.send_to(overlay.attachment(), Message::Answers { inquest, entries: fresh });
    }

    /// Asks on a new connection, and says on a new way to the head what is on its way there.
    pub(super) fn say_again(&self, link: LinkId, peer: Rank, overlay: &Overlay, links: &mut Links) {
        let Some(inquest) = self.latest.filter(|_| self.conducted.is_some()) else {
            let insists = self.insist == Some(Insist::Now) && peer == overlay.head();
            if overlay.attachment() == Some(peer) || insists {
                if let Some((by, reason)) = self.wish.clone() {
                    links.send(link, Message::Inquire { by, reason });
                }
                for entries in batches(&self.answers) {
                    links.send(link, Message::Answers { inquest: self.latest.unwrap_or_default(), entries });
                }
            }
            return;
        };
        links.send(link, Message::Question { inquest });
    }

    /// Somebody has gone: perhaps this rank is the head now, perhaps the head waits for nobody else.
    pub(super) fn look_for_gone(&mut self, now: Duration, overlay: &Overlay, links: &mut Links) {
        if !overlay.is_head() {
            return;
        }
        match (&self.conducted, self.wish.clone()) {
            (None, Some((by, reason))) if self.latest.is_none_or(|l| l >> 32 < u64::from(overlay.rank())) => {
                self.inquire(by, reason, now, overlay, links);
            }
            _ => self.look_for_end(overlay, links),
        }
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        let conducted = self.conducted.as_ref().map(|c| c.ask_again.unwrap_or(c.end));
        let insist = self.insist.and_then(|insist| match insist {
            Insist::At(time) => Some(time),
            Insist::Now => None,
        });
        conducted.into_iter().chain(insist).min()
    }

    /// Whom to connect to: the head for a wish that did not get there, or those who have not answered.
    pub(super) fn tick(&mut self, now: Duration, overlay: &Overlay, links: &mut Links) -> Vec<Rank> {
        if matches!(self.insist, Some(Insist::At(time)) if time <= now) {
            self.insist = Some(Insist::Now);
            if let Some((by, reason)) = self.wish.clone().filter(|_| links.is_linked(overlay.head())) {
                links.send_to(Some(overlay.head()), Message::Inquire { by, reason });
            }
            return vec![overlay.head()];
        }
        let (Some(conducted), Some(inquest)) = (&mut self.conducted, self.latest) else { return Vec::new() };
        if conducted.end <= now {
            self.judge(links);
        } else if conducted.ask_again.is_some_and(|time| time <= now) {
            conducted.ask_again = None;
            let silent = |rank: &Rank| !overlay.is_gone(*rank) && !self.answers.contains_key(rank);
            let silent: Vec<Rank> = (0..overlay.ranks()).filter(silent).take(MOST_DIALLED).collect();
            for &rank in &silent {
                links.send_to(Some(rank), Message::Question { inquest });
            }
            return silent;
        }
        Vec::new()
    }

    /// The communicator has ended: there is nothing to find out.
    pub(super) fn end(&mut self) {
        (self.conducted, self.wish, self.insist) = (None, None, None);
        self.answers.clear();
    }

    fn enter(&mut self, inquest: u64, from: Option<LinkId>, links: &mut Links) {
        self.latest = Some(inquest);
        self.insist = None;
        self.answers.clear();
        links.flood(&Message::Question { inquest }, from);
        links.act(Action::Report { inquest });
    }

    fn look_for_end(&mut self, overlay: &Overlay, links: &mut Links) {
        let answered = |rank: &Rank| self.answers.contains_key(rank);
        let here = |rank: &Rank| !overlay.is_gone(*rank);
        let enough = self.answers.len() >= overlay.here();
        if self.conducted.is_some() && enough && (0..overlay.ranks()).filter(here).all(|r| answered(&r)) {
            self.judge(links);
        }
    }

    fn judge(&mut self, links: &mut Links) {
        if let Some(Conducted { by, reason, .. }) = self.conducted.take() {
            let states = std::mem::take(&mut self.answers).into_iter().collect();
            links.act(Action::Judge { by, reason, states });
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.answers.len()
    }
}

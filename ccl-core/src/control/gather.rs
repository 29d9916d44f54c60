//! All-gathers: everybody's bytes go up to the head, and from there to all.

use super::links::{Links, batches};
use super::message::{Entry, Fact, Message};
use super::overlay::{Overlay, Presence, is_under};
use super::types::{Action, GatherFailed, LinkId};
use crate::plan::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How much longer than its deadline a rank waits for the head's word on who is absent,
const GRACE: Duration = Duration::from_secs(1);

/// and for each rank in between: the one that is nearest to somebody who did not come knows best.
const GRACE_OF_RANK: Duration = Duration::from_millis(50);

/// Names of absent ranks that fit a message.
const MOST_ABSENT: usize = 8192;

/// The all-gathers of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Gather {
    /// How many this rank has begun: the number of the next.
    begun: u64,
    /// Until when it waits for the one begun last, if it still does.
    deadline: Option<Duration>,
    /// The last, the one that runs, and those of peers that are ahead.
    rounds: BTreeMap<u64, Round>,
    /// The communicator has ended: nothing is gathered any more.
    ended: bool,
}

/// One all-gather.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Entries that have passed here on their way up.
    up: BTreeMap<Rank, Vec<u8>>,
    /// Entries that have come down.
    down: BTreeMap<Rank, Vec<u8>>,
    failed: Option<Vec<Rank>>,
    /// Connections on which all of the above was said, to somebody who had missed it.
    answered: BTreeSet<LinkId>,
}

impl Gather {
    /// This rank wants to know everybody's bytes.
    pub(super) fn begin(&mut self, bytes: Vec<u8>, deadline: Duration, overlay: &Overlay, links: &mut Links) {
        let number = self.begun;
        self.begun += 1;
        if self.ended {
            return;
        }
        self.rounds.retain(|round, _| round + 1 >= number);
        self.deadline = Some(deadline);
        if let Some(absent) = self.rounds.get(&number).and_then(|round| round.failed.clone()) {
            return self.finish(Err(absent), overlay, links);
        }
        self.raise(number, vec![(overlay.rank(), bytes)], None, overlay, links);
        self.look_for_gone(overlay, links);
    }

    /// Entries on their way to the head.
    pub(super) fn raise(
        &mut self,
        number: u64,
        entries: Vec<Entry>,
        from: Option<LinkId>,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        let Some(round) = self.round(number) else { return };
        if let Some(link) = from
            && (round.failed.is_some() || !round.down.is_empty())
            && round.answered.insert(link)
        {
            for entries in batches(&round.down) {
                links.send(link, Message::GatherDown { round: number, entries });
            }
            if let Some(absent) = round.failed.clone() {
                links.send(link, Message::GatherFailed { round: number, absent });
            }
        }
        let known = |rank: &Rank| *rank >= overlay.ranks() || round.up.contains_key(rank);
        let mut fresh = entries;
        fresh.retain(|(rank, _)| !known(rank));
        if fresh.is_empty() {
            return;
        }
        round.up.extend(fresh.iter().cloned());
        if !overlay.is_head() {
            links.send_to(overlay.attachment(), Message::GatherUp { round: number, entries: fresh });
        } else if round.up.len() == overlay.ranks() as usize
            && round.down.is_empty()
            && round.failed.is_none()
        {
            round.down = std::mem::take(&mut round.up);
            for entries in batches(&round.down) {
                links.flood(&Message::GatherDown { round: number, entries }, None);
            }
            self.look_for_end(number, overlay, links);
        }
    }

    /// Entries on their way to everybody.
    pub(super) fn lower(
        &mut self,
        number: u64,
        entries: Vec<Entry>,
        from: LinkId,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        let Some(round) = self.round(number) else { return };
        let mut fresh = entries;
        fresh.retain(|(rank, _)| *rank < overlay.ranks() && !round.down.contains_key(rank));
        if fresh.is_empty() {
            return;
        }
        round.down.extend(fresh.iter().cloned());
        links.flood(&Message::GatherDown { round: number, entries: fresh }, Some(from));
        self.look_for_end(number, overlay, links);
    }

    /// Word that a round has failed.
    pub(super) fn failed(
        &mut self,
        number: u64,
        absent: Vec<Rank>,
        from: Option<LinkId>,
        overlay: &Overlay,
        links: &mut Links,
    ) {
        let running = self.running();
        let Some(round) = self.round(number) else { return };
        if round.failed.is_some() || round.down.len() == overlay.ranks() as usize {
            return;
        }
        let absent: Vec<Rank> =
            absent.into_iter().filter(|r| *r < overlay.ranks()).take(MOST_ABSENT).collect();
        round.failed = Some(absent.clone());
        links.flood(&Message::GatherFailed { round: number, absent: absent.clone() }, from);
        if running == Some(number) {
            self.finish(Err(absent), overlay, links);
        }
    }

    /// Says on a new way to the head what is on its way there.
    pub(super) fn say_again(&self, link: LinkId, overlay: &Overlay, links: &mut Links) {
        let open = |round: &Round| round.failed.is_none() && round.down.len() < overlay.ranks() as usize;
        for (&number, round) in self.rounds.iter().filter(|(_, round)| open(round)) {
            for entries in batches(&round.up) {
                links.send(link, Message::GatherUp { round: number, entries });
            }
        }
    }

    /// Says on a new connection what has failed, and who has left.
    pub(super) fn say_failures(&self, link: LinkId, overlay: &Overlay, links: &mut Links) {
        for (&number, round) in &self.rounds {
            if let Some(absent) = round.failed.clone() {
                for rank in absent.iter().filter(|rank| overlay.presence(**rank) == Presence::Left) {
                    links.send(link, Message::Fact(Fact::Left(*rank)));
                }
                links.send(link, Message::GatherFailed { round: number, absent });
            }
        }
    }

    /// At the head: a round fails when somebody who is still missing has left. If somebody is lost, its loss has
    /// ended the call everywhere.
    pub(super) fn look_for_gone(&mut self, overlay: &Overlay, links: &mut Links) {
        if !overlay.is_head() {
            return;
        }
        let open = |round: &Round| !round.up.is_empty() && round.down.is_empty() && round.failed.is_none();
        let missing = |round: &Round| {
            let gone = overlay.gone().iter().copied();
            gone.filter(|rank| !round.up.contains_key(rank)).collect::<Vec<Rank>>()
        };
        let rounds = self.rounds.iter().filter(|(_, round)| open(round));
        let doomed: Vec<_> = rounds.map(|(number, round)| (*number, missing(round))).collect();
        for (number, mut absent) in doomed {
            if !absent.is_empty() && absent.iter().all(|r| overlay.presence(*r) == Presence::Left) {
                absent.sort_unstable();
                self.failed(number, absent, None, overlay, links);
            }
        }
    }

    pub(super) fn wake(&self, overlay: &Overlay) -> Option<Duration> {
        let patience = match overlay.depth() {
            0 => Duration::ZERO,
            depth => GRACE + GRACE_OF_RANK * depth,
        };
        Some(self.deadline? + patience)
    }

    pub(super) fn tick(&mut self, now: Duration, overlay: &Overlay, links: &mut Links) {
        if self.wake(overlay).is_some_and(|end| end <= now) {
            self.give_up(overlay, links);
        }
    }

    /// The deadline has passed: whoever is not there yet is absent. A loss has ended the call already.
    pub(super) fn give_up(&mut self, overlay: &Overlay, links: &mut Links) {
        let Some(number) = self.running() else { return };
        if overlay.gone().iter().any(|rank| overlay.presence(*rank) == Presence::Lost) {
            self.deadline = None;
            return;
        }
        let Some(round) = self.rounds.get(&number) else { return };
        let silent = |rank: &Rank| !round.up.contains_key(rank);
        let asked = |rank: &Rank| overlay.is_head() || is_under(*rank, overlay.rank());
        let mut absent: Vec<Rank> = (0..overlay.ranks()).filter(|r| asked(r) && silent(r)).collect();
        // Had it come, there would be word from it.
        absent.extend(overlay.attachment());
        absent.sort_unstable();
        absent.truncate(MOST_ABSENT);
        self.failed(number, absent, None, overlay, links);
    }

    /// The communicator has ended.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.deadline = None;
        self.rounds.retain(|_, round| round.failed.is_some());
    }

    fn running(&self) -> Option<u64> {
        self.deadline.and(self.begun.checked_sub(1))
    }

    /// A round that can still be under way: a peer that has failed alone may be one ahead of the next.
    fn round(&mut self, number: u64) -> Option<&mut Round> {
        let possible = self.begun.saturating_sub(2)..=self.begun + 1;
        (possible.contains(&number) && !self.ended).then(|| self.rounds.entry(number).or_default())
    }

    fn look_for_end(&mut self, number: u64, overlay: &Overlay, links: &mut Links) {
        let running = self.running();
        let Some(round) = self.rounds.get_mut(&number) else { return };
        if round.down.len() == overlay.ranks() as usize {
            round.up.clear();
            if running == Some(number) {
                let all = round.down.values().cloned().collect();
                self.deadline = None;
                links.act(Action::Gathered(Ok(all)));
            }
        }
    }

    fn finish(&mut self, result: Result<Vec<Vec<u8>>, Vec<Rank>>, overlay: &Overlay, links: &mut Links) {
        self.deadline = None;
        let failed = |absent: Vec<Rank>| {
            let left = |rank: &Rank| overlay.presence(*rank) == Presence::Left;
            GatherFailed { left: !absent.is_empty() && absent.iter().all(left), absent }
        };
        links.act(Action::Gathered(result.map_err(failed)));
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.rounds.values().map(|round| 1 + round.up.len() + round.down.len()).sum()
    }
}

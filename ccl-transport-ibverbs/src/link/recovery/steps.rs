//! From a failure to a lane that works again, or to an error.

use super::repair::{Repair, Stage, Trouble};
use super::seats::Obstacle;
use super::word::{Offer, Says, Word};
use crate::link::failure;
use crate::link::transport::IbTransport;
use ccl_core::{Rank, Result};
use std::time::{Duration, Instant};

/// How long a call that is done, and the end, wait for the messages of lanes that are being repaired.
pub(crate) const LINGER: Duration = Duration::from_secs(5);
/// A device whose queue pair has not given its receives back by then counts as failed.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the better pairs of rails may take to be heard after the first.
const FAIR: Duration = Duration::from_millis(10);
/// How long the other end may take to answer with its queue pair; more after each try.
const ANSWER: Duration = Duration::from_millis(500);
/// Generations that an end may be behind.
const MOST_MISSED: u32 = 1 << 20;

impl IbTransport {
    /// The queue pair of a lane has failed: both ends replace it.
    #[cold]
    pub(in crate::link) fn part(&mut self, lane: usize, cause: String) {
        let avoid = self.lanes[lane].seat.rails;
        self.begin(lane, self.lanes[lane].generation.wrapping_add(1), Some(avoid), cause);
    }

    /// A lane is to be agreed on anew, wherever it was.
    pub(super) fn recall(&mut self, lane: usize, cause: String) {
        self.begin(lane, self.lanes[lane].generation.wrapping_add(1), None, cause);
    }

    fn begin(&mut self, at: usize, generation: u32, avoid: Option<usize>, cause: String) {
        let now = Instant::now();
        let progress = self.lanes[at].moved;
        let (rank, recovery) = (self.rank, self.recovery);
        let lane = &mut self.lanes[at];
        if lane.gone || lane.broken.is_some() {
            return;
        }
        let was_open = lane.repair.is_none();
        tracing::warn!(target: "net", rank, peer = lane.peer, generation, cause, "connection lost, to be resumed");
        lane.stop();
        self.adapters[lane.seat.adapter].watched -= lane.pace.clear();
        lane.generation = generation;
        lane.seat.fail();
        let goes_on = |trouble: &Trouble| {
            !was_open || trouble.mark == progress && now.saturating_duration_since(trouble.looked) < recovery
        };
        if !lane.trouble.as_ref().is_some_and(|trouble| goes_on(trouble)) {
            lane.trouble = Some(Box::new(Trouble::new(cause, now)));
        }
        let silence = lane.trouble.as_ref().map_or(Duration::ZERO, |trouble| trouble.back_off());
        let mut repair = Box::new(Repair::new(now, avoid, silence));
        repair.home_is_back = lane.repair.as_ref().is_some_and(|before| before.home_is_back);
        lane.repair = Some(repair);
        self.repairing += u32::from(was_open);
        self.chores = true;
        self.speak(at);
    }

    /// A lane ends with an error, and all of its group, as their messages may have waited for its.
    #[cold]
    pub(in crate::link) fn give_up(&mut self, at: usize, what: String) {
        for lane in self.groups[self.lanes[at].group as usize].lanes.clone() {
            self.give_up_one(lane as usize, what.clone());
        }
    }

    fn give_up_one(&mut self, at: usize, what: String) {
        let rank = self.rank;
        let may_lack = self.may_lack(at);
        let lane = &mut self.lanes[at];
        if lane.broken.is_some() {
            return;
        }
        let error = failure::of_peer(lane.peer, what);
        tracing::warn!(target: "net", rank, peer = lane.peer, %error, "connection given up");
        lane.stop();
        self.adapters[lane.seat.adapter].watched -= lane.pace.clear();
        lane.seat.fail();
        lane.broken = Some(error.clone());
        self.events += 1;
        if lane.repair.take().is_some() {
            self.repairing -= 1;
            if may_lack {
                self.lost.get_or_insert(error);
            }
        }
        self.chores = true;
        self.speak(at);
    }

    /// Whether peers may lack messages that wait for a repair. Not for ever: one that computes for long does not answer.
    pub(in crate::link) fn is_behind(&self) -> bool {
        let is_fresh =
            |at: usize| self.lanes[at].trouble.as_ref().is_some_and(|trouble| trouble.spent < LINGER);
        let of = |at: usize| self.lanes[at].repair.is_some() && is_fresh(at) && self.may_lack(at);
        self.repairing > 0 && (0..self.lanes.len()).any(of)
    }

    /// How long a rank may sleep that nobody wakes.
    pub(in crate::link) fn until_next_word(&self) -> Duration {
        if self.repairing == 0 {
            return Duration::MAX;
        }
        let next = self.lanes.iter().filter_map(|lane| Some(lane.repair.as_ref()?.next_word)).min();
        let left = next.map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()));
        left.min(FAIR)
    }

    /// Listens to the peers, and moves all repairs on. Whether there is nothing left to do.
    pub(in crate::link) fn recover(&mut self) -> Result<bool> {
        let are_well = self.revive_endpoints();
        for word in std::mem::take(&mut self.heard) {
            self.hear(&word);
        }
        if self.repairing > 0 {
            let now = Instant::now();
            for at in 0..self.lanes.len() {
                if self.lanes[at].repair.is_some() {
                    self.step(at, now)?;
                }
            }
        }
        Ok(are_well && self.repairing == 0 && self.heard.is_empty())
    }

    fn hear(&mut self, word: &Word) {
        let Some(connection) = self.connections.get(&word.from) else { return };
        let (via, pairs) = (usize::from(word.via), connection.pairs.len());
        let names_none = matches!(word.says, Says::Prepared(offer) if usize::from(offer.rails) >= pairs);
        let Some(&at) = connection.lanes.get(&word.place).filter(|_| via < pairs && !names_none) else {
            return;
        };
        let (at, leads) = (at as usize, self.leads(word.from));
        let lane = &mut self.lanes[at];
        let ahead = word.generation.wrapping_sub(lane.generation).cast_signed();
        if lane.gone || ahead.unsigned_abs() > MOST_MISSED {
            return;
        }
        let is_answer = matches!(word.says, Says::Ready | Says::GivenUp);
        if lane.broken.is_some() {
            if !is_answer {
                self.say(at, via);
            }
            return;
        }
        if word.says == Says::GivenUp {
            let cause =
                lane.trouble.as_ref().map_or(String::new(), |trouble| format!("; here {}", trouble.cause));
            let what = format!("{}: the peer has given it up, see its own error{cause}", lane.seat.ends);
            self.give_up(at, what);
            return;
        }
        if ahead > 0 {
            let cause = format!("{}: the peer says that it has failed", lane.seat.ends);
            self.begin(at, word.generation, None, cause);
        }
        let is_drained = matches!(word.says, Says::Drained { .. } | Says::Prepared(_));
        let lane = &mut self.lanes[at];
        match &mut lane.repair {
            Some(repair) if ahead >= 0 => {
                repair.note(word, Instant::now());
                let stage = repair.stage;
                if is_drained && let Err(obstacle) = self.settle(at, &word.counts) {
                    return self.overcome(at, obstacle);
                }
                // So the end that chooses hears over which rails it is heard.
                if !leads && matches!(word.says, Says::Drained { .. }) && stage == Stage::Drained {
                    self.say(at, via);
                }
            }
            _ if word.says == Says::Ready && ahead == 0 => self.is_answered(at, via),
            _ if is_answer => {}
            _ => self.say(at, via),
        }
    }

    /// How far a lane that is being repaired is.
    pub(super) fn stage_in_words(&self, at: usize) -> Says {
        let lane = &self.lanes[at];
        match lane.repair.as_ref().map(|repair| (repair.stage, repair.avoid)) {
            None => Says::Ready,
            Some((Stage::Draining, _)) => Says::Draining,
            Some((Stage::Drained, avoid)) => Says::Drained { avoid: avoid.map(|rails| rails as u8) },
            Some((Stage::Prepared { first_packet }, _)) => Says::Prepared(Offer {
                rails: lane.seat.rails as u8,
                number: lane.seat.pair.number(),
                first_packet,
            }),
        }
    }

    /// Whether others do all that a lane had to do.
    fn is_spared(&self, at: usize) -> bool {
        let lane = &self.lanes[at];
        let mut others = self.groups[lane.group as usize].lanes.iter();
        lane.repair.as_ref().is_some_and(|repair| repair.is_settled)
            && others.any(|other| self.lanes[*other as usize].open)
    }

    pub(super) fn leads(&self, peer: Rank) -> bool {
        self.rank < peer
    }

    /// Moves one repair on as far as it gets now.
    fn step(&mut self, at: usize, now: Instant) -> Result<()> {
        if let Err(obstacle) = self.try_step(at, now) {
            self.overcome(at, obstacle);
        }
        let is_spared = self.is_spared(at);
        let lane = &mut self.lanes[at];
        let (Some(repair), Some(trouble)) = (&mut lane.repair, &mut lane.trouble) else { return Ok(()) };
        trouble.look(now, is_spared);
        let connection = &self.connections[&lane.peer];
        let is_dead = |pair: usize| self.adapters[self.ports[connection.rail(pair)].adapter].dead;
        let is_late = trouble.spent >= self.recovery || (0..connection.pairs.len()).all(is_dead);
        let speaks = now >= repair.next_word;
        if speaks {
            repair.said(now);
            if repair.stage == Stage::Draining {
                // It may not have been taken the first time.
                lane.seat.fail();
            }
        }
        if is_late {
            let what = self.in_vain(at);
            self.give_up(at, what);
        } else if speaks {
            self.read_events()?;
            if self.lanes[at].repair.is_some() {
                self.speak(at);
            }
        }
        Ok(())
    }

    fn overcome(&mut self, at: usize, obstacle: Obstacle) {
        match obstacle {
            Obstacle::Device(cause) => self.part(at, cause),
            Obstacle::Peer(what) => self.corrupt(at, what),
        }
    }

    fn try_step(&mut self, at: usize, now: Instant) -> Result<(), Obstacle> {
        let leads = self.leads(self.lanes[at].peer);
        loop {
            let lane = &mut self.lanes[at];
            if lane.gone {
                lane.repair = None;
                self.repairing -= 1;
                return Ok(());
            }
            let has_heard = lane.has_heard();
            let is_empty = lane.is_empty() || self.adapters[lane.seat.adapter].dead;
            let Some(repair) = &mut lane.repair else { return Ok(()) };
            let here = lane.seat.rails;
            match (repair.stage, repair.offer) {
                (Stage::Draining, _) if is_empty => {
                    repair.enter(Stage::Drained, now);
                    let counts = self.counts_of(at);
                    if let Some(repair) = &mut self.lanes[at].repair {
                        repair.counts = counts;
                    }
                }
                (Stage::Draining, _) if now.saturating_duration_since(repair.since) > DRAIN => {
                    let adapter = lane.seat.adapter;
                    self.bury(adapter, "it does not give back the receives of a queue pair in error");
                }
                (Stage::Drained, _) if leads => {
                    let Some(rails) = self.choose(at, now) else { return Ok(()) };
                    self.prepare_seat(at, rails, now)?;
                }
                (Stage::Drained, Some((offer, counts))) => {
                    self.prepare_seat(at, offer.rails.into(), now)?;
                    self.connect_seat(at, offer, counts)?;
                }
                (Stage::Prepared { .. }, Some((offer, counts)))
                    if leads && usize::from(offer.rails) == here =>
                {
                    self.connect_seat(at, offer, counts)?;
                    self.open_seat(at, now)?;
                    self.speak(at);
                    return Ok(());
                }
                (Stage::Prepared { .. }, _) if leads => {
                    let tries = lane.trouble.as_ref().map_or(0, |trouble| trouble.tries);
                    if now.saturating_duration_since(repair.since) > ANSWER * (1 << tries.min(5)) {
                        let ends = &lane.seat.ends;
                        return Err(Obstacle::Device(format!("{ends}: no answer to the new queue pair")));
                    }
                    return Ok(());
                }
                (Stage::Prepared { .. }, _) if repair.ready || has_heard => return self.open_seat(at, now),
                _ => return Ok(()),
            }
        }
    }

    /// The pair of rails for a lane's next queue pair, if it can be said yet.
    fn choose(&self, at: usize, now: Instant) -> Option<usize> {
        let lane = &self.lanes[at];
        let (connection, repair) = (&self.connections[&lane.peer], lane.repair.as_ref()?);
        let waited = repair.heard_since.is_some_and(|since| now.saturating_duration_since(since) >= FAIR);
        let usable = |pair: usize| connection.is_usable(&self.ports, &self.adapters, pair);
        repair.choose(connection.pair_of(lane.place), connection.pairs.len(), usable, waited)
    }

    /// What is said of a lane that could not be repaired.
    #[cold]
    fn in_vain(&self, at: usize) -> String {
        let lane = &self.lanes[at];
        let connection = &self.connections[&lane.peer];
        let each = (0..connection.pairs.len()).map(|pair| {
            let port = &self.ports[connection.rail(pair)];
            let adapter = &self.adapters[port.adapter];
            format!(
                "{}: {}, its counters of errors: {}",
                connection.ends(&self.proposal, pair),
                failure::of_port(adapter, port.rail.port),
                failure::of_counters(adapter, port.rail.port)
            )
        });
        let each: Vec<_> = each.collect();
        let (cause, spent) =
            lane.trouble.as_ref().map_or(("", 0.0), |t| (t.cause.as_str(), t.spent.as_secs_f64()));
        format!(
            "{cause}; tried for {spent:.1} s to resume it, in vain over each of {}: {}; check cables, switch ports and \
             the addresses of both ends (ip link, rdma link, show_gids), and that the peer is alive; half of \
             RDMACCL_TIMEOUT is how long it is tried",
            each.len(),
            each.join("; ")
        )
    }
}

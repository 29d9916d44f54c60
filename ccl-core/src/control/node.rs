//! A control node: what is said and what happens, given to the parts that it concerns.

mod connections;

use super::agreement::Agreements;
use super::dials::Dials;
use super::gather::Gather;
use super::inquest::Inquests;
use super::links::Links;
use super::message::{Fact, Message};
use super::overlay::{Overlay, Presence};
use super::types::{Action, Command, End, Event, LinkId, Loss, Settings};
use crate::plan::Rank;
use connections::AWAIT_DIAL;
use std::time::Duration;

/// The most between two signs of life on a connection.
const PING: Duration = Duration::from_secs(1);

/// How long a rank whose attachment has left waits before it connects to the next: mostly all leave together.
const AFTER_LEAVE: Duration = Duration::from_millis(50);

/// How long a rank that leaves waits for somebody who stays to know of it.
const LINGER: Duration = Duration::from_secs(1);

/// The control plane of one rank.
#[derive(Clone, Debug)]
pub struct Node {
    settings: Settings,
    now: Duration,
    overlay: Overlay,
    links: Links,
    dials: Dials,
    gather: Gather,
    agreements: Agreements,
    inquests: Inquests,
    lost: Vec<Loss>,
    end: Option<End>,
    /// What the next signs of life carry.
    state: Vec<u8>,
    next_ping: Duration,
    /// When the first connection may have been silent for too long.
    next_silence: Option<Duration>,
    part: Part,
}

/// Whether this rank takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Takes,
    /// It leaves as soon as somebody who stays knows of it, or at this time.
    Leaves(Duration),
    Left,
    Excluded,
}

impl Node {
    /// A node of a communicator that begins: nobody is gone, and connections to all neighbours in the tree are
    /// about to be told to it as [`Event::Up`]. `now` is of any clock that does not go back; a rank out of range
    /// is taken for the last one.
    pub fn new(settings: Settings, now: Duration) -> Node {
        let ranks = settings.ranks.max(1);
        let rank = settings.rank.min(ranks - 1);
        Node {
            overlay: Overlay::new(rank, ranks),
            inquests: Inquests::new(settings.inquest),
            settings,
            now,
            links: Links::default(),
            dials: Dials::default(),
            gather: Gather::default(),
            agreements: Agreements::default(),
            lost: Vec::new(),
            end: None,
            state: Vec::new(),
            next_ping: now,
            next_silence: None,
            part: Part::Takes,
        }
    }

    /// Takes in what has happened. What is to be done about it is in [`actions`](Node::actions) afterwards.
    pub fn handle(&mut self, now: Duration, event: Event) {
        self.look_at_clock(now);
        match (self.part, event) {
            (Part::Left | Part::Excluded, Event::Up { link, .. }) => self.turn_away(link),
            (Part::Left | Part::Excluded, _) => {}
            (_, Event::Up { link, peer }) => self.up(link, peer),
            (_, Event::Heard { link, message }) => self.heard(link, message),
            (_, Event::Down { link, cause, state }) => self.down(link, cause, state),
            (_, Event::Unreached { peer, cause, refused }) => self.unreached(peer, cause, refused),
            (_, Event::Tick) => self.tick(),
            (Part::Takes, Event::Command(command)) => self.command(command),
            (Part::Leaves(_), Event::Command(_)) => {}
        }
        if let Part::Leaves(end) = self.part
            && (self.now >= end || self.is_alone())
        {
            self.stop(Part::Left);
        }
    }

    /// What is to be done, in this order; each is said once.
    pub fn actions(&mut self) -> impl Iterator<Item = Action> {
        self.links.actions.drain(..)
    }

    /// When this node wants the next [`Event::Tick`]; `None` when [it is over](Node::is_over).
    pub fn wake(&self) -> Option<Duration> {
        let end = match self.part {
            Part::Left | Part::Excluded => return None,
            Part::Leaves(end) => Some(end),
            Part::Takes => None,
        };
        let (gather, inquests) = (self.gather.wake(&self.overlay), self.inquests.wake());
        let unanswered = self.settings.freeze.filter(|_| self.part == Part::Takes);
        let unanswered = unanswered.and_then(|freeze| self.dials.next_silence(freeze));
        let others = [end, self.next_silence, self.dials.wake(), unanswered, gather, inquests];
        Some(others.into_iter().flatten().fold(self.next_ping, Duration::min))
    }

    /// Whether this node takes no part any more: it is excluded, or has left, which takes until somebody who stays
    /// knows of it, at most a second. What it wants closed then is all that is left to do.
    pub fn is_over(&self) -> bool {
        matches!(self.part, Part::Left | Part::Excluded)
    }

    /// Whether a rank is lost or has left.
    pub fn is_gone(&self, rank: Rank) -> bool {
        rank < self.overlay.ranks() && self.overlay.is_gone(rank)
    }

    /// The losses, in the order in which they were learnt.
    pub fn lost(&self) -> &[Loss] {
        &self.lost
    }

    /// How the communicator has ended, if it has.
    pub fn ended(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Whether this is the lowest rank that is not gone.
    pub fn is_head(&self) -> bool {
        self.overlay.is_head()
    }

    /// Whom this rank is attached to; the head to nobody.
    pub fn attachment(&self) -> Option<Rank> {
        self.overlay.attachment()
    }

    /// For as long as this node was stopped itself, or had no core to run on, others were not silent.
    fn look_at_clock(&mut self, now: Duration) {
        let Some(freeze) = self.settings.freeze else { return self.now = self.now.max(now) };
        if now.saturating_sub(self.now) > freeze / 16 {
            let late = now.saturating_sub(self.wake().map_or(now, |wake| wake.max(self.now)));
            // Everybody may have been, and others wake later.
            let late = if late > freeze / 2 { now } else { late };
            self.links.forgive(late, now);
            self.dials.forgive(late, now);
        }
        self.now = self.now.max(now);
    }

    /// Somebody connects who has not heard yet that this rank takes no part any more.
    fn turn_away(&mut self, link: LinkId) {
        if self.part == Part::Left {
            self.links.send(link, Message::Fact(Fact::Left(self.overlay.rank())));
        }
        self.links.act(Action::Close(link));
    }

    fn up(&mut self, link: LinkId, peer: Rank) {
        if peer >= self.overlay.ranks() || peer == self.overlay.rank() {
            return self.links.act(Action::Close(link));
        }
        if self.overlay.is_gone(peer) {
            match self.overlay.presence(peer) {
                Presence::Lost => self.exclude(link, peer),
                _ => self.acknowledge(link, peer),
            }
            return self.links.act(Action::Close(link));
        }
        self.dials.remove(peer);
        self.links.open(link, peer, self.now);
        if let Some(freeze) = self.settings.freeze {
            let silence = self.now + freeze;
            self.next_silence = Some(self.next_silence.map_or(silence, |next| next.min(silence)));
        }
        self.greet(link, peer);
    }

    /// Lets a rank know that it was declared lost; and who else was, as they may have been stopped together.
    fn exclude(&mut self, link: LinkId, peer: Rank) {
        let (own, others): (Vec<&Loss>, Vec<&Loss>) = self.lost.iter().partition(|loss| loss.rank == peer);
        for loss in others.into_iter().chain(own) {
            self.links.send(link, Message::Fact(Fact::Lost(loss.clone())));
        }
    }

    /// Says all that is known on a connection that has only now become the way to a peer.
    fn greet(&mut self, link: LinkId, peer: Rank) {
        self.links.send(link, Message::Ping { state: self.state.clone() });
        // Before the facts, which may make the peer a head that decides for itself.
        self.agreements.say_decisions(link, &mut self.links);
        self.gather.say_failures(link, &self.overlay, &mut self.links);
        for loss in &self.lost {
            self.links.send(link, Message::Fact(Fact::Lost(loss.clone())));
        }
        let left = |rank: &&Rank| self.overlay.presence(**rank) == Presence::Left && **rank != peer;
        for rank in self.overlay.gone().iter().filter(left) {
            self.links.send(link, Message::Fact(Fact::Left(*rank)));
        }
        if let Some(end) = &self.end {
            self.links.send(link, Message::Fact(Fact::Ended(end.clone())));
        }
        if self.part != Part::Takes {
            return self.links.send(link, Message::Fact(Fact::Left(self.overlay.rank())));
        }
        if self.overlay.attachment() == Some(peer) {
            self.gather.say_again(link, &self.overlay, &mut self.links);
            self.agreements.say_again(link, &mut self.links);
        }
        self.inquests.say_again(link, peer, &self.overlay, &mut self.links);
    }

    fn heard(&mut self, link: LinkId, message: Message) {
        let now = self.now;
        let Some(from) = self.links.get(link) else { return };
        (from.heard, from.met) = (now, true);
        let (overlay, links) = (&self.overlay, &mut self.links);
        match message {
            Message::Ping { state } => {
                if let Some(from) = links.get(link) {
                    from.state = state;
                }
            }
            Message::Fact(Fact::Lost(loss)) => self.lose(loss, Some(link)),
            Message::Fact(Fact::Left(rank)) => self.leave(rank, link),
            Message::Fact(Fact::Ended(end)) => self.finish(end, Some(link)),
            // Who leaves takes up nothing else.
            _ if self.part != Part::Takes => {}
            Message::GatherUp { round, entries } => {
                self.gather.raise(round, entries, Some(link), overlay, links);
            }
            Message::GatherDown { round, entries } => {
                self.gather.lower(round, entries, link, overlay, links);
            }
            Message::GatherFailed { round, absent } => {
                self.gather.failed(round, absent, Some(link), overlay, links);
            }
            Message::Vote { number, vote } => {
                self.agreements.raise(number, vote, Some(link), overlay, links);
            }
            Message::Decision { number, head, agreement } => {
                self.agreements.decision(number, head, agreement, Some(link), overlay, links);
            }
            // After an end there is nothing to find out.
            Message::Inquire { .. } | Message::Question { .. } | Message::Answers { .. }
                if self.end.is_some() => {}
            Message::Inquire { by, reason } => self.inquests.inquire(by, reason, now, overlay, links),
            Message::Question { inquest } => self.inquests.question(inquest, link, overlay, links),
            Message::Answers { inquest, entries } => {
                self.inquests.answers(inquest, entries, Some(link), overlay, links);
            }
        }
    }

    fn down(&mut self, link: LinkId, cause: String, state: Vec<u8>) {
        let Some(gone) = self.links.remove(link) else { return };
        let peer = gone.peer;
        if self.overlay.is_gone(peer) {
            return;
        }
        if let Some(&other) = self.links.to(peer).first() {
            // Something may have been lost with the connection.
            return self.greet(other, peer);
        }
        if gone.met {
            let state = if state.is_empty() { gone.state } else { state };
            return self.lose(Loss { rank: peer, cause, state }, None);
        }
        // Perhaps it is about to leave and was not there for the connection any more.
        self.dials.plan(peer, self.now);
        self.dial();
    }

    fn command(&mut self, command: Command) {
        let (overlay, links) = (&self.overlay, &mut self.links);
        match command {
            Command::Gather { bytes, deadline } => self.gather.begin(bytes, deadline, overlay, links),
            Command::Agree { flags, blob } => self.agreements.begin(flags, blob, overlay, links),
            Command::GiveUp => {
                self.gather.give_up(overlay, links);
                self.agreements.give_up(overlay, links);
            }
            Command::Exclude { ranks, cause } => {
                for rank in ranks {
                    if rank != self.overlay.rank() {
                        let state = Vec::new();
                        self.lose(Loss { rank, cause: cause.clone(), state }, None);
                    }
                }
            }
            Command::End(end) => self.finish(end, None),
            Command::Inquire { reason } if self.end.is_none() => {
                self.inquests.inquire(overlay.rank(), reason, self.now, overlay, links);
            }
            Command::Report { inquest, state } if self.end.is_none() => {
                self.inquests.answers(inquest, vec![(overlay.rank(), state)], None, overlay, links);
            }
            Command::Inquire { .. } | Command::Report { .. } => {}
            Command::State(state) => self.state = state,
            Command::Leave => {
                self.part = Part::Leaves(self.now + LINGER);
                self.gather.end();
                self.inquests.end();
                self.links.flood(&Message::Fact(Fact::Left(self.overlay.rank())), None);
                self.plan_dials(Duration::ZERO);
                self.dial();
            }
        }
    }

    fn tick(&mut self) {
        if self.now >= self.next_ping {
            self.next_ping = self.now + self.settings.freeze.map_or(PING, |freeze| (freeze / 4).min(PING));
            self.links.flood(&Message::Ping { state: self.state.clone() }, None);
            self.plan_dials(AWAIT_DIAL);
        }
        if self.next_silence.is_some_and(|time| time <= self.now) {
            self.look_for_silence();
        }
        self.look_for_unanswered();
        if self.dials.look(self.now) {
            self.dial_past_suspects();
        }
        self.gather.tick(self.now, &self.overlay, &mut self.links);
        for peer in self.inquests.tick(self.now, &self.overlay, &mut self.links) {
            if !self.links.is_linked(peer) && peer != self.overlay.rank() {
                self.dials.plan(peer, self.now);
            }
        }
        self.dial();
    }

    fn look_for_silence(&mut self) {
        let Some(freeze) = self.settings.freeze else { return };
        let mut last: Vec<(Rank, Duration)> = self.links.iter().map(|link| (link.peer, link.heard)).collect();
        last.sort_unstable();
        // Of several connections to a peer one is enough.
        last.dedup_by(|later, earlier| {
            earlier.0 == later.0 && {
                earlier.1 = later.1;
                true
            }
        });
        self.next_silence =
            last.iter().map(|(_, heard)| *heard + freeze).filter(|time| *time > self.now).min();
        last.retain(|(_, heard)| *heard + freeze <= self.now);
        for (peer, heard) in last {
            let silent = (self.now - heard).as_secs_f64();
            let cause = format!("no sign of life for {silent:.1} s: stopped, or its host is gone");
            let link = self.links.to(peer).first().copied();
            let state = link.and_then(|link| self.links.get(link)).map_or(Vec::new(), |l| l.state.clone());
            self.lose(Loss { rank: peer, cause, state }, None);
        }
    }

    /// A rank is lost.
    fn lose(&mut self, loss: Loss, from: Option<LinkId>) {
        let rank = loss.rank;
        if rank == self.overlay.rank() {
            if self.part == Part::Takes {
                // Or its neighbours would see it go without a reason.
                self.links.flood(&Message::Fact(Fact::Lost(loss.clone())), from);
                self.links.act(Action::Excluded { cause: loss.cause });
            }
            return self.stop(Part::Excluded);
        }
        if rank >= self.overlay.ranks() || self.overlay.is_gone(rank) {
            return;
        }
        let fact = Message::Fact(Fact::Lost(loss.clone()));
        // If it is only stopped, it finds this when it wakes.
        self.links.close_to(rank, &fact);
        self.links.flood(&fact, from);
        self.lost.push(loss.clone());
        self.links.act(Action::Lost(loss));
        self.gone(rank, Presence::Lost);
    }

    /// A rank has left. If that is this one, somebody who stays knows of it.
    fn leave(&mut self, rank: Rank, from: LinkId) {
        if rank == self.overlay.rank() {
            if self.part != Part::Takes {
                self.stop(Part::Left);
            }
            return;
        }
        if rank >= self.overlay.ranks() || self.overlay.presence(rank) == Presence::Lost {
            return;
        }
        let first = !self.overlay.is_gone(rank);
        if first {
            self.links.flood_past(rank, &Message::Fact(Fact::Left(rank)), from);
            self.links.act(Action::Left(rank));
        }
        if self.links.get(from).is_some_and(|link| link.peer == rank) {
            self.acknowledge(from, rank);
        }
        if first {
            self.gone(rank, Presence::Left);
        }
    }

    /// Lets a rank that leaves know that somebody who stays knows of it, and will tell the others.
    fn acknowledge(&mut self, link: LinkId, rank: Rank) {
        if self.part == Part::Takes {
            self.links.send(link, Message::Fact(Fact::Left(rank)));
        }
    }

    /// Whether there is nobody who could stay: all have gone, or nobody listens there any more.
    fn is_alone(&self) -> bool {
        let refused = self.dials.refusals();
        self.overlay.here() - 1 <= refused
    }

    /// The communicator has ended.
    fn finish(&mut self, end: End, from: Option<LinkId>) {
        if self.end.is_some() || end.by >= self.overlay.ranks() {
            return;
        }
        self.links.flood(&Message::Fact(Fact::Ended(end.clone())), from);
        self.links.act(Action::Ended(end.clone()));
        self.end = Some(end);
        self.gather.end();
        self.inquests.end();
    }

    /// What follows when a rank has gone: perhaps another attachment, another head, and nothing to wait for.
    fn gone(&mut self, rank: Rank, how: Presence) {
        let (head, attachment) = (self.overlay.head(), self.overlay.attachment());
        self.overlay.remove(rank, how);
        self.dials.remove(rank);
        if self.part != Part::Takes {
            self.plan_dials(Duration::ZERO);
            return self.dial();
        }
        let (overlay, links) = (&self.overlay, &mut self.links);
        let now_attached = overlay.attachment().filter(|now| Some(*now) != attachment);
        if let Some((peer, &link)) = now_attached.and_then(|peer| Some((peer, links.to(peer).first()?))) {
            self.gather.say_again(link, overlay, links);
            self.agreements.say_again(link, links);
            self.inquests.say_again(link, peer, overlay, links);
        }
        self.gather.look_for_gone(overlay, links);
        self.agreements.look_for_gone(head, overlay, links);
        self.inquests.look_for_gone(self.now, overlay, links);
        self.plan_dials(if how == Presence::Left { AFTER_LEAVE } else { Duration::ZERO });
        self.dial();
    }

    fn stop(&mut self, part: Part) {
        self.links.close_all();
        self.dials.clear();
        self.part = part;
    }

    /// Entries and votes that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.gather.kept() + self.agreements.kept() + self.inquests.kept()
    }
}

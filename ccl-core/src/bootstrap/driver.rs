//! The control thread: gives a [control node](crate::control::Node) its connections and the clock.

use super::dial::Dialer;
use super::health::{Health, end_error, hush};
use super::key::Key;
use super::lobby::Lobby;
use super::net::{Connection, bootstrap_error, wait};
use super::session::Purpose;
use super::talk::Caller;
use super::wire::Message;
use super::{Joining, Testimony, Witness, identity_of};
use crate::control::{Action, Command, End, EndKind, Entry, Event, LinkId, Node, Settings};
use crate::error::{ErrorKind, Result};
use crate::flight::{RankState, Reason, judge_at};
use crate::plan::Rank;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long leaving may take: for somebody to know of it, which the node bounds itself, and for last words to go.
const FAREWELL: Duration = Duration::from_secs(2);

/// The same, from a communicator that has ended.
const SHORT_FAREWELL: Duration = Duration::from_millis(100);

/// How long an inquest waits for answers.
const INQUEST: Duration = Duration::from_secs(1);

/// What the thread works with.
pub(super) struct Driver {
    node: Node,
    start: Instant,
    rank: Rank,
    ranks: u32,
    /// Silence after which a rank counts as lost.
    freeze: Option<Duration>,
    session: Key,
    health: Arc<Health>,
    lobby: Lobby,
    links: BTreeMap<LinkId, (Rank, Connection)>,
    next: LinkId,
    dialers: BTreeMap<Rank, Dialer>,
    /// Connections whose last words are on their way.
    leaving: Vec<Connection>,
    /// When this rank's state is written down next for its neighbours, and how often it was.
    states_at: Instant,
    stated: u32,
    /// Since when this rank wants to leave.
    leaves: Option<Instant>,
    witness: Witness,
    /// Where the last words of neighbours on this host would be found.
    testimonies: BTreeMap<Rank, Testimony>,
}

impl Driver {
    /// For a rank that is connected to its neighbours in the tree.
    pub(super) fn new(
        joining: &Joining<'_>,
        session: Key,
        lobby: Lobby,
        neighbours: Vec<(Rank, Connection)>,
    ) -> Driver {
        let (rank, ranks, freeze) = (joining.rank, joining.ranks, joining.config.freeze_timeout);
        let settings = Settings { rank, ranks, freeze, inquest: INQUEST };
        let mut driver = Driver {
            node: Node::new(settings, Duration::ZERO),
            start: Instant::now(),
            rank,
            ranks,
            freeze,
            session,
            health: Arc::clone(&joining.health),
            lobby,
            links: BTreeMap::new(),
            next: 0,
            dialers: BTreeMap::new(),
            leaving: Vec::new(),
            states_at: Instant::now(),
            stated: 0,
            leaves: None,
            witness: joining.witness,
            testimonies: BTreeMap::new(),
        };
        for (peer, connection) in neighbours {
            driver.join(peer, connection);
        }
        driver
    }

    /// Runs until this rank has left. Never returns early but by an error, which the rank's calls then end with.
    pub(super) fn run(mut self) {
        let health = Arc::clone(&self.health);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.serve()));
        let error = match ended {
            Ok(Ok(())) => ErrorKind::Broken("it was closed".into()).into(),
            Ok(Err(error)) => {
                tracing::error!(rank = self.rank, %error, "the control thread failed");
                error
            }
            Err(_) => ErrorKind::Panicked("the control thread".into()).into(),
        };
        health.raise(error);
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            self.listen();
            let commands = std::mem::take(&mut self.health.state.lock().commands);
            for mut command in commands {
                match &mut command {
                    Command::Leave => self.leaves = Some(Instant::now()),
                    // The caller knows no other clock than its own.
                    Command::Gather { deadline, .. } => *deadline += self.now(),
                    _ => {}
                }
                self.handle(Event::Command(command));
            }
            self.dial();
            self.state();
            if self.node.wake().is_some_and(|wake| wake <= self.now()) {
                self.handle(Event::Tick);
            }
            self.leaving.retain_mut(|connection| {
                connection.hear();
                !connection.is_flushed()
            });
            if let Some(since) = self.leaves
                && ((self.node.is_over() && self.leaving.is_empty()) || since.elapsed() > self.farewell())
            {
                return Ok(());
            }
            self.sleep()?;
        }
    }

    /// Takes in whoever has called and whatever was said, without waiting.
    fn listen(&mut self) {
        for (connection, message) in self.lobby.greet(Instant::now()) {
            match Caller::of(&connection, &message) {
                Some(Caller::Neighbour(peer)) if peer < self.ranks && peer != self.rank => {
                    self.join(peer, connection);
                }
                Some(Caller::Peer(peer, talk)) => {
                    self.health.receive_caller(self.rank, (peer, talk), connection)
                }
                _ => {}
            }
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            // What is heard may close this link or any other.
            while let Some(message) = self.links.get_mut(&link).and_then(|(_, link)| link.hear()) {
                if let Message::Control(message) = message {
                    self.handle(Event::Heard { link, message });
                }
            }
            if let Some((peer, Connection { closed: Some(cause), .. })) = self.links.get(&link) {
                let (peer, cause) = (*peer, cause.clone());
                self.links.remove(&link);
                let state = self.testimonies.get(&peer).and_then(|testimony| testimony());
                let state = state.map_or_else(Vec::new, |state| state.to_bytes());
                self.handle(Event::Down { link, cause, state });
            }
        }
    }

    /// Goes on with the connections that this rank makes.
    fn dial(&mut self) {
        let peers: Vec<Rank> = self.dialers.keys().copied().collect();
        for peer in peers {
            let Some(dialer) = self.dialers.get_mut(&peer) else { continue };
            let (up, given_up) = match dialer.connect() {
                Ok(up) => (up, dialer.has_failed()),
                Err(error) => (false, Some((error.to_string(), false))),
            };
            if up {
                if let Some(dialer) = self.dialers.remove(&peer) {
                    self.join(peer, dialer.connection);
                }
            } else if let Some((cause, refused)) = given_up {
                self.dialers.remove(&peer);
                self.handle(Event::Unreached { peer, cause, refused });
            }
        }
    }

    fn join(&mut self, peer: Rank, connection: Connection) {
        let link = self.next;
        self.next += 1;
        self.links.insert(link, (peer, connection));
        self.handle(Event::Up { link, peer });
    }

    fn handle(&mut self, event: Event) {
        let now = self.now();
        self.node.handle(now, event);
        loop {
            let actions: Vec<Action> = self.node.actions().collect();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.act(action));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial(peer) => self.call(peer),
            Action::Send { link, message } => {
                if let Some((_, link)) = self.links.get_mut(&link) {
                    link.say(Message::Control(message));
                }
            }
            Action::Close(link) => {
                if let Some((_, link)) = self.links.remove(&link) {
                    self.leaving.push(link);
                }
            }
            Action::Gathered(result) => self.health.tell(|state| state.gathered = Some(result)),
            Action::Agreed(agreement) => self.health.tell(|state| state.agreed = Some(agreement)),
            Action::Unagreed { absent } => self.health.tell(|state| state.unagreed = Some(absent)),
            Action::Lost(loss) => {
                tracing::warn!(rank = loss.rank, cause = loss.cause, "a rank is lost");
                let error = self.health.loss_error(&loss);
                self.health.lose(loss, error);
            }
            Action::Left(rank) => self.health.tell(|state| {
                state.left.insert(rank);
            }),
            Action::Ended(end) => {
                tracing::debug!(by = end.by, kind = ?end.kind, "the communicator has ended");
                self.health.raise(end_error(&end));
            }
            Action::Excluded { cause } => self.health.raise(ErrorKind::Excluded { cause }.into()),
            Action::Report { inquest } => {
                let state = self.health.observed();
                self.node.handle(self.now(), Event::Command(Command::Report { inquest, state }));
            }
            Action::Judge { by, reason, states } => {
                let text = self.judge(&reason, &states);
                let end = End { by, kind: EndKind::Verdict, text };
                self.node.handle(self.now(), Event::Command(Command::End(end)));
            }
        }
    }

    /// The verdict in JSON, from the answers of those who gave one.
    fn judge(&self, reason: &[u8], states: &[Entry]) -> String {
        let reason = Reason::from_bytes(reason).unwrap_or(Reason::Asked);
        // Of those who are gone nothing is to be said but that, which was said already.
        let there = (0..self.ranks).filter(|rank| !self.node.is_gone(*rank));
        let mut all: BTreeMap<Rank, Option<RankState>> = there.map(|rank| (rank, None)).collect();
        let answers = states.iter().map(|(rank, bytes)| (*rank, RankState::from_bytes(bytes)));
        all.extend(answers);
        let states: Vec<_> = all.into_iter().collect();
        let place = |rank: Rank| {
            let member = self.health.members().get(rank as usize)?;
            Some(format!("process {} on {}", member.pid, member.host))
        };
        serde_json::to_string(&judge_at(self.ranks, &reason, &states, &place)).unwrap_or_default()
    }

    /// Begins to connect to a peer.
    fn call(&mut self, peer: Rank) {
        let words = vec![Message::Caller { rank: self.rank }];
        let member = self.health.members().get(peer as usize);
        let dialer =
            match member {
                Some(member) => Dialer::new(member.addresses.clone(), self.session, Purpose::Tree, words)
                    .map(|dialer| match self.freeze {
                        Some(freeze) => dialer.within(freeze),
                        None => dialer,
                    }),
                // It was connected while all were joining, and is so no more: it is as good as gone.
                None => Err(bootstrap_error("it has hung up while joining")),
            };
        match dialer {
            Ok(dialer) => drop(self.dialers.insert(peer, dialer)),
            Err(error) => {
                let event = Event::Unreached { peer, cause: error.to_string(), refused: member.is_none() };
                self.node.handle(self.now(), event);
            }
        }
    }

    /// Writes down what this rank does, for its next signs of life, and looks where its neighbours do.
    fn state(&mut self) {
        if !self.health.is_observed() || Instant::now() < self.states_at {
            return;
        }
        self.stated += 1;
        // The neighbours' records come into being at the same time as this rank's.
        let pause = [20, 100].get(self.stated as usize - 1).copied().unwrap_or(500);
        self.states_at = Instant::now() + Duration::from_millis(pause);
        self.handle(Event::Command(Command::State(self.health.observed())));
        let communicator = identity_of(&self.session);
        let members = self.health.members();
        let host = members.get(self.rank as usize).map(|own| &own.host);
        for (peer, _) in self.links.values() {
            let Some(member) = members.get(*peer as usize).filter(|member| Some(&member.host) == host) else {
                continue;
            };
            if !self.testimonies.contains_key(peer)
                && let Some(testimony) = (self.witness)(member.pid, communicator, *peer)
            {
                self.testimonies.insert(*peer, testimony);
            }
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) -> Result<()> {
        let bell = self.health.thread_bell();
        let farewell = self.leaves.map(|since| since + self.farewell());
        let (sockets, strangers, lobby_wake) = self.lobby.watch();
        let wakes = self.dialers.values().map(Dialer::wake).chain(lobby_wake);
        let wakes = wakes.chain(self.node.wake().map(|wake| self.start + wake));
        let wakes = wakes.chain((self.health.is_observed() && self.stated < 3).then_some(self.states_at));
        let wakes = wakes.chain(farewell);
        let until = wakes.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
        let links = self.links.values_mut().map(|(_, link)| link);
        let dialled = self.dialers.values_mut().map(|dialer| &mut dialer.connection);
        let all = strangers.iter_mut().chain(links).chain(dialled).chain(&mut self.leaving);
        wait(sockets, bell, all, until)?;
        if let Some(bell) = bell {
            hush(bell);
        }
        Ok(())
    }

    /// How long leaving may take. When all has ended, nobody waits for this rank any more.
    fn farewell(&self) -> Duration {
        if self.health.is_well() { FAREWELL } else { SHORT_FAREWELL }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

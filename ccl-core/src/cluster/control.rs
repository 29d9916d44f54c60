//! The control planes of all ranks in one thread and in virtual time.
//!
//! The same [`Node`]s that the bootstrap drives with real connections run here over connections that are drawn from a
//! seed: every message takes its own time and stays in order on its connection, dials take time, processes die in
//! the middle of what they say, are stopped, and go on. One seed always gives one run.

use super::Random;
use crate::control::{Action, Command, End, EndKind, Event, LinkId, Message, Node, Settings};
use crate::plan::Rank;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// The longest that a dial waits for a process that is stopped: longer than ranks may be silent, or for a moment only.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// The ranks, and the network between them.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// How many ranks there are.
    pub ranks: u32,
    /// Silence after which a rank counts as lost; `None`: never.
    pub freeze: Option<Duration>,
    /// How long an inquest waits for answers.
    pub inquest: Duration,
    /// A message, a dial and the end of a connection each take at least this long,
    pub least_delay: Duration,
    /// and at most this long.
    pub most_delay: Duration,
    /// All randomness comes from here.
    pub seed: u64,
}

impl ControlSettings {
    /// Ranks that are 1 µs to 1 ms apart, stopped after 10 s and questioned for 2 s.
    pub fn new(ranks: u32, seed: u64) -> ControlSettings {
        ControlSettings {
            ranks,
            freeze: Some(Duration::from_secs(10)),
            inquest: Duration::from_secs(2),
            least_delay: Duration::from_micros(1),
            most_delay: Duration::from_millis(1),
            seed,
        }
    }
}

/// What is done to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Its process dies.
    Kill,
    /// Its process dies when it has sent so many messages more.
    KillAfter(u64),
    /// Its process is stopped.
    Freeze,
    /// Its process goes on.
    Thaw,
    /// It is told to do something.
    Command(Command),
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// It is stopped.
    Frozen,
    /// It is dead.
    Dead,
}

/// What was sent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Signs of life.
    pub pings: u64,
    /// All other messages.
    pub messages: u64,
    /// Dials.
    pub dials: u64,
}

/// The control planes of all ranks.
#[derive(Debug)]
pub struct ControlCluster {
    members: Vec<Member>,
    wires: Vec<Wire>,
    happenings: BinaryHeap<Reverse<Happening>>,
    settings: ControlSettings,
    random: Random,
    now: Duration,
    /// Numbers happenings, so that those of one time keep their order.
    happened: u64,
    traffic: Traffic,
    told: Vec<Rank>,
}

/// One process.
#[derive(Debug)]
struct Member {
    node: Node,
    life: Life,
    /// Messages until it dies.
    doom: Option<u64>,
    /// What came while it was stopped.
    inbox: VecDeque<Event>,
    /// The tick that it waits for.
    wake: Option<Duration>,
    news: Vec<(Duration, Action)>,
}

/// A connection. Its number is its name at both ends.
#[derive(Clone, Copy, Debug)]
struct Wire {
    ends: [Side; 2],
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
struct Side {
    rank: Rank,
    /// Whether something can still come out of it.
    open: bool,
    /// When the last that was sent to it comes out; nothing does before it is up.
    last: Duration,
    up: Duration,
}

#[derive(Debug)]
struct Happening {
    time: Duration,
    number: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Deed(Rank, Deed),
    Tick(Rank),
    Heard { wire: LinkId, end: usize, message: Message },
    Closed { wire: LinkId, end: usize, cause: &'static str },
    Dialled { from: Rank, to: Rank },
    Connected { wire: LinkId },
    Unreached { from: Rank, to: Rank, refused: bool },
}

impl PartialEq for Happening {
    fn eq(&self, other: &Happening) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Happening {}

impl PartialOrd for Happening {
    fn partial_cmp(&self, other: &Happening) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Happening {
    fn cmp(&self, other: &Happening) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

impl ControlCluster {
    /// All ranks at time 0, each connected to its neighbours in the tree.
    pub fn new(settings: &ControlSettings) -> ControlCluster {
        let ControlSettings { ranks, freeze, inquest, .. } = *settings;
        let member = |rank| Member {
            node: Node::new(Settings { rank, ranks, freeze, inquest }, Duration::ZERO),
            life: Life::Running,
            doom: None,
            inbox: VecDeque::new(),
            wake: None,
            news: Vec::new(),
        };
        let mut cluster = ControlCluster {
            members: (0..ranks).map(member).collect(),
            wires: Vec::new(),
            happenings: BinaryHeap::new(),
            settings: settings.clone(),
            random: Random::new(settings.seed),
            now: Duration::ZERO,
            happened: 0,
            traffic: Traffic::default(),
            told: Vec::new(),
        };
        for rank in 1..ranks {
            if let Some(parent) = cluster.node(rank).attachment() {
                let link = cluster.connect(parent, rank);
                cluster.tell(parent, Event::Up { link, peer: rank });
                cluster.tell(rank, Event::Up { link, peer: parent });
            }
        }
        cluster
    }

    /// Virtual time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// A rank's control node.
    pub fn node(&self, rank: Rank) -> &Node {
        &self.members[rank as usize].node
    }

    /// What a rank's process is.
    pub fn life(&self, rank: Rank) -> Life {
        self.members[rank as usize].life
    }

    /// What a rank was told so far, and when: all actions that are for its user.
    pub fn news(&self, rank: Rank) -> &[(Duration, Action)] {
        &self.members[rank as usize].news
    }

    /// Who was told something since this was asked last, once for each of its news.
    pub fn told(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.told)
    }

    /// What was sent so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Does something to a rank at a time, or now if that has passed.
    pub fn at(&mut self, time: Duration, rank: Rank, deed: Deed) {
        self.schedule(time.max(self.now), What::Deed(rank, deed));
    }

    /// Does something to a rank now.
    pub fn deed(&mut self, rank: Rank, deed: Deed) {
        let member = &mut self.members[rank as usize];
        match deed {
            _ if member.life == Life::Dead => {}
            Deed::Kill => self.kill(rank),
            Deed::KillAfter(sends) => member.doom = Some(sends),
            Deed::Freeze => member.life = Life::Frozen,
            Deed::Thaw => {
                member.life = Life::Running;
                while self.life(rank) == Life::Running
                    && let Some(event) = self.members[rank as usize].inbox.pop_front()
                {
                    self.tell(rank, event);
                }
            }
            Deed::Command(command) => self.tell(rank, Event::Command(command)),
        }
    }

    /// Lets time pass until `end`.
    pub fn run_until(&mut self, end: Duration) {
        self.run_while(end, |_| true);
    }

    /// Lets time pass until `end`, or until [`told`](ControlCluster::told) has something to say; whether it has.
    pub fn run_until_news(&mut self, end: Duration) -> bool {
        self.run_while(end, |cluster| cluster.told.is_empty())
    }

    fn run_while(&mut self, end: Duration, goes_on: impl Fn(&ControlCluster) -> bool) -> bool {
        while goes_on(self) {
            match self.happenings.peek() {
                Some(Reverse(next)) if next.time <= end => {
                    let Some(Reverse(next)) = self.happenings.pop() else { break };
                    self.now = next.time;
                    self.happen(next.what);
                }
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
        true
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Deed(rank, deed) => self.deed(rank, deed),
            What::Tick(rank) => {
                let member = &mut self.members[rank as usize];
                if member.wake.is_some_and(|wake| wake <= self.now) {
                    member.wake = None;
                    self.tell(rank, Event::Tick);
                }
            }
            What::Heard { wire, end, message } => {
                let end = self.wires[wire as usize].ends[end];
                if end.open {
                    self.tell(end.rank, Event::Heard { link: wire, message });
                }
            }
            What::Closed { wire, end, cause } => {
                let end = &mut self.wires[wire as usize].ends[end];
                if std::mem::take(&mut end.open) {
                    let (rank, cause) = (end.rank, cause.to_string());
                    self.tell(rank, Event::Down { link: wire, cause, state: Vec::new() });
                }
            }
            What::Dialled { from, to } => {
                let answer = self.now + self.delay();
                match self.life(to) {
                    _ if self.life(from) == Life::Dead => {}
                    Life::Running if self.node(to).wake().is_some() => {
                        let wire = self.connect(from, to);
                        self.wires[wire as usize].ends[0].last = answer;
                        self.wires[wire as usize].ends[0].up = answer;
                        self.schedule(answer, What::Connected { wire });
                        self.tell(to, Event::Up { link: wire, peer: from });
                    }
                    Life::Frozen => {
                        let answer = answer + DIAL_TIMEOUT.mul_f64(self.random.up_to(100) as f64 / 100.0);
                        self.schedule(answer, What::Unreached { from, to, refused: false });
                    }
                    _ => self.schedule(answer, What::Unreached { from, to, refused: true }),
                }
            }
            What::Connected { wire } => {
                let [from, to] = self.wires[wire as usize].ends;
                self.tell(from.rank, Event::Up { link: wire, peer: to.rank });
            }
            What::Unreached { from, to, refused } => {
                let cause = if refused { "connection refused" } else { "timed out" }.to_string();
                self.tell(from, Event::Unreached { peer: to, cause, refused });
            }
        }
    }

    /// Lets a rank's node know of something, and does what it wants done.
    fn tell(&mut self, rank: Rank, event: Event) {
        let member = &mut self.members[rank as usize];
        match member.life {
            Life::Dead => return,
            Life::Frozen if event == Event::Tick => return member.inbox.push_front(event),
            Life::Frozen => return member.inbox.push_back(event),
            Life::Running => {}
        }
        member.node.handle(self.now, event);
        let actions: Vec<Action> = member.node.actions().collect();
        for action in actions {
            self.act(rank, action);
        }
        let member = &mut self.members[rank as usize];
        if member.life == Life::Dead {
            return;
        }
        let wake = member.node.wake();
        if wake.is_some_and(|wake| member.wake.is_none_or(|planned| wake < planned)) {
            member.wake = wake;
            self.schedule(wake.unwrap_or_default().max(self.now), What::Tick(rank));
        }
    }

    fn act(&mut self, rank: Rank, action: Action) {
        if self.life(rank) == Life::Dead {
            return;
        }
        match action {
            Action::Dial(to) => {
                self.traffic.dials += 1;
                let time = self.now + self.delay();
                self.schedule(time, What::Dialled { from: rank, to });
            }
            Action::Send { link, message } => self.send(rank, link, message),
            Action::Close(link) => {
                let end = self.end_of(link, rank);
                self.wires[link as usize].ends[end].open = false;
                self.close(link, 1 - end, "closed", true);
            }
            Action::Report { inquest } => {
                let state = rank.to_be_bytes().to_vec();
                self.tell(rank, Event::Command(Command::Report { inquest, state }));
            }
            Action::Judge { by, .. } => {
                self.note(rank, action);
                let end = End { by, kind: EndKind::Verdict, text: format!("judged by rank {rank}") };
                self.tell(rank, Event::Command(Command::End(end)));
            }
            news => self.note(rank, news),
        }
    }

    fn note(&mut self, rank: Rank, news: Action) {
        self.members[rank as usize].news.push((self.now, news));
        self.told.push(rank);
    }

    fn send(&mut self, rank: Rank, link: LinkId, message: Message) {
        let member = &mut self.members[rank as usize];
        if let Some(left) = &mut member.doom {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return self.kill(rank),
            }
        }
        match message {
            Message::Ping { .. } => self.traffic.pings += 1,
            _ => self.traffic.messages += 1,
        }
        let delay = self.delay();
        let end = 1 - self.end_of(link, rank);
        let other = &mut self.wires[link as usize].ends[end];
        other.last = other.last.max(self.now + delay);
        let time = other.last;
        self.schedule(time, What::Heard { wire: link, end, message });
    }

    fn kill(&mut self, rank: Rank) {
        let member = &mut self.members[rank as usize];
        member.life = Life::Dead;
        member.inbox.clear();
        for wire in 0..self.wires.len() {
            for end in 0..2 {
                if self.wires[wire].ends[end].rank == rank && self.wires[wire].ends[end].open {
                    self.wires[wire].ends[end].open = false;
                    // What it said last may be lost with it.
                    let in_order = self.random.bits().is_multiple_of(2);
                    self.close(wire as LinkId, 1 - end, "connection reset", in_order);
                }
            }
        }
    }

    /// Lets one end of a connection know that the other is closed.
    fn close(&mut self, wire: LinkId, end: usize, cause: &'static str, in_order: bool) {
        let soon = self.now + self.delay();
        let Side { last, up, .. } = self.wires[wire as usize].ends[end];
        let time = soon.max(if in_order { last } else { up });
        self.schedule(time, What::Closed { wire, end, cause });
    }

    fn connect(&mut self, from: Rank, to: Rank) -> LinkId {
        let end = |rank| Side { rank, open: true, last: self.now, up: self.now };
        self.wires.push(Wire { ends: [end(from), end(to)] });
        (self.wires.len() - 1) as LinkId
    }

    fn end_of(&self, link: LinkId, rank: Rank) -> usize {
        usize::from(self.wires[link as usize].ends[1].rank == rank)
    }

    fn delay(&mut self) -> Duration {
        let ControlSettings { least_delay, most_delay, .. } = self.settings;
        let spread = most_delay.saturating_sub(least_delay).as_nanos() as u64;
        least_delay + Duration::from_nanos(self.random.up_to(spread + 1) - 1)
    }

    fn schedule(&mut self, time: Duration, what: What) {
        self.happened += 1;
        self.happenings.push(Reverse(Happening { time, number: self.happened, what }));
    }
}

//! The order in which the moves of a tile can run with bounded links, or the cycle that stops them.
//!
//! A move starts when every piece that it reads has been sent and every link that it writes has a credit,
//! and does all at once. No move can take from another what it needs, so the order of trying does not
//! matter: either every order ends, or none does.

use super::Fault;
use super::fault::{Awaits, Wait};
use super::graph::{Event, Graph, LaneId, Message, Read, Write};

/// All moves, in an order in which they can run with `credits` slots per link.
pub(super) fn schedule(graph: &Graph, credits: u32) -> Result<Vec<Event>, Fault> {
    let mut run = Run::new(graph, credits);
    while let Some(lane) = run.ready.pop() {
        run.advance(lane);
    }
    if run.order.len() == graph.moves() { Ok(run.order) } else { Err(run.deadlock()) }
}

/// The smallest number of credits with which the plan cannot deadlock.
pub(super) fn min_credits(graph: &Graph) -> Result<u32, Fault> {
    // As many credits as messages: nobody ever waits for one.
    let most = graph.busiest_link().max(1);
    let (mut low, mut high) = (0, 1);
    while let Err(fault) = schedule(graph, high) {
        if high == most {
            return Err(fault);
        }
        low = high;
        high = high.saturating_mul(2).min(most);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if schedule(graph, middle).is_ok() { high = middle } else { low = middle }
    }
    Ok(high)
}

struct Run<'g> {
    graph: &'g Graph,
    credits: u32,
    order: Vec<Event>,
    /// Lanes to try.
    ready: Vec<LaneId>,
    lanes: Vec<Progress>,
    sent: Vec<bool>,
    taken: Vec<bool>,
}

struct Progress {
    next: Event,
    /// How many of the conditions of `next` are known to hold.
    met: u32,
    /// Not among the lanes to try.
    parked: bool,
}

impl<'g> Run<'g> {
    fn new(graph: &'g Graph, credits: u32) -> Run<'g> {
        let lanes = graph.lanes.iter().map(|lane| Progress { next: lane.first, met: 0, parked: false });
        Run {
            graph,
            credits,
            order: Vec::with_capacity(graph.moves()),
            ready: (0..graph.lanes.len() as LaneId).rev().collect(),
            lanes: lanes.collect(),
            sent: vec![false; graph.messages.len()],
            taken: vec![false; graph.messages.len()],
        }
    }

    /// Runs a lane until it ends or waits.
    fn advance(&mut self, lane: LaneId) {
        let end = self.graph.lanes[lane as usize].end;
        while self.lanes[lane as usize].next < end {
            if self.blocked_on(lane).is_some() {
                self.lanes[lane as usize].parked = true;
                return;
            }
            let progress = &mut self.lanes[lane as usize];
            let event = progress.next;
            progress.next += 1;
            progress.met = 0;
            self.order.push(event);
            self.finish(event);
        }
    }

    /// The first condition of the lane's next move that does not hold.
    fn blocked_on(&mut self, lane: LaneId) -> Option<Need> {
        let progress = &mut self.lanes[lane as usize];
        let (reads, writes) = (self.graph.reads(progress.next), self.graph.writes(progress.next));
        while let Some(read) = reads.get(progress.met as usize) {
            if let Read::Message(message) = *read
                && !self.sent[message as usize]
            {
                return Some(Need::Sent(message));
            }
            progress.met += 1;
        }
        while let Some(write) = writes.get(progress.met as usize - reads.len()) {
            if let Write::Message(message) = *write
                && let Some(before) = self.graph.earlier(message, self.credits)
                && !self.taken[before as usize]
            {
                return Some(Need::Taken(before));
            }
            progress.met += 1;
        }
        None
    }

    /// Sends what the move sends, returns its credits, and wakes who waited for that.
    fn finish(&mut self, event: Event) {
        let graph = self.graph;
        for write in graph.writes(event) {
            if let Write::Message(message) = *write {
                self.sent[message as usize] = true;
                let at = &graph.messages[message as usize];
                self.wake(graph.links[at.link as usize].receiver, at.receiver);
            }
        }
        for read in graph.reads(event) {
            if let Read::Message(message) = *read {
                self.taken[message as usize] = true;
                if let Some(later) = graph.later(message, self.credits) {
                    let at = &graph.messages[later as usize];
                    self.wake(graph.links[at.link as usize].sender, at.sender);
                }
            }
        }
    }

    fn wake(&mut self, lane: LaneId, event: Event) {
        let progress = &mut self.lanes[lane as usize];
        if progress.parked && progress.next == event {
            progress.parked = false;
            self.ready.push(lane);
        }
    }

    /// The cycle, once nothing can move.
    fn deadlock(mut self) -> Fault {
        let graph = self.graph;
        let ended = |run: &Run<'_>, lane: usize| run.lanes[lane].next == graph.lanes[lane].end;
        let stuck = (0..graph.lanes.len()).find(|&lane| !ended(&self, lane));
        // Whoever waits, waits for a lane that waits too: the numbers of messages agree at both ends.
        let mut lane = stuck.map_or(0, |lane| lane as LaneId);
        let mut position = vec![usize::MAX; graph.lanes.len()];
        let mut chain = Vec::new();
        while let Some(need) = self.blocked_on(lane) {
            if position[lane as usize] != usize::MAX {
                chain.drain(..position[lane as usize]);
                break;
            }
            position[lane as usize] = chain.len();
            let at = graph.place(self.lanes[lane as usize].next);
            let (Need::Sent(message) | Need::Taken(message)) = need;
            let link = &graph.links[graph.messages[message as usize].link as usize];
            let channel = link.channel;
            let (awaits, next) = match need {
                Need::Sent(_) => (Awaits::Piece { peer: link.from, channel }, link.sender),
                Need::Taken(_) => (Awaits::Credit { peer: link.to, channel }, link.receiver),
            };
            chain.push(Wait { at, awaits });
            lane = next;
        }
        Fault::Deadlock { credits: self.credits, cycle: chain }
    }
}

/// What a move may wait for.
enum Need {
    /// This message to be sent.
    Sent(Message),
    /// This message to be taken, which frees its slot.
    Taken(Message),
}

//! The proxy: carries what a communicator's kernels send to ranks on other hosts, and what comes from there.
//!
//! A kernel's wire to another host ends in a [`Gate`]. The proxy is a thread, `ccl-proxy`, that has [`SideLinks`] put pieces out of its slots
//! into those of the peer's gate, or, where there are no windows, copies them onto a link, and the peer's proxy off it into its gate. All
//! wires of two ranks share one link each way. A proxy sends a piece only if it has heard that the slot for it is free over there,
//! so whatever comes can be put away at once, and no wire holds up another.
//!
//! It is driven by flags alone: nothing of a call passes by the host, so that graphs can be replayed. While
//! nothing moves it looks more and more seldom; a call that is launched wakes it.

use super::frame::{Frame, Length};
use super::way::Way;
use super::windows::Crossing;
use crate::{AbortHandle, Error, Monitor, Rank, Result, spawn_quiet};
use ccl_core::ErrorKind;
use ccl_core::communicator::SideLinks;
use ccl_core::kernels::Piece;
use ccl_transport_cuda::engine::Gate;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Looks at once after the last piece.
const SPINS: u32 = 200;
/// For so long after it the core is given to others between two looks.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// The longest sleep between two looks in the first second after it, and later: a look costs some 10 µs, with the waking.
const NAPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];
/// When the second begins to count.
const IDLE: Duration = Duration::from_secs(1);
/// How long the control plane may take to know why a link is in disorder, or that the peer has left.
const EXPLANATION: Duration = Duration::from_millis(500);

/// A thread that carries pieces.
pub(super) struct Proxy {
    bell: Arc<Monitor<Bell>>,
    thread: Monitor<Option<JoinHandle<SideLinks>>>,
}

/// What others tell it.
#[derive(Default)]
struct Bell {
    /// A call may begin.
    rung: bool,
    /// When to have ended; no kernel of this rank runs any more.
    closing: Option<Instant>,
}

impl Proxy {
    /// Starts it. The links are to the gate's peers, in the same order.
    pub(super) fn start(
        gate: Arc<Gate>,
        (links, crossings): (SideLinks, Vec<Crossing>),
        alarm: AbortHandle,
    ) -> Result<Proxy> {
        let bell = Arc::new(Monitor::new(Bell::default()));
        let ways = vec![Way::default(); gate.peers().len() * gate.ways()];
        let peer = |(&rank, crossing)| {
            let (put, over, landed) = (VecDeque::new(), 0, Vec::new());
            Peer { rank, crossing, speaks: true, hears: true, put, over, landed }
        };
        let peers = gate.peers().iter().zip(crossings).map(peer).collect();
        let carrier = Carrier { gate, links, alarm, peers, ways };
        let heard = Arc::clone(&bell);
        let work = move || {
            let _told = TellsPanic(carrier.alarm.clone());
            carrier.run(&heard)
        };
        let thread = spawn_quiet("ccl-proxy", work).map_err(|cause| {
            Error::system("starting a thread that carries pieces", cause, "raise the limit of threads")
        })?;
        Ok(Proxy { bell, thread: Monitor::new(Some(thread)) })
    }

    /// A call may begin.
    pub(super) fn ring(&self) {
        let mut bell = self.bell.lock();
        bell.rung = true;
        bell.notify();
    }

    /// Ends it when all is sent that this rank's kernels have sent, or at the deadline. The links are in order until they are
    /// dropped; the second time there are none.
    pub(super) fn close(&self, deadline: Instant) -> Option<SideLinks> {
        let mut bell = self.bell.lock();
        bell.closing = Some(deadline);
        bell.notify();
        drop(bell);
        let thread = self.thread.lock().take()?;
        thread.join().ok()
    }
}

/// Kernels do not wait for a thread that has panicked.
struct TellsPanic(AbortHandle);

impl Drop for TellsPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("the thread that carries what kernels send to other hosts panicked");
        }
    }
}

/// What the thread has.
struct Carrier {
    gate: Arc<Gate>,
    links: SideLinks,
    alarm: AbortHandle,
    peers: Vec<Peer>,
    /// Those of the first peer, then of the next.
    ways: Vec<Way>,
}

/// A peer that has left in order, or whose link has failed, may have sent before what has not come yet.
struct Peer {
    rank: Rank,
    crossing: Crossing,
    speaks: bool,
    hears: bool,
    /// The puts that are not over, in order: of each its way, and how many pieces the way has with it. And how many were over before.
    put: VecDeque<(usize, u32)>,
    over: u64,
    /// Pieces that have come and that the kernel is told of next.
    landed: Vec<Landed>,
}

/// A piece that lies in its slot.
struct Landed {
    way: usize,
    number: u32,
    len: usize,
    tag: u32,
}

impl Carrier {
    fn run(mut self, bell: &Monitor<Bell>) -> SideLinks {
        let mut stillness = Stillness::default();
        while self.alarm.health().is_well() {
            let has_moved = self.step();
            let is_flushed = self.flush();
            if has_moved {
                stillness = Stillness::default();
                continue;
            }
            let Some(limit) = stillness.next() else { continue };
            let is_done = is_flushed && self.is_empty();
            let mut bell = bell.lock();
            if bell.closing.is_some_and(|deadline| is_done || Instant::now() >= deadline) {
                return self.links;
            }
            if !bell.rung {
                bell.wait(Some(limit));
            }
            if std::mem::take(&mut bell.rung) {
                stillness = Stillness::default();
            }
        }
        self.links.withdraw();
        self.links
    }

    /// Whether nothing of the kernels is left to be sent.
    fn is_empty(&self) -> bool {
        let ways = self.gate.ways();
        let is_sent = |peer: usize| {
            (0..ways).all(|way| self.gate.outgoing(peer, way, self.ways[peer * ways + way].next()).is_none())
        };
        let is_over = |peer: usize| self.peers[peer].put.is_empty() && is_sent(peer);
        (0..self.peers.len()).all(|peer| !self.peers[peer].hears || is_over(peer))
    }

    /// Moves what can be moved. Whether anything was.
    fn step(&mut self) -> bool {
        let mut has_moved = false;
        for peer in 0..self.peers.len() {
            if self.peers[peer].speaks {
                let received = self.receive(peer);
                self.peers[peer].speaks = received.is_ok();
                has_moved |= received.unwrap_or_else(|error| self.lose(peer, error));
            }
            if self.peers[peer].hears {
                let sent = self.send(peer);
                self.peers[peer].hears = sent.is_ok();
                has_moved |= sent.unwrap_or_else(|error| self.lose(peer, error));
            }
        }
        has_moved
    }

    /// Puts away what has come from a peer.
    fn receive(&mut self, peer: usize) -> Result<bool> {
        let (mut has_moved, ways) = (false, self.gate.ways());
        while let Some(arrival) = self.links.peek(peer)? {
            let frame = Frame::read(arrival.tag);
            let way = match frame {
                Frame::Piece { way, .. } | Frame::Credit { way, .. } => way as usize,
            };
            if way >= ways {
                return Err(self.malformed(peer, &format!("it names way {way} of {ways}")));
            }
            match frame {
                Frame::Piece { number, tag, .. } => self.arrive(peer, way, (number, tag), arrival.piece)?,
                Frame::Credit { count, .. } => {
                    if !self.ways[peer * ways + way].hears(count) {
                        return Err(self.malformed(peer, "it has released more than was sent"));
                    }
                }
            }
            self.links.release(peer)?;
            has_moved = true;
        }
        self.tell(peer)?;
        Ok(has_moved)
    }

    /// Tells the kernel of what has come. Where the device may not see yet what the network has written, it is made to, once for all.
    fn tell(&mut self, peer: usize) -> Result<()> {
        let from = &mut self.peers[peer];
        if from.crossing.needs_flush && !from.landed.is_empty() {
            self.gate.flush()?;
        }
        for Landed { way, number, len, tag } in from.landed.drain(..) {
            self.gate.arrive(peer, way, number, len, tag);
        }
        Ok(())
    }

    /// A piece has come: it is in its slot, if the peer has put it there, and these bytes are its length; else they are the piece.
    fn arrive(&mut self, peer: usize, way: usize, (number, tag): (u16, u32), bytes: Piece) -> Result<()> {
        let is_put = self.peers[peer].crossing.is_put_to;
        let len = if is_put { Length::read(bytes) } else { Some(bytes.len()) };
        let len = len.filter(|len| *len <= self.gate.slot_bytes(way));
        let at = &mut self.ways[peer * self.gate.ways() + way];
        let arrived = len.and_then(|len| Some((at.arrives(number, self.gate.released(peer, way))?, len)));
        let Some((number, len)) = arrived else {
            let len = len.unwrap_or(bytes.len());
            let what = format!("piece {number} of {len} bytes on way {way}, which has no room for it");
            return Err(self.malformed(peer, &what));
        };
        if !is_put {
            let room = self.gate.room(peer, way, number, len).ok_or_else(|| untouchable("comes from"))?;
            room.copy_from(bytes);
        }
        self.peers[peer].landed.push(Landed { way, number, len, tag });
        Ok(())
    }

    /// Sends a peer what the kernel has sent to it, and says what the kernel has released.
    fn send(&mut self, peer: usize) -> Result<bool> {
        let (mut has_moved, ways) = (self.take_back(peer)?, self.gate.ways());
        for way in 0..ways {
            let at = &mut self.ways[peer * ways + way];
            while at.may_send() {
                let Some((place, tag)) = self.gate.outgoing(peer, way, at.next()) else { break };
                let frame = Frame::Piece { way: way as u32, number: at.next() as u16, tag };
                let to = &mut self.peers[peer];
                if to.crossing.puts {
                    let len = Length::of(place.len());
                    if !self.links.put(peer, place, len.piece(), frame.word())? {
                        return Ok(has_moved);
                    }
                    // Its slot is the kernel's again when the network needs it no more.
                    to.put.push_back((way, at.sent()));
                } else {
                    let piece = self.gate.sent(peer, &place).ok_or_else(|| untouchable("goes to"))?;
                    if !self.links.send(peer, piece.as_piece(), frame.word())? {
                        return Ok(has_moved);
                    }
                    self.gate.take(peer, way, at.sent());
                }
                has_moved = true;
            }
            let released = self.gate.released(peer, way);
            if at.owes(released) {
                let frame = Frame::Credit { way: way as u32, count: released as u16 };
                if !self.links.send(peer, Piece::EMPTY, frame.word())? {
                    return Ok(has_moved);
                }
                at.told(released);
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Gives the kernel the slots of puts that are over.
    fn take_back(&mut self, peer: usize) -> Result<bool> {
        let to = &mut self.peers[peer];
        if to.put.is_empty() {
            return Ok(false);
        }
        let over = self.links.puts_over(peer)?;
        let more = over.saturating_sub(to.over) as usize;
        to.over = over;
        for (way, sent) in to.put.drain(..more.min(to.put.len())) {
            self.gate.take(peer, way, sent);
        }
        Ok(more > 0)
    }

    /// Hands on what was sent. True if nothing is left here.
    fn flush(&mut self) -> bool {
        match self.links.flush() {
            Ok(flushed) => flushed,
            Err(error) => {
                let at = |rank| self.peers.iter().position(|peer| peer.rank == rank);
                match *error.kind() {
                    // What is wrong with a peer is found where it is received from.
                    ErrorKind::Transport { peer: Some(rank), .. } if at(rank).is_some() => {}
                    _ => self.fail(error),
                }
                true
            }
        }
    }

    /// A link with a peer has failed. That of one that has left in order is not needed any more. Nothing has moved.
    fn lose(&self, peer: usize, error: Error) -> bool {
        let (rank, health) = (self.peers[peer].rank, self.alarm.health());
        let begin = Instant::now();
        while health.who_left([rank]).is_none() && health.is_well() {
            if begin.elapsed() >= EXPLANATION {
                self.fail(error);
                break;
            }
            std::thread::sleep(NAPS[0]);
        }
        false
    }

    fn fail(&self, error: Error) {
        tracing::warn!(target: "cuda", %error, "pieces of kernels cannot be carried");
        self.alarm.fail(&error.to_string());
    }

    fn malformed(&self, peer: usize, what: &str) -> Error {
        let rank = self.peers[peer].rank;
        ErrorKind::Malformed { what: format!("a piece from rank {rank}'s kernels"), cause: what.to_string() }
            .into()
    }
}

/// Slots in a device's memory, with nobody who puts: there are none, as [`windows`](super::windows) agrees on both together.
fn untouchable(what: &str) -> Error {
    Error::unsupported(
        format!("to copy what {what} the memory of a device"),
        "report it with the log of RDMACCL_DEBUG=net",
    )
}

/// For how long nothing has moved.
#[derive(Default)]
struct Stillness {
    spins: u32,
    since: Option<Instant>,
}

impl Stillness {
    /// What to do now that nothing has moved: to look again, or to sleep for so long, an eighth of what has passed.
    fn next(&mut self) -> Option<Duration> {
        if self.spins < SPINS {
            self.spins += 1;
            std::hint::spin_loop();
            return None;
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < YIELD_TIME {
            std::thread::yield_now();
            return None;
        }
        Some((waited / 8).min(NAPS[usize::from(waited >= IDLE)]))
    }
}

//! How a communicator is, for all threads that care: those in calls, the control thread, whoever aborts.

use super::net::Connection;
use super::talk::Talk;
use super::wire::Member;
use crate::control::{Agreement, Command, End, EndKind, GatherFailed, Loss};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::{RankState, Reason, Verdict};
use crate::monitor::{Guard, Monitor};
use crate::plan::Rank;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long a rank waits for a verdict: an inquest, and the ways there and back.
const INQUEST: Duration = Duration::from_millis(2500);

/// What a peer that has left has said before may still be on its way; for so long it is waited for.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long the control plane may take to know why a connection or a link is in disorder, also on a busy machine.
const EXPLANATION: Duration = Duration::from_secs(2);

/// What this rank does, for its peers: see [`Health::observe`].
pub type Observer = Box<dyn Fn() -> RankState + Send + Sync>;

/// A communicator's state of health. Made before the communicator is, so that joining can be aborted too.
#[derive(Default)]
pub struct Health {
    /// [`WELL`], [`ENDED`] or [`ABORTED`]; only ever grows. It says no more than "look at `state`", whose lock orders
    /// everything, so that the data path reads it Relaxed.
    alarm: AtomicU8,
    pub(super) state: Monitor<State>,
    /// Whether kernels make calls, of which what is left of a dead process does not tell. Set once.
    has_kernels: AtomicBool,
    bells: OnceLock<Bells>,
    members: OnceLock<Vec<Member>>,
}

const WELL: u8 = 0;
/// No call can end right any more that waits for something.
const ENDED: u8 = 1;
/// Whoever drives this rank wants its calls to end at once.
const ABORTED: u8 = 2;

/// Descriptors that end a sleep in `poll`.
#[derive(Debug)]
struct Bells {
    /// Whose they are.
    rank: Rank,
    thread: OwnedFd,
    caller: OwnedFd,
}

/// What is under the lock.
#[derive(Default)]
pub(super) struct State {
    /// Why calls end: the first reason.
    error: Option<Error>,
    pub(super) lost: BTreeMap<Rank, Loss>,
    pub(super) left: BTreeSet<Rank>,
    /// For the control thread.
    pub(super) commands: Vec<Command>,
    pub(super) gathered: Option<Result<Vec<Vec<u8>>, GatherFailed>>,
    pub(super) agreed: Option<Agreement>,
    /// Who is missing in an agreement that this rank has given up.
    pub(super) unagreed: Option<Vec<Rank>>,
    /// Peers that called for a swap or a stream before this rank named them; one connection for each at most.
    pub(super) callers: BTreeMap<(Rank, Talk), Connection>,
    /// What this rank does; set once.
    observer: Option<Arc<Observer>>,
    /// Communicators that are being made of this one, and what has ended their making.
    successors: Vec<Weak<Health>>,
    ended_successors: Option<Error>,
}

impl Health {
    /// Ends this rank's calls, from any thread, at any time, more than once: the call that runs at its next wait, later ones
    /// before they begin. The peers are told.
    pub fn abort(&self) {
        let mut state = self.state.lock();
        if self.alarm.swap(ABORTED, Ordering::Relaxed) != ABORTED {
            state.error.get_or_insert_with(|| ErrorKind::Aborted.into());
            let end = End { by: self.by(), kind: EndKind::Aborted, text: String::new() };
            state.commands.push(Command::End(end));
            self.wake(&state);
            let successors = state.end_successors(&ErrorKind::Aborted.into());
            drop(state);
            successors.iter().for_each(|successor| successor.abort());
        }
    }

    /// Ends the communicator for all ranks, for this reason, from any thread: calls end with [`ErrorKind::Ended`], here and
    /// at the peers.
    pub fn end(&self, kind: EndKind, reason: &str) {
        let end = End { by: self.by(), kind, text: reason.into() };
        self.raise(end_error(&end));
        self.command(Command::End(end));
    }

    /// Ends the communicator for all ranks because this one cannot go on, unless they know already that it has ended.
    pub fn give_up(&self, cause: &str) {
        if self.is_well() {
            self.end(EndKind::Failed, cause);
        }
    }

    /// While a communicator is made of this one, what ends its joining is that this one is aborted, ends, or loses a rank; its other
    /// ranks are told. `gone` are not to join it: a rank that is lost by now and is none of them ends it too.
    pub fn precede(&self, successor: &Arc<Health>, gone: &[Rank]) {
        let mut state = self.state.lock();
        state.successors.push(Arc::downgrade(successor));
        let error =
            state.lost.values().find(|loss| !gone.contains(&loss.rank)).map(|loss| self.loss_error(loss));
        if let Some(error) = &error {
            state.ended_successors.get_or_insert_with(|| error.clone());
        }
        drop(state);
        if self.is_aborted() {
            successor.abort();
        }
        if let Some(error) = error {
            successor.end_for(error);
        }
    }

    /// Ends a communicator that is being made, for what has happened to the one that it is made of.
    fn end_for(&self, error: Error) {
        let text = format!("the communicator that it is made of has ended: {error}");
        let mut state = self.state.lock();
        // Under the same lock as the error, so that whoever ends for that tells the end.
        state.commands.push(Command::End(End { by: self.by(), kind: EndKind::Failed, text }));
        self.keep(error, &mut state);
    }

    /// Those that were made of it stand alone from now on; an error if something here has ended their making, which
    /// may have been over just before, and which such a communicator then knows in terms of this one's ranks.
    pub fn part(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.successors.clear();
        state.ended_successors.take().map_or(Ok(()), Err)
    }

    /// Whether nothing has happened that ends calls which wait.
    #[inline]
    pub fn is_well(&self) -> bool {
        self.alarm.load(Ordering::Relaxed) == WELL
    }

    /// Whether this rank was aborted, so that calls end at once.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.alarm.load(Ordering::Relaxed) == ABORTED
    }

    /// Why calls end, if something has happened; [`ErrorKind::Aborted`] if this rank was aborted, whatever happened before.
    pub fn error(&self) -> Option<Error> {
        if self.is_aborted() {
            return Some(ErrorKind::Aborted.into());
        }
        self.state.lock().error.clone()
    }

    /// An error if something has happened that ends calls which wait.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_well() { Ok(()) } else { self.error().map_or(Ok(()), Err) }
    }

    /// Asks for an inquest and waits for its verdict: the error with which the communicator has ended, which may also
    /// be another; `None` if there is none within a few seconds.
    pub fn inquire(&self, reason: &Reason) -> Option<Error> {
        self.command(Command::Inquire { reason: reason.to_bytes() });
        self.wait_for_error(INQUEST)
    }

    /// Those that are lost.
    pub fn lost(&self) -> Vec<Rank> {
        self.state.lock().lost.keys().copied().collect()
    }

    /// One of these ranks that has left in order, if there is any.
    pub fn who_left(&self, among: impl IntoIterator<Item = Rank>) -> Option<Rank> {
        let state = self.state.lock();
        among.into_iter().find(|rank| state.left.contains(rank))
    }

    /// What peers are told of this rank when they ask. Set once.
    pub fn observe(&self, observer: Observer) {
        self.state.lock().observer.get_or_insert_with(|| Arc::new(observer));
        if let Some(bell) = self.thread_bell() {
            ring(bell);
        }
    }

    /// Kernels make calls of this communicator.
    pub(crate) fn set_kernels(&self) {
        self.has_kernels.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_observed(&self) -> bool {
        self.state.lock().observer.is_some()
    }

    /// What this rank does now, read without waiting; `None` before it has joined.
    pub fn state(&self) -> Option<RankState> {
        let observer = self.state.lock().observer.clone();
        observer.map(|observer| observer())
    }

    /// [`state`](Health::state) in the form in which it travels; empty if nobody observes it.
    pub(super) fn observed(&self) -> Vec<u8> {
        self.state().map_or_else(Vec::new, |state| state.to_bytes())
    }

    /// Makes what the control thread and the waits of this rank are woken by.
    pub(super) fn attach(&self, rank: Rank) -> Result<()> {
        let bells = Bells { rank, thread: bell()?, caller: bell()? };
        self.bells
            .set(bells)
            .map_err(|_| Error::invalid("one state of health for two communicators", "make one for each"))
    }

    /// Who ends the communicator, when this rank does.
    fn by(&self) -> Rank {
        self.bells.get().map_or(0, |bells| bells.rank)
    }

    pub(super) fn thread_bell(&self) -> Option<&OwnedFd> {
        self.bells.get().map(|bells| &bells.thread)
    }

    pub(super) fn caller_bell(&self) -> Option<&OwnedFd> {
        self.bells.get().map(|bells| &bells.caller)
    }

    pub(super) fn set_members(&self, members: Vec<Member>) {
        let _ = self.members.set(members);
    }

    /// What the peers are to be told of the end of a communicator that has no control thread yet.
    pub(super) fn untold_end(&self) -> Option<End> {
        let state = self.state.lock();
        state.commands.iter().find_map(|command| match command {
            Command::End(end) => Some(end.clone()),
            _ => None,
        })
    }

    pub(super) fn members(&self) -> &[Member] {
        self.members.get().map_or(&[], |members| members)
    }

    /// Tells the control thread what this rank wants.
    pub(super) fn command(&self, command: Command) {
        let mut state = self.state.lock();
        state.commands.push(command);
        if let Some(bell) = self.thread_bell() {
            ring(bell);
        }
    }

    /// Keeps why calls end, if it is the first reason, and ends all waits.
    fn keep(&self, error: Error, state: &mut Guard<'_, State>) {
        state.error.get_or_insert(error);
        self.alarm.fetch_max(ENDED, Ordering::Relaxed);
        self.wake(state);
    }

    /// Calls end for this reason, unless they have ended before; so does what is made of the communicator.
    pub(super) fn raise(&self, error: Error) {
        let mut state = self.state.lock();
        // What is made of a communicator that had ended before does not depend on how.
        let successors = if state.error.is_none() { state.end_successors(&error) } else { Vec::new() };
        self.keep(error.clone(), &mut state);
        drop(state);
        successors.iter().for_each(|successor| successor.end_for(error.clone()));
    }

    /// Tells the calls of this rank something.
    pub(super) fn tell(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.notify();
    }

    /// Keeps the connection of a peer that has called `own` rank. Of two ranks the lower one calls. A newer call of a peer
    /// replaces one that came to nothing.
    pub(super) fn receive_caller(&self, own: Rank, caller: (Rank, Talk), connection: Connection) {
        if caller.0 >= own {
            return;
        }
        self.state.lock().callers.insert(caller, connection);
        if let Some(bell) = self.caller_bell() {
            ring(bell);
        }
    }

    pub(super) fn take_caller(&self, caller: (Rank, Talk)) -> Option<Connection> {
        self.state.lock().callers.remove(&caller)
    }

    /// A rank is lost.
    pub(super) fn lose(&self, loss: Loss, error: Error) {
        let successors = {
            let mut state = self.state.lock();
            state.lost.insert(loss.rank, loss);
            state.end_successors(&error)
        };
        successors.iter().for_each(|successor| successor.end_for(error.clone()));
        self.raise(error);
    }

    /// Ends the sleep of both sides.
    fn wake(&self, state: &Guard<'_, State>) {
        state.notify();
        if let Some(bells) = self.bells.get() {
            ring(&bells.thread);
            ring(&bells.caller);
        }
    }

    /// Waits until `take` finds what it looks for, or something has happened, or the deadline.
    pub(super) fn wait<T>(
        &self,
        deadline: Instant,
        mut take: impl FnMut(&mut State) -> Option<T>,
        ends_with: impl Fn(&Health, &State) -> Option<Error>,
    ) -> Result<Option<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(Some(found));
            }
            if let Some(error) = ends_with(self, &state) {
                return Err(error);
            }
            let limit = deadline.saturating_duration_since(Instant::now());
            if limit.is_zero() {
                return Ok(None);
            }
            state.wait(Some(limit));
        }
    }

    /// Waits until something has happened; the deadline otherwise.
    pub fn wait_for_error(&self, limit: Duration) -> Option<Error> {
        let found = self.wait(Instant::now() + limit, |state| state.error.clone(), |_, _| None);
        found.ok().flatten()
    }

    /// Waits for what the control plane knows of a connection or a link with this peer that is in disorder. That of one which has
    /// left in order needs little explanation.
    pub fn explanation(&self, peer: Option<Rank>) -> Option<Error> {
        let soon = self.wait_for_error(LAST_WORDS);
        soon.or_else(|| match self.who_left(peer) {
            Some(_) => None,
            None => self.wait_for_error(EXPLANATION),
        })
    }

    /// The error that the loss of a rank is.
    pub(super) fn loss_error(&self, loss: &Loss) -> Error {
        let last = RankState::from_bytes(&loss.state).and_then(|state| {
            let knows = state.kernels.is_some() || !self.has_kernels.load(Ordering::Relaxed);
            last_words(&state).filter(|_| knows || state.last.is_some() || !state.running.is_empty())
        });
        let (place, cause) = (self.place(loss.rank), loss.cause.clone());
        ErrorKind::PeerLost { peer: loss.rank, place, cause, last }.into()
    }

    /// A loss that this rank alone has noticed.
    pub(crate) fn lost_to(&self, peer: Rank, cause: impl Into<String>) -> Error {
        ErrorKind::PeerLost { peer, place: self.place(peer), cause: cause.into(), last: None }.into()
    }

    /// A rank's process and host in parentheses, with a space in front; empty where they are not known.
    pub(super) fn place(&self, rank: Rank) -> String {
        let member = self.members().get(rank as usize);
        member.map(|m| format!(" (process {} on {})", m.pid, m.host)).unwrap_or_default()
    }
}

/// What a rank did last, as its loss tells it.
fn last_words(state: &RankState) -> Option<String> {
    let kernels = state.kernels.as_ref();
    if let Some(call) = kernels.and_then(|kernels| kernels.running.as_ref()) {
        return Some(format!("its kernels were in {call}"));
    }
    match (&state.running[..], &state.last) {
        ([], None) => (state.ranks > 0).then(|| "it had made no call".to_string()),
        ([], Some(last)) => Some(format!("its last call was {last}")),
        ([running, ..], _) => Some(format!("it was in {running}")),
    }
}

impl State {
    /// Those that are ended by this.
    fn end_successors(&mut self, error: &Error) -> Vec<Arc<Health>> {
        let successors: Vec<_> = self.successors.iter().filter_map(Weak::upgrade).collect();
        if !successors.is_empty() {
            self.ended_successors.get_or_insert_with(|| error.clone());
        }
        successors
    }

    pub(super) fn error(&self) -> Option<Error> {
        self.error.clone()
    }
}

/// The error that the end of a communicator is for the others.
pub(super) fn end_error(end: &End) -> Error {
    let how = match end.kind {
        EndKind::Aborted => "aborted",
        EndKind::Revoked => "revoked",
        EndKind::Failed => "broken",
        EndKind::Verdict => match serde_json::from_str::<Verdict>(&end.text) {
            Ok(verdict) => return ErrorKind::Verdict(verdict).into(),
            Err(_) => "judged",
        },
    };
    ErrorKind::Ended { peer: end.by, how, what: end.text.clone() }.into()
}

/// A descriptor that ends a sleep in `poll` when it is rung.
pub(super) fn bell() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::system("eventfd", e, "check `ulimit -n`"))
}

/// Wakes whoever polls this.
pub(super) fn ring(bell: &OwnedFd) {
    // It can fail only when it was rung 2^64 times and nobody has looked.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// After a look: the next ring wakes again.
pub(super) fn hush(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("error", &self.error()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lose(health: &Health, rank: Rank) {
        let loss = Loss { rank, cause: "killed".into(), state: Vec::new() };
        let error = health.loss_error(&loss);
        health.lose(loss, error);
    }

    fn lost_in(successor: &Health) -> Option<Rank> {
        match successor.error()?.kind() {
            ErrorKind::PeerLost { peer, .. } => Some(*peer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_loss_ends_what_is_made_whether_it_was_before_or_after() {
        for before in [true, false] {
            let (own, successor) = (Health::default(), Arc::new(Health::default()));
            lose(&own, 2);
            if before {
                lose(&own, 1);
            }
            own.precede(&successor, &[2]);
            if !before {
                assert_eq!(lost_in(&successor), None, "that one is known to be gone");
                lose(&own, 1);
            }
            assert_eq!(lost_in(&successor), Some(1));
            assert!(own.part().is_err());
            own.part().expect("it is told once");
        }
    }
}

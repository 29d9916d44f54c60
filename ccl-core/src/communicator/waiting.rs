//! How a call that has begun comes to its end, what it does while it waits, and what becomes of the communicator when it fails.

use super::patience::{Patience, Wait};
use super::routes::Routes;
use super::{Communicator, record};
use crate::clock::monotonic_ns;
use crate::engine::{Progress, Schedule, WaitOn};
use crate::error::{Error, ErrorKind, RankList, Result};
use crate::flight::{Entry, Reason};
use crate::kernels::Buffers;
use crate::plan::Rank;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A rank that has left may have done its part of a call before; for so long its last pieces, and
/// last words, are waited for.
const LAST_PIECES: Duration = Duration::from_millis(100);

/// Why a call that waits may wait in vain.
enum Trouble {
    /// The communicator has ended.
    Ended(Error),
    /// A rank that is waited for has left.
    Left(Rank),
    /// It has waited as long as it may.
    Late,
}

impl Communicator {
    /// Brings to its end what has begun.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        schedule: usize,
        begun: Result<Progress>,
        entry: Entry,
        buffers: &Buffers<'_>,
    ) -> Result<()> {
        let over = match begun {
            Ok(Progress::Done) if !self.keeps() => Ok(()),
            Ok(progress) => self.finish((schedule, entry), progress, buffers),
            Err(error) => Err(error),
        };
        over.map_err(|error| self.breaks(error))?;
        self.recorder.end(entry, monotonic_ns);
        Ok(())
    }

    /// Steps a schedule, which has come so far, until it is done.
    #[inline(never)]
    fn finish(
        &mut self,
        (schedule, entry): (usize, Entry),
        mut progress: Progress,
        buffers: &Buffers<'_>,
    ) -> Result<()> {
        let mut patience = Patience::new(self.room);
        loop {
            match progress {
                Progress::Done => return self.hand_on(schedule),
                Progress::Moved if self.health.is_aborted() => return Err(ErrorKind::Aborted.into()),
                Progress::Moved => {
                    if patience.reset() {
                        self.recorder.moved();
                    }
                }
                Progress::Blocked => match patience.next(|| {
                    self.find_room();
                    self.awaits_neighbour(&[schedule])
                }) {
                    // What was published may be what the peers wait for.
                    Wait::Spin => drop(self.routes.flush()?),
                    wait => self.pause(wait, schedule, entry, &patience)?,
                },
            }
            progress = self.plans.schedules[schedule].step(&mut self.routes, buffers)?;
        }
    }

    /// What a call does about a blocked step.
    #[cold]
    pub(super) fn pause(
        &mut self,
        wait: Wait,
        schedule: usize,
        entry: Entry,
        patience: &Patience,
    ) -> Result<()> {
        self.flush()?;
        match wait {
            Wait::Spin => {}
            Wait::Yield => {
                record::waits(&self.recorder, entry);
                std::thread::yield_now();
            }
            Wait::Park(limit) => {
                self.record_waits(&[schedule], patience.waited());
                self.watch(&[schedule], patience.waited())?;
                self.park(schedule, limit)?;
            }
        }
        Ok(())
    }

    /// Whether what was published may still be here.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.routes.keeps() || self.crew.routes().any(Routes::keeps)
    }

    /// Hands on what was published and is still here. True once there is nothing left.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<bool> {
        let own = self.routes.flush()?;
        self.crew.routes_mut().try_fold(own, |flushed, routes| Ok(routes.flush()? && flushed))
    }

    /// Hands on what a call that is done has published: nobody would do it before the next call.
    #[inline]
    pub(super) fn hand_on(&mut self, schedule: usize) -> Result<()> {
        let mut patience = Patience::new(self.room);
        while !self.flush()? {
            if self.health.is_aborted() {
                return Err(ErrorKind::Aborted.into());
            }
            match patience.next(|| false) {
                Wait::Spin => {}
                Wait::Yield => std::thread::yield_now(),
                Wait::Park(limit) => {
                    self.watch(&[schedule], patience.waited())?;
                    self.park(schedule, limit)?;
                }
            }
        }
        Ok(())
    }

    /// The schedules of calls, of all their shares.
    pub(super) fn schedules_of(&self, calls: &[usize]) -> impl Iterator<Item = &Schedule> {
        calls.iter().flat_map(|&index| {
            std::iter::once(&self.plans.schedules[index]).chain(self.crew.schedules(index))
        })
    }

    /// Looks, before a sleep, at everybody's health and at the deadline. What it sees there for the first time may have
    /// happened after the last look at the links, and what the call lacks may have come before it: so the links are looked at
    /// once more, and only what is still so then ends the call.
    #[cold]
    pub(super) fn watch(&mut self, running: &[usize], waited: Duration) -> Result<()> {
        let trouble = self.trouble(running, waited);
        let is_new = std::mem::replace(&mut self.is_troubled, trouble.is_some()) != trouble.is_some();
        match trouble {
            None => Ok(()),
            Some(_) if is_new && !self.health.is_aborted() => Ok(()),
            Some(trouble) => Err(self.judged(trouble, running, waited)),
        }
    }

    fn trouble(&self, running: &[usize], waited: Duration) -> Option<Trouble> {
        let awaited = || self.schedules_of(running).flat_map(Schedule::awaited);
        let ended = || self.health.check().err().map(Trouble::Ended);
        let left = || {
            let rank = (waited >= LAST_PIECES).then(|| self.health.who_left(awaited()));
            rank.flatten().map(Trouble::Left)
        };
        let late = || (waited >= self.limit()).then_some(Trouble::Late);
        ended().or_else(left).or_else(late)
    }

    fn judged(&self, trouble: Trouble, running: &[usize], waited: Duration) -> Error {
        match trouble {
            Trouble::Ended(error) => error,
            Trouble::Left(rank) => {
                let sequence = self.schedules_of(running).map(Schedule::number).find(|&number| number > 0);
                let sequence = sequence.unwrap_or(0);
                let verdict = self.inquire(&Reason::Left { by: self.rank, peer: rank, sequence });
                let alone =
                    || self.health.lost_to(rank, "it closed its communicator before this call was over");
                verdict.unwrap_or_else(alone)
            }
            Trouble::Late => {
                let verdict = self.inquire(&Reason::Timeout { by: self.rank, waited });
                verdict.unwrap_or_else(|| self.timeout(running, waited))
            }
        }
    }

    /// The verdict of an inquest, or what else has ended the communicator meanwhile.
    #[cold]
    pub(super) fn inquire(&self, reason: &Reason) -> Option<Error> {
        self.bootstrap.as_ref()?.inquire(reason)
    }

    /// A timeout as this rank alone sees it, where there is no verdict.
    #[cold]
    pub(super) fn timeout(&self, running: &[usize], waited: Duration) -> Error {
        let schedules = || self.schedules_of(running).filter(|schedule| schedule.is_running());
        let states = schedules().flat_map(|schedule| schedule.waits()).map(|wait| {
            let for_what = match wait.on {
                WaitOn::Piece { peer, channel } => format!("a piece from rank {peer} on channel {channel}"),
                WaitOn::Credit { peers, channel } => {
                    format!("ranks {peers:?} to take pieces on channel {channel}")
                }
            };
            format!("lane {}, move {}, tile {} waits for {for_what}", wait.lane, wait.mv, wait.tile)
        });
        let mut states: Vec<String> = states.collect();
        if states.is_empty() {
            states.push("what it has sent last is not taken at the other end".into());
        }
        let awaited: BTreeSet<Rank> = schedules().flat_map(Schedule::awaited).collect();
        let calls: Vec<_> = schedules().map(|s| format!("{} #{}", s.spec().collective, s.number())).collect();
        ErrorKind::Timeout {
            phase: format!("{} on rank {}", calls.join(" and "), self.rank),
            waited,
            absent: awaited.into_iter().collect(),
            remedy: format!("{}; look at what those ranks do, or raise RDMACCL_TIMEOUT", states.join("; ")),
        }
        .into()
    }

    /// An error in the middle of a call leaves the links in the middle of it.
    #[cold]
    pub(super) fn breaks(&mut self, error: Error) -> Error {
        let error = match error.kind() {
            // A peer that goes leaves its links in disorder; the control plane knows that it has gone, or will.
            ErrorKind::Transport { peer, .. } => self.health.explanation(*peer).unwrap_or(error),
            // What the peer has asked for is known to the control plane.
            ErrorKind::Mismatch { peer, .. } => {
                self.inquire(&Reason::Mismatch { by: self.rank, peer: *peer }).unwrap_or(error)
            }
            _ => error,
        };
        self.break_with(error)
    }

    /// Takes no more calls, because of this, which the others are told where they do not know. The error comes back, with the ranks
    /// that stand still in the middle of writing to a buffer of this one.
    #[cold]
    pub(super) fn break_with(&mut self, error: Error) -> Error {
        let cause = error.cause();
        tracing::warn!(rank = self.rank, sequence = self.sequence, cause, "communicator broken");
        self.record_end(&cause);
        let mut stuck = self.routes.withdraw();
        stuck.extend(self.crew.routes_mut().flat_map(Routes::withdraw));
        self.health.give_up(&cause);
        let error = if stuck.is_empty() {
            error
        } else {
            let what = still_writing(&stuck);
            tracing::error!(rank = self.rank, sequence = self.sequence, what);
            error.noting(what)
        };
        self.broken.get_or_insert_with(|| error.clone());
        error
    }

    /// How long a call may wait for its peers without anything moving.
    pub(super) fn limit(&self) -> Duration {
        self.limit.unwrap_or(self.config.timeout)
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.limit()
    }
}

/// What these ranks may still do to the receive buffer of a call that has failed.
fn still_writing(stuck: &[Rank]) -> String {
    let ranks = RankList(stuck);
    format!(
        "stopped while writing to this rank's receive buffer: rank {ranks}; use that memory when it is gone or has gone on"
    )
}

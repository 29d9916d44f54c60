//! Whether what came of a trial is what `docs/failures.md` promises.

#[cfg(test)]
mod tests;

use crate::event::{Case, Event, Failure, Stage};
use crate::fault::{Deed, Kind, Next, Outcome};
use crate::runner::{End, RankRecord, Record};
use crate::trial::{Aftermath, Trial};
use ccl::Rank;
use serde::Serialize;
use std::time::Duration;

/// From a death, an abort or the like to the error on every other rank of the host, as is promised.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);
/// From a deadline to the verdict.
const INQUEST: Duration = Duration::from_millis(2500);
/// Leaving has a deadline of one second.
const DESTROY: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;

/// What can be wrong with an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    /// A process did not end.
    Hang,
    /// A result is wrong.
    Wrong,
    /// Something was left behind.
    Leak,
    /// An error names somebody who has done nothing.
    FalseAccusation,
    /// An error was due and did not come.
    NoError,
    /// An error came that was not due, or of another kind than was due.
    WrongError,
    /// It took too long.
    Late,
    /// The text does not say what it must, or not the same on every rank.
    Words,
    /// A process ended as none should.
    Crash,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Complaint {
    pub(crate) class: Class,
    pub(crate) rank: Option<Rank>,
    pub(crate) what: String,
}

/// What is wrong with a trial, and how fast it was.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) complaints: Vec<Complaint>,
    /// From the fault to the error, for each rank that got one for it.
    pub(crate) delays: Vec<Duration>,
    /// The longest shrink and the longest destruction, in milliseconds.
    pub(crate) shrink_ms: u64,
    pub(crate) destroy_ms: u64,
}

/// Judges a trial; `at_once` is how long it may take from a death to the errors.
pub(crate) fn judge(trial: &Trial, record: &Record, at_once: Duration) -> Judgement {
    let mut bench = Bench { trial, record, at_once, judgement: Judgement::default() };
    for rank in 0..trial.ranks {
        bench.process(rank);
        bench.results(rank);
        bench.errors(rank);
    }
    bench.words();
    bench.shrinks();
    for file in &record.files {
        bench.complain(Class::Leak, None, format!("a file: {file}"));
    }
    bench.judgement
}

struct Bench<'a> {
    trial: &'a Trial,
    record: &'a Record,
    at_once: Duration,
    judgement: Judgement,
}

impl RankRecord {
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.events.iter().filter_map(|event| match event {
            Event::Failed(failure) => Some(failure),
            _ => None,
        })
    }

    fn fault(&self) -> Option<u64> {
        self.events.iter().find_map(|event| match event {
            Event::Fault { at } => Some(*at),
            _ => None,
        })
    }

    fn exit(&self) -> Option<u64> {
        self.events.iter().find_map(|event| match event {
            Event::Exiting { at } => Some(*at),
            _ => None,
        })
    }

    /// When it had its first error of the communicator that it has at this time, in a call that it had begun by then: it may leave
    /// before it says so.
    fn gave_up(&self, by: u64) -> Option<u64> {
        self.events.iter().fold(None, |first, event| match event {
            Event::Shrunk { at, .. } if *at <= by => None,
            Event::Failed(own) if own.began <= by => first.or(Some(own.at)),
            _ => first,
        })
    }

    fn is_done(&self) -> bool {
        self.events.contains(&Event::Done)
    }

    fn has_ended(&self) -> bool {
        self.events.contains(&Event::End)
    }
}

impl Bench<'_> {
    fn complain(&mut self, class: Class, rank: impl Into<Option<Rank>>, what: String) {
        self.judgement.complaints.push(Complaint { class, rank: rank.into(), what });
    }

    fn of(&self, rank: Rank) -> &RankRecord {
        &self.record.ranks[rank as usize]
    }

    /// `rank` is as an error names it, and may be none of the trial's.
    fn has_exited(&self, rank: Rank) -> bool {
        self.record.ranks.get(rank as usize).is_some_and(|record| record.exit().is_some())
    }

    /// It ends, and as it should; nothing of it is left.
    fn process(&mut self, rank: Rank) {
        let record = self.record.ranks[rank as usize].clone();
        let is_culprit = self.trial.is_culprit(rank);
        let deed = self.trial.kind.deed();
        // An earlier culprit's deed may keep it from its own.
        let wanted = match deed {
            Deed::Kill | Deed::Stop(Next::Kill) if is_culprit && record.fault().is_some() => {
                End::Signal(SIGKILL)
            }
            _ => End::Code(0),
        };
        let may_end_unsaid = record.exit().is_some() || is_culprit && deed == Deed::Exit;
        match &record.end {
            End::Hung(whereabouts) => self.complain(Class::Hang, rank, whereabouts.clone()),
            end if *end != wanted => {
                self.complain(
                    Class::Crash,
                    rank,
                    format!("{end:?} instead of {wanted:?}: {}", record.errors),
                );
            }
            End::Code(0) if !may_end_unsaid && !record.has_ended() => {
                self.complain(Class::Crash, rank, "it ended without its last word".into());
            }
            _ => {}
        }
        for event in &record.events {
            match event {
                Event::Shrunk { took_ms, .. } => {
                    self.judgement.shrink_ms = self.judgement.shrink_ms.max(*took_ms);
                }
                Event::Left { what } => self.complain(Class::Leak, rank, what.clone()),
                Event::Destroyed { took_ms } => {
                    self.judgement.destroy_ms = self.judgement.destroy_ms.max(*took_ms);
                    if u128::from(*took_ms) > DESTROY.as_millis() {
                        self.complain(Class::Late, rank, format!("destroying took {took_ms} ms"));
                    }
                }
                _ => {}
            }
        }
    }

    fn results(&mut self, rank: Rank) {
        for event in &self.record.ranks[rank as usize].events {
            if let Event::Wrong { what } = event {
                self.complain(Class::Wrong, rank, what.clone());
            }
        }
    }

    /// Errors come where they are due, in time, and name who is to blame.
    fn errors(&mut self, rank: Rank) {
        let record = self.record.ranks[rank as usize].clone();
        if matches!(record.end, End::Hung(_)) {
            return;
        }
        let is_culprit = self.trial.is_culprit(rank);
        let outcome = match self.trial.kind.outcome() {
            Outcome::Error if is_culprit => self.owed_by_culprit(&record),
            outcome => outcome,
        };
        let first = record.failures().next();
        match outcome {
            Outcome::Error if first.is_none() => {
                self.complain(Class::NoError, rank, "it got no error".into());
            }
            Outcome::Right if first.is_none() && !record.is_done() => {
                self.complain(Class::NoError, rank, "it did not make all its calls, and got no error".into());
            }
            Outcome::Right if let Some(failure) = first => {
                self.complain(
                    Class::WrongError,
                    rank,
                    format!("an error that nobody gave cause for: {}", failure.text),
                );
            }
            _ => {
                for failure in record.failures() {
                    self.failure(rank, failure);
                }
            }
        }
    }

    /// What a culprit that lives must get.
    fn owed_by_culprit(&self, record: &RankRecord) -> Outcome {
        match self.trial.kind.deed() {
            Deed::Abort | Deed::Revoke | Deed::Bend(_) | Deed::Swap => Outcome::Error,
            // Calls whose every piece was there before it woke end right.
            Deed::Stop(Next::Thaw) if record.signalled.is_some() && !record.is_done() => Outcome::Error,
            Deed::Stay if self.trial.kind == Kind::Absent => Outcome::Error,
            _ => Outcome::Any,
        }
    }

    fn failure(&mut self, rank: Rank, failure: &Failure) {
        let say = |what: &str| format!("{what} ({:?}, {:?}): {}", failure.stage, failure.case, failure.text);
        let in_split = failure.stage.is_split();
        let without_root = in_split && failure.case == Case::Bootstrap;
        if !without_root && !self.cases(rank, failure).contains(&failure.case) {
            self.complain(Class::WrongError, rank, say("not the error for this"));
            return;
        }
        // What it did itself, or slept through, needs nobody's name.
        if matches!(failure.case, Case::OwnAbort | Case::Excluded | Case::Broken) || self.thawed(rank) {
            return;
        }
        let guilty = self.guilty(failure);
        let accused = self.accused(failure);
        if let Some(other) = accused.iter().find(|accused| !guilty.iter().any(|(who, _)| who == *accused)) {
            self.complain(Class::FalseAccusation, rank, say(&format!("rank {other} has done nothing")));
            return;
        }
        let unnamed = in_split || failure.case == Case::Bootstrap;
        let named = |who: &Rank| unnamed || failure.accused.contains(who) || mentions(&failure.text, *who);
        let Some(since) = guilty.iter().filter(|(who, _)| named(who)).map(|(_, at)| *at).min() else {
            self.complain(Class::Words, rank, say("it names no culprit"));
            return;
        };
        if failure.case == Case::PeerLost && !in_split && failure.stage != Stage::Join {
            let place = |who: &Rank| format!("process {} on ", self.of(*who).pid);
            if !failure.accused.iter().map(place).all(|place| failure.text.contains(&place)) {
                self.complain(Class::Words, rank, say("it does not name the process"));
            }
        }
        let delay = Duration::from_nanos(failure.at.saturating_sub(since.max(failure.began)));
        if !self.trial.is_culprit(rank) {
            self.judgement.delays.push(delay);
        }
        let limit = self.limit(failure);
        if delay > limit {
            self.complain(Class::Late, rank, say(&format!("after {delay:.1?} instead of {limit:.1?}")));
        }
    }

    /// Whom it names. A split's ranks have numbers of their own, so there processes count, where they are named.
    fn accused(&self, failure: &Failure) -> Vec<Rank> {
        if !failure.stage.is_split() {
            return failure.accused.clone();
        }
        let is_named = |rank: &Rank| {
            let place = format!("process {}", self.of(*rank).pid);
            failure.text.split(&place).skip(1).any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        (0..self.trial.ranks).filter(is_named).collect()
    }

    fn thawed(&self, rank: Rank) -> bool {
        self.trial.is_culprit(rank) && self.trial.kind == Kind::FreezeThaw
    }

    /// Who may be named, and since when: culprits that have done it by then, and ranks that have ended their process.
    fn guilty(&self, failure: &Failure) -> Vec<(Rank, u64)> {
        let since = |rank: Rank| {
            let record = self.of(rank);
            let own = record.fault().filter(|_| self.trial.is_culprit(rank));
            // When rank 0 has given up, its root service ends with it, and nobody else can join.
            let left = record.gave_up(failure.at).filter(|_| failure.stage == Stage::Join && rank == 0);
            Some((rank, own.or(record.exit()).or(left)?))
        };
        (0..self.trial.ranks).filter_map(since).filter(|(_, at)| *at <= failure.at).collect()
    }

    /// The errors that this fault may lead to on this rank.
    fn cases(&self, rank: Rank, failure: &Failure) -> &'static [Case] {
        let is_culprit = self.trial.is_culprit(rank);
        let setting_up = failure.stage == Stage::Join || failure.stage.is_split();
        let other_exited =
            failure.accused.iter().any(|who| !self.trial.is_culprit(*who) && self.has_exited(*who));
        let some_gave_up =
            || (0..self.trial.ranks).any(|who| who != rank && self.of(who).gave_up(failure.at).is_some());
        match self.trial.kind.deed() {
            _ if other_exited => &[Case::PeerLost],
            // Somebody has an error of the whole, and has left the part that it had joined.
            _ if failure.case == Case::Broke && failure.stage.is_split() && some_gave_up() => &[Case::Broke],
            Deed::Kill if setting_up => &[Case::PeerLost, Case::Timeout, Case::Bootstrap],
            Deed::Stop(Next::Thaw) if is_culprit => &[Case::Excluded, Case::PeerLost],
            Deed::Kill | Deed::Exit | Deed::Stop(_) => &[Case::PeerLost],
            Deed::Panic => &[Case::PeerLost, Case::Broke, Case::Aborted],
            Deed::Leave => &[Case::PeerLost, Case::Absent],
            Deed::Abort if is_culprit => &[Case::OwnAbort],
            Deed::Abort if failure.stage == Stage::Join => {
                &[Case::Aborted, Case::PeerLost, Case::Timeout, Case::Bootstrap]
            }
            Deed::Abort => &[Case::Aborted],
            Deed::Revoke if is_culprit => &[Case::Broken],
            // It may end its process before the word is out.
            Deed::Revoke if self.of(self.trial.culprits[0]).exit().is_some() => {
                &[Case::Revoked, Case::PeerLost]
            }
            Deed::Revoke => &[Case::Revoked],
            Deed::Stay if self.trial.kind == Kind::Missing => &[Case::Timeout],
            // A split is agreed on in the control plane, and is no call of the flight record.
            Deed::Stay if failure.stage.is_split() => &[Case::Absent, Case::Timeout],
            Deed::Stay => &[Case::Absent],
            Deed::Bend(_) | Deed::Swap => &[Case::Disagreement],
            Deed::Sleep | Deed::None => &[],
        }
    }

    fn limit(&self, failure: &Failure) -> Duration {
        match (self.trial.kind.deed(), failure.case) {
            (_, Case::Timeout) => self.trial.init + INQUEST,
            (Deed::Stop(_), _) => self.trial.freeze + self.at_once,
            (Deed::Stay | Deed::Bend(_) | Deed::Swap, Case::Absent | Case::Disagreement) => {
                self.trial.timeout + INQUEST
            }
            _ => self.at_once,
        }
    }

    /// A verdict is the same on every rank.
    fn words(&mut self) {
        let is_verdict = |failure: &&Failure| {
            matches!(
                failure.case,
                Case::Absent | Case::Silent | Case::Disagreement | Case::Stuck | Case::Unclear
            )
        };
        let verdicts: Vec<_> = (0..self.trial.ranks)
            .flat_map(|rank| self.of(rank).failures().filter(is_verdict).map(move |failure| (rank, failure)))
            .collect();
        let Some(((first, words), others)) = verdicts.split_first() else { return };
        if let Some((rank, other)) = others.iter().find(|(_, other)| other.text != words.text) {
            let (rank, what) = (*rank, format!("'{}', and rank {first} '{}'", other.text, words.text));
            self.complain(Class::Words, rank, what);
        }
    }

    /// Whoever shrank went on, with all the others who did.
    fn shrinks(&mut self) {
        let last = |rank: Rank| {
            let mut worlds = self.of(rank).events.iter().filter_map(|event| match event {
                Event::Shrunk { world, .. } => Some(world.clone()),
                _ => None,
            });
            worlds.next_back()
        };
        let worlds: Vec<Option<Vec<Rank>>> = (0..self.trial.ranks).map(last).collect();
        for (rank, world) in (0..).zip(&worlds) {
            let record = self.of(rank);
            let shrinks = self.trial.aftermath[rank as usize] == Aftermath::Shrink;
            let must = shrinks && !self.trial.is_culprit(rank) && record.failures().next().is_some();
            let joined = record.events.iter().any(|event| matches!(event, Event::Joined { .. }));
            let (done, hung) = (record.is_done(), matches!(record.end, End::Hung(_)));
            if must && joined && !done && !hung {
                self.complain(Class::WrongError, rank, "it did not get on after shrinking".into());
            }
            let Some(world) = world.as_ref().filter(|_| done) else { continue };
            let same = |other: &Rank| worlds.get(*other as usize).is_some_and(|w| w.as_ref() == Some(world));
            if !world.contains(&rank) || !world.iter().all(same) {
                self.complain(Class::Wrong, rank, format!("it shrank to {world:?}, others to {worlds:?}"));
            }
        }
    }
}

/// Whether a text names a rank: `rank 3`, `ranks 0, 2-4`.
fn mentions(text: &str, rank: Rank) -> bool {
    let lists = text.split("rank").skip(1).map(|rest| {
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let end =
            rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, ' ' | ',' | '-'))).unwrap_or(rest.len());
        &rest[..end]
    });
    lists.flat_map(|list| list.split(',')).any(|item| {
        let bound = |word: Option<&str>| word.and_then(|word| word.trim().parse::<Rank>().ok());
        let mut ends = item.split('-');
        let Some(first) = bound(ends.next()) else { return false };
        let last = bound(ends.next()).unwrap_or(first);
        (first..=last).contains(&rank)
    })
}

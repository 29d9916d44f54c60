//! Runs a trial: starts its processes, passes the id on, sends the signals that nobody can send to himself, and writes
//! down what came of it. Whether that is right is the [judge](crate::judge)'s business.

mod process;
mod strangers;

use crate::event::{Event, now};
use crate::fault::{Deed, Kind, Moment, Next};
use crate::random::Random;
use crate::trial::Trial;
use ccl::Rank;
use process::{News, Process};
use rustix::process::Signal;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// No trial lasts longer than this, by far, unless something hangs.
const LIMIT: Duration = Duration::from_secs(15);
/// From the end of a process's output to its end.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// What came of a trial.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) ranks: Vec<RankRecord>,
    /// Files that were left behind.
    pub(crate) files: Vec<String>,
    pub(crate) took: Duration,
}

/// What came of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankRecord {
    pub(crate) pid: u32,
    pub(crate) events: Vec<Event>,
    pub(crate) end: End,
    /// When its process was over.
    pub(crate) over: u64,
    /// When the runner let it go on, or killed it.
    pub(crate) signalled: Option<u64>,
    /// What it wrote to its standard error, and lines of its output that are no events.
    pub(crate) errors: String,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Code(i32),
    Signal(i32),
    /// It did not; with what its threads were doing.
    Hung(String),
}

impl Default for End {
    fn default() -> End {
        End::Code(0)
    }
}

/// Runs a trial in a folder that is made for it and removed again.
pub(crate) fn run(trial: &Trial, folder: &Path) -> Result<Record, String> {
    let problem = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder.join("tmp")).map_err(problem)?;
    let record = Running::start(trial, folder).and_then(Running::finish);
    std::fs::remove_dir_all(folder).map_err(problem)?;
    record
}

struct Running<'t> {
    trial: &'t Trial,
    folder: PathBuf,
    processes: Vec<Process>,
    records: Vec<RankRecord>,
    news: std::sync::mpsc::Receiver<(Rank, News)>,
    start: Instant,
    waiting: Vec<Rank>,
    over: Vec<Rank>,
    /// Signals and words to come.
    plan: Vec<(Instant, Rank, What)>,
    idle_released: bool,
    strangers: Vec<Vec<TcpStream>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Go,
    Signal(Signal),
}

impl<'t> Running<'t> {
    fn start(trial: &'t Trial, folder: &Path) -> Result<Running<'t>, String> {
        let (sender, news) = channel();
        let start = |rank| Process::start(trial, rank, folder, sender.clone());
        let processes: Vec<_> = (0..trial.ranks).map(start).collect::<Result<_, _>>()?;
        let record = |process: &Process| RankRecord { pid: process.pid, ..RankRecord::default() };
        Ok(Running {
            trial,
            folder: folder.to_path_buf(),
            records: processes.iter().map(record).collect(),
            processes,
            news,
            start: Instant::now(),
            waiting: Vec::new(),
            over: Vec::new(),
            plan: Vec::new(),
            idle_released: false,
            strangers: Vec::new(),
        })
    }

    fn finish(mut self) -> Result<Record, String> {
        while self.over.len() < self.processes.len() {
            let now = Instant::now();
            if now >= self.start + LIMIT {
                break;
            }
            self.carry_out(now);
            let wake = self.plan.iter().map(|(at, ..)| *at).min().unwrap_or(self.start + LIMIT);
            let wake = wake.min(self.start + LIMIT).saturating_duration_since(now);
            match self.news.recv_timeout(wake) {
                Ok((rank, news)) => self.note(rank, news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(self.close())
    }

    fn note(&mut self, rank: Rank, news: News) {
        let record = &mut self.records[rank as usize];
        match news {
            News::Over => {
                record.over = now();
                self.over.push(rank);
            }
            News::Noise(line) => record.errors.push_str(&line),
            News::Said(event) => {
                record.events.push(event.clone());
                self.react(rank, event);
            }
        }
        self.release();
    }

    fn react(&mut self, rank: Rank, event: Event) {
        match event {
            Event::Id { id } => {
                for process in &mut self.processes[1..] {
                    process.tell(&id);
                }
                self.harass();
            }
            Event::Joined { .. } => self.harass(),
            Event::Waiting => self.waiting.push(rank),
            Event::Fault { .. } => {
                if let Deed::Stop(next) = self.trial.kind.deed() {
                    let signal = if next == Next::Kill { Signal::KILL } else { Signal::CONT };
                    self.plan.push((Instant::now() + self.trial.pause, rank, What::Signal(signal)));
                }
            }
            _ => {}
        }
    }

    fn harass(&mut self) {
        if self.trial.kind == Kind::Garbage {
            let mut random = Random::new(self.trial.seed, self.strangers.len() as u64);
            let pids: Vec<_> = self.processes.iter().map(|process| process.pid).collect();
            self.strangers.push(strangers::call(&pids, &mut random));
        }
    }

    /// Lets go of those that wait for something that has happened by now.
    fn release(&mut self) {
        let ranks = 0..self.trial.ranks;
        let (culprits, others): (Vec<_>, Vec<_>) = ranks.partition(|rank| self.trial.is_culprit(*rank));
        let over = |rank: &Rank| self.over.contains(rank);
        if self.trial.moment == Moment::Idle {
            // First the culprit, when all are there; then the others, when it is gone.
            let all_wait = self.waiting.len() == self.processes.len();
            if all_wait && !self.idle_released {
                self.idle_released = true;
                self.plan.extend(culprits.iter().map(|rank| (Instant::now(), *rank, What::Go)));
            } else if self.idle_released && culprits.iter().all(over) {
                let at = Instant::now() + self.trial.pause;
                let waiting = std::mem::take(&mut self.waiting);
                let still = waiting.into_iter().filter(|rank| others.contains(rank));
                self.plan.extend(still.map(|rank| (at, rank, What::Go)));
            }
            return;
        }
        // A culprit that stays away comes back when everybody else has noticed.
        let noticed = |rank: &Rank| {
            let failed = |event: &Event| matches!(event, Event::Failed(_) | Event::Wrong { .. });
            over(rank) || self.records[*rank as usize].events.iter().any(failed)
        };
        if !self.waiting.is_empty() && others.iter().all(noticed) {
            let waiting = std::mem::take(&mut self.waiting);
            self.plan.extend(waiting.into_iter().map(|rank| (Instant::now(), rank, What::Go)));
        }
    }

    fn carry_out(&mut self, now_is: Instant) {
        let due: Vec<_> = self.plan.extract_if(.., |(at, ..)| *at <= now_is).collect();
        for (_, rank, what) in due {
            let process = &mut self.processes[rank as usize];
            match what {
                What::Go => process.tell("go"),
                What::Signal(signal) => {
                    self.records[rank as usize].signalled = Some(now());
                    process.signal(signal);
                }
            }
        }
    }

    /// Ends what still runs, and collects everything.
    fn close(mut self) -> Record {
        let took = self.start.elapsed();
        for (rank, (process, record)) in self.processes.iter_mut().zip(&mut self.records).enumerate() {
            let is_over = self.over.contains(&(rank as Rank));
            let whereabouts = process.whereabouts();
            let patience = if is_over { LAST_BREATH } else { Duration::ZERO };
            let (status, in_time) = process.collect(patience);
            record.end = match status {
                Some(status) if is_over && in_time => match (status.code(), status.signal()) {
                    (Some(code), _) => End::Code(code),
                    (None, signal) => End::Signal(signal.unwrap_or_default()),
                },
                _ => End::Hung(whereabouts),
            };
            let path = self.folder.join(format!("stderr.{rank}"));
            record.errors.push_str(&std::fs::read_to_string(path).unwrap_or_default());
        }
        let left = std::fs::read_dir(self.folder.join("tmp")).into_iter().flatten().filter_map(Result::ok);
        let files = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        Record { ranks: std::mem::take(&mut self.records), files, took }
    }
}

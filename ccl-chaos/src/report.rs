//! A run of many trials: progress, what went wrong and how to see it again, and the tables.

mod pages;
mod sight;
mod table;

use crate::RunOptions;
use crate::event::Event;
use crate::judge::{Class, Complaint, Judgement, judge};
use crate::lag;
use crate::runner::{self, Record};
use crate::trial::Trial;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use table::Table;

/// Runs the trials; whether all of them went right.
pub(crate) fn run(options: &RunOptions) -> Result<bool, String> {
    let start = Instant::now();
    let numbers = match options.only {
        Some(number) => number..number + 1,
        None => 0..options.faults,
    };
    let folder = std::env::temp_dir().join(format!("ccl-chaos.{}", std::process::id()));
    let next = AtomicU64::new(numbers.start);
    let stop = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    let job = || -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if !numbers.contains(&number) {
                break;
            }
            let trial = Trial::draw(options.seed, number, options.kind);
            let mut runs = 0;
            let (record, judgement) = loop {
                let (record, lag) = lag::during(|| runner::run(&trial, &folder.join(number.to_string())));
                let record = record?;
                let judgement = judge(&trial, &record, Duration::from_millis(options.at_once_ms));
                runs += 1;
                if !lag::excuses(lag, &judgement.complaints, runs) {
                    break (record, judgement);
                }
                println!("\ntrial {number} is run again: the machine stalled for {} ms", lag.as_millis());
                print_complaints(&judgement.complaints);
            };
            let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            tally.again += u64::from(runs - 1);
            tally.add(&trial, &record, judgement, options.only.is_some());
            let done = tally.trials;
            if done.is_multiple_of(50) {
                let bad = tally.failed.len();
                println!("{done} trials, {bad} of them wrong, {:.0} s", start.elapsed().as_secs_f64());
            }
            if tally.failed.len() >= options.give_up {
                stop.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let jobs: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(job)).collect();
        jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| Err("a job panicked".into()))).collect()
    });
    // Trials remove their own folders in it.
    let _ = std::fs::remove_dir(&folder);
    results.into_iter().collect::<Result<(), String>>()?;

    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("\n{}\n{}", tally.table, tally.summary(options, start.elapsed()));
    if let Some(path) = &options.json {
        tally.write_json(path, options, start.elapsed())?;
    }
    if let Some(folder) = &options.write_tables {
        pages::write(&folder.join("failures.md"), &tally.sights.markdown())?;
        let summary = tally.summary(options, start.elapsed());
        pages::write(&folder.join("chaos.md"), &format!("{}\n{summary}", tally.table))?;
    }
    Ok(tally.failed.is_empty() && tally.trials > 0)
}

/// What came of the trials so far.
#[derive(Default)]
struct Tally {
    trials: u64,
    /// Runs that do not count, as the machine stalled.
    again: u64,
    failed: Vec<(Trial, Vec<Complaint>)>,
    table: Table,
    sights: sight::Sights,
}

impl Tally {
    fn add(&mut self, trial: &Trial, record: &Record, judgement: Judgement, show: bool) {
        self.trials += 1;
        self.table.add(trial, &judgement);
        self.sights.add(trial, record);
        if show {
            print_log(trial, record);
        }
        if !judgement.complaints.is_empty() {
            println!("\ntrial {} went wrong: {} of {} ranks", trial.number, trial.kind.name(), trial.ranks);
            print_complaints(&judgement.complaints);
            println!("  again: {}", trial.again());
            if !show {
                print_log(trial, record);
            }
            self.failed.push((trial.clone(), judgement.complaints));
        }
    }

    fn summary(&self, options: &RunOptions, took: Duration) -> String {
        let [hangs, wrong, leaks, accusations] =
            [Class::Hang, Class::Wrong, Class::Leak, Class::FalseAccusation]
                .map(|class| self.of_class(class));
        let all: usize = self.failed.iter().map(|(_, complaints)| complaints.len()).sum();
        format!(
            "seed {}: {} trials in {:.0} s: {hangs} hangs, {wrong} wrong results, {leaks} leaks, {accusations} false \
             accusations, {} other complaints; {} trials went wrong, {} runs were made again as the machine stalled",
            options.seed,
            self.trials,
            took.as_secs_f64(),
            all - hangs - wrong - leaks - accusations,
            self.failed.len(),
            self.again
        )
    }

    fn of_class(&self, class: Class) -> usize {
        let complaints = self.failed.iter().flat_map(|(_, complaints)| complaints);
        complaints.filter(|complaint| complaint.class == class).count()
    }

    fn write_json(&self, path: &PathBuf, options: &RunOptions, took: Duration) -> Result<(), String> {
        let failed: Vec<_> = self
            .failed
            .iter()
            .map(|(trial, complaints)| {
                serde_json::json!({
                    "number": trial.number,
                    "kind": trial.kind.name(),
                    "ranks": trial.ranks,
                    "again": trial.again(),
                    "complaints": complaints,
                })
            })
            .collect();
        let outcome = serde_json::json!({
            "seed": options.seed,
            "trials": self.trials,
            "again": self.again,
            "seconds": took.as_secs_f64(),
            "kinds": self.table.json(),
            "failed": failed,
        });
        std::fs::write(path, format!("{outcome:#}\n")).map_err(|e| format!("{}: {e}", path.display()))
    }
}

fn print_complaints(complaints: &[Complaint]) {
    for Complaint { class, rank, what } in complaints {
        let who = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
        println!("  {class:?}: {who}{what}");
    }
}

/// All that the ranks said, by time.
fn print_log(trial: &Trial, record: &Record) {
    println!(
        "  {} ranks, culprits {:?} {:?} step {} of {}, delays {:?}, pause {:?}, then {:?}; took {:.2?}",
        trial.ranks,
        trial.culprits,
        trial.moment,
        trial.step,
        trial.script.len(),
        trial.delays,
        trial.pause,
        trial.aftermath,
        record.took
    );
    println!("  step {}: {:?}", trial.step, trial.script[trial.step]);
    let of = |event: &Event| match event {
        Event::Joined { at } | Event::Fault { at } | Event::Exiting { at } | Event::Shrunk { at, .. } => *at,
        Event::Failed(failure) => failure.at,
        _ => 0,
    };
    let start = record.ranks.iter().flat_map(|r| &r.events).map(of).filter(|at| *at > 0).min().unwrap_or(0);
    let ms = |at: u64| at.saturating_sub(start) as f64 / 1e6;
    for (rank, of_rank) in record.ranks.iter().enumerate() {
        println!(
            "  rank {rank} (pid {}): {:?}, over at {:.1} ms",
            of_rank.pid,
            of_rank.end,
            ms(of_rank.over)
        );
        for event in &of_rank.events {
            match event {
                Event::Id { .. } | Event::End => {}
                Event::Failed(f) => println!(
                    "    {:.1} ms: {:?} in {:?}, begun at {:.1} ms, accuses {:?}: {}",
                    ms(f.at),
                    f.case,
                    f.stage,
                    ms(f.began),
                    f.accused,
                    f.text
                ),
                event if of(event) > 0 => println!("    {:.1} ms: {event:?}", ms(of(event))),
                event => println!("    {event:?}"),
            }
        }
        for line in of_rank.errors.lines() {
            println!("    stderr: {line}");
        }
    }
}

/// Counts of something, most first.
fn most_first<K: Clone + Ord>(counts: &BTreeMap<K, u64>) -> Vec<(K, u64)> {
    let mut all: Vec<_> = counts.iter().map(|(key, count)| (key.clone(), *count)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all
}

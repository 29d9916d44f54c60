//! `rdmaccl flight`: what the flight records of all ranks say together.

mod trace;

use crate::answer::{Answer, Failure};
use crate::table::Table;
use ccl::RankList;
use ccl::flight::{Blame, CallState, Dump, RankState, Verdict, judge_dumps};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Flight records, or folders of them (rdmaccl-flight-*.json)
    #[arg(required = true, value_name = "FILE_OR_DIR")]
    paths: Vec<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Writes the calls of all ranks in Chrome's trace format: for chrome://tracing, or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// What the dumps of one communicator come to.
#[derive(Serialize)]
struct Report<'a> {
    communicator: String,
    ranks: u32,
    /// Ranks of which there is no dump.
    missing: Vec<u32>,
    verdict: Verdict,
    /// Why it broke, in the words of the ranks.
    causes: Vec<Cause<'a>>,
    states: Vec<&'a RankState>,
}

#[derive(Serialize)]
struct Cause<'a> {
    ranks: Vec<u32>,
    text: &'a str,
}

/// Reads, judges and tells. Status 1 where somebody is to blame.
pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let communicators = read(&arguments.paths)?;
    if let Some(path) = &arguments.trace {
        let text = trace::chrome(communicators.values().flat_map(BTreeMap::values));
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    let dumps: Vec<(u64, Vec<Dump>)> =
        communicators.into_iter().map(|(name, dumps)| (name, dumps.into_values().collect())).collect();
    let reports: Vec<Report<'_>> = dumps.iter().map(|(name, dumps)| report(*name, dumps)).collect();
    let good = reports.iter().all(|report| report.verdict.blame == Blame::Unclear);
    let text = if arguments.json { json(&reports)? } else { text(&reports) };
    Ok(Answer::new(text).with_verdict(good))
}

/// The dumps by communicator and rank; of two of one rank the later one.
fn read(paths: &[PathBuf]) -> Result<BTreeMap<u64, BTreeMap<u32, Dump>>, Failure> {
    let mut communicators: BTreeMap<u64, BTreeMap<u32, Dump>> = BTreeMap::new();
    for path in files(paths)? {
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let dump = Dump::from_json(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let ranks = communicators.entry(dump.state.communicator).or_default();
        let is_later = ranks.get(&dump.state.rank).is_none_or(|known| known.wall_ns < dump.wall_ns);
        if is_later {
            ranks.insert(dump.state.rank, dump);
        }
    }
    Ok(communicators)
}

/// The files that are named, and those in the folders.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        let entries = std::fs::read_dir(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let is_dump = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("rdmaccl-flight-") && name.ends_with(".json")
        };
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_dump(path)));
        if files.len() == before {
            return Err(
                format!("{} has no rdmaccl-flight-*.json: set RDMACCL_FLIGHT_DIR", path.display()).into()
            );
        }
    }
    files.sort();
    Ok(files)
}

fn report(name: u64, dumps: &[Dump]) -> Report<'_> {
    let ranks = dumps.iter().map(|dump| dump.state.ranks).max().unwrap_or(0);
    let there: Vec<u32> = dumps.iter().map(|dump| dump.state.rank).collect();
    let mut causes: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for dump in dumps {
        if let Some(cause) = &dump.cause {
            causes.entry(cause).or_default().push(dump.state.rank);
        }
    }
    let mut causes: Vec<Cause<'_>> = causes.into_iter().map(|(text, ranks)| Cause { ranks, text }).collect();
    causes.sort_by_key(|cause| cause.ranks[0]);
    Report {
        communicator: format!("{name:016x}"),
        ranks,
        missing: (0..ranks).filter(|rank| there.binary_search(rank).is_err()).collect(),
        verdict: judge_dumps(dumps),
        causes,
        states: dumps.iter().map(|dump| &dump.state).collect(),
    }
}

fn json(reports: &[Report<'_>]) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(reports).map_err(|e| e.to_string())?;
    Ok(text + "\n")
}

fn text(reports: &[Report<'_>]) -> String {
    let mut text = String::new();
    for report in reports {
        let Report { communicator, ranks, missing, verdict, causes, states } = report;
        text += &format!("communicator {communicator} of {ranks} ranks\n");
        if !missing.is_empty() {
            text += &format!("  no record of ranks {}\n", RankList(missing));
        }
        text += &format!("  verdict: {}\n", verdict.text);
        for cause in causes {
            text += &format!("  ranks {} said: {}\n", RankList(&cause.ranks), cause.text);
        }
        let mut table = Table::new(["rank", "pid", "host", "calls", "last", "progress"]);
        for state in states {
            let call = state.running.first().or(state.last.as_ref());
            let progress =
                state.progress.map_or_else(String::new, |p| format!("{} of {} tiles", p.done, p.total));
            table.row([
                state.rank.to_string(),
                state.pid.to_string(),
                state.host.clone(),
                state.calls.to_string(),
                call.map_or_else(|| "-".to_string(), said),
                progress,
            ]);
        }
        text += &table.text(2);
    }
    text
}

fn said(call: &CallState) -> String {
    format!("{call}{}", if call.failed { " failed" } else { "" })
}

//! `rdmaccl top`: what the communicators of this host's processes do, also of those that are stopped or stuck.

use crate::answer::{Answer, Failure};
use crate::table::Table;
use ccl::RankList;
use ccl::flight::{Page, RankState, Reason, Verdict, WaitFor, WaitState, judge_at};
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Looks once, instead of every second until it is interrupted
    #[arg(long)]
    once: bool,
    /// As JSON, a line for each look
    #[arg(long)]
    json: bool,
    /// Looks at this process only
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

/// Waits that are shorter are what calls do all the time.
const LONG: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(1);

/// One communicator, as far as it is on this host.
#[derive(Serialize)]
struct Seen {
    communicator: String,
    size: u32,
    /// Ranks that run on other hosts, or in processes of other users.
    not_on_this_host: Vec<u32>,
    ranks: Vec<Rank>,
    /// Who is to blame, once a rank has waited for long.
    verdict: Option<Verdict>,
}

#[derive(Serialize)]
struct Rank {
    /// The process, by this host's count.
    process: u32,
    /// Whether somebody has stopped it.
    stopped: bool,
    #[serde(flatten)]
    state: RankState,
}

/// Looks once, or again and again.
pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    if arguments.once {
        let (text, good) = look(arguments)?;
        return Ok(Answer::new(text).with_verdict(good));
    }
    match watch(arguments)? {}
}

fn watch(arguments: &Arguments) -> Result<Infallible, Failure> {
    // Home, and clear from there on.
    let clear = if std::io::stdout().is_terminal() && !arguments.json { "\x1b[H\x1b[J" } else { "" };
    loop {
        let (text, _) = look(arguments)?;
        Answer::new(format!("{clear}{text}")).give()?;
        std::thread::sleep(EVERY);
    }
}

/// What there is to see, and whether it is good news.
fn look(arguments: &Arguments) -> Result<(String, bool), Failure> {
    let pages = match arguments.pid {
        Some(pid) => Page::of_process(pid)?.into_iter().collect(),
        None => Page::of_all_processes()?,
    };
    let mut communicators: BTreeMap<u64, BTreeMap<u32, Rank>> = BTreeMap::new();
    for page in &pages {
        let stopped = is_stopped(page.pid());
        for state in page.states() {
            let ranks = communicators.entry(state.communicator).or_default();
            ranks.insert(state.rank, Rank { process: page.pid(), stopped, state });
        }
    }
    let seen: Vec<Seen> =
        communicators.into_iter().map(|(name, ranks)| one(name, ranks.into_values().collect())).collect();
    let good = seen.iter().all(|seen| seen.verdict.is_none());
    let text = match arguments.json {
        true => serde_json::to_string(&seen).map_err(|e| e.to_string())? + "\n",
        false => text(&seen),
    };
    Ok((text, good))
}

fn one(name: u64, ranks: Vec<Rank>) -> Seen {
    let size = ranks.iter().map(|rank| rank.state.ranks).max().unwrap_or(0);
    let there: Vec<u32> = ranks.iter().map(|rank| rank.state.rank).collect();
    let waits_long = |state: &RankState| since(state).is_some_and(|waited| waited >= LONG);
    let verdict = ranks.iter().any(|rank| waits_long(&rank.state)).then(|| {
        let answer = |rank: &Rank| (!rank.stopped).then(|| rank.state.clone());
        let states: Vec<_> = ranks.iter().map(|rank| (rank.state.rank, answer(rank))).collect();
        let place = |number: u32| {
            let rank = ranks.iter().find(|rank| rank.state.rank == number)?;
            Some(format!("pid {} on {}", rank.process, rank.state.host))
        };
        judge_at(size, &Reason::Asked, &states, &place)
    });
    Seen {
        communicator: format!("{name:016x}"),
        size,
        not_on_this_host: (0..size).filter(|rank| there.binary_search(rank).is_err()).collect(),
        ranks,
        verdict,
    }
}

/// How long nothing has moved, where a call waits.
fn since(state: &RankState) -> Option<Duration> {
    let since = state.waits.iter().map(|wait| wait.since_ns).min()?;
    Some(Duration::from_nanos(state.now_ns.saturating_sub(since)))
}

/// Whether a process is stopped, by a signal or a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

fn text(all: &[Seen]) -> String {
    if all.is_empty() {
        return "no communicator in any process that may be looked at\n".to_string();
    }
    let mut text = String::new();
    for seen in all {
        let Seen { communicator, size, not_on_this_host, ranks, verdict } = seen;
        text += &format!("communicator {communicator} of {size} ranks");
        if !not_on_this_host.is_empty() {
            text += &format!("; not on this host: {}", RankList(not_on_this_host));
        }
        text += "\n";
        if let Some(verdict) = verdict {
            text += &format!("  {}\n", verdict.text);
        }
        let mut table = Table::new(["rank", "pid", "host", "calls", "does", "bytes", "for", "waits for"]);
        for rank in ranks {
            table.row(row(rank));
        }
        text += &table.text(2);
    }
    text
}

fn row(rank: &Rank) -> [String; 8] {
    let Rank { process, stopped, state } = rank;
    let ago = |ns: Option<u64>| {
        let time = ns.map(|ns| Duration::from_nanos(state.now_ns.saturating_sub(ns)));
        time.map_or_else(String::new, |time| format!("{:.1} s", time.as_secs_f64()))
    };
    let mark = if *stopped { "stopped, " } else { "" };
    let (does, bytes, time) = match (state.running.first(), &state.last) {
        _ if state.broken.is_some() => (format!("{mark}broken"), String::new(), String::new()),
        (Some(call), _) => {
            let more = state.running.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            (format!("{mark}in {call}{more}"), call.bytes.to_string(), ago(call.started_ns))
        }
        (None, Some(last)) => {
            (format!("{mark}idle after {last}"), last.bytes.to_string(), ago(last.ended_ns))
        }
        (None, None) => (format!("{mark}idle"), String::new(), String::new()),
    };
    let waits = match &state.broken {
        Some(cause) => cause.clone(),
        None => state.waits.first().map_or_else(String::new, |wait| waits_for(wait, state.waits.len())),
    };
    let (rank, calls) = (state.rank.to_string(), state.calls.to_string());
    [rank, process.to_string(), state.host.clone(), calls, does, bytes, time, waits]
}

fn waits_for(wait: &WaitState, lanes: usize) -> String {
    let what = match wait.on {
        WaitFor::Piece => "a piece from",
        WaitFor::Credit => "room at",
    };
    let more = if lanes > 1 { format!(" and {} more lanes", lanes - 1) } else { String::new() };
    let WaitState { lane, mv, tile, .. } = wait;
    format!("{what} {} (lane {lane}, move {mv}, tile {tile}){more}", RankList(&wait.peers))
}

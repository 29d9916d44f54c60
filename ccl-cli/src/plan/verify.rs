//! `rdmaccl plan verify`: the proof of a plan, or its fault.

use super::subject::{self, MOST_PROGRAMS, Named};
use crate::answer::{Answer, Failure};
use crate::table::Table;
use ccl::plan::{MAX_FILE_BYTES, Plan};
use ccl::verify::{self, Limits, Proof};
use ccl::{Collective, Config, ErrorKind, Rank, SLOTS_PER_LINK, algorithms};
use std::io::Read;
use std::path::Path;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A collective, or a plan file as `plan show --format json` writes it; - for standard input
    #[arg(value_name = "COLLECTIVE|FILE")]
    what: String,
    /// Ranks, for a collective
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_PROGRAMS)))]
    ranks: Option<u32>,
    /// Hosts on which the ranks lie, in equal numbers
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ranks")]
    hosts: u32,
    /// Algorithm, for a collective; without it every one that does it
    #[arg(short, long, value_name = "NAME", value_parser = subject::algorithm, requires = "ranks")]
    algorithm: Option<Named>,
    /// Root of a collective that has one; without it every one
    #[arg(long, value_name = "RANK", requires = "ranks")]
    root: Option<Rank>,
    /// Pieces of a link on their way at a time [default: RDMACCL_CREDITS, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    credits: Option<u32>,
    /// Print the proofs as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let usual = || Config::from_env().map(|c| c.credits.map_or(SLOTS_PER_LINK, |n| n.min(SLOTS_PER_LINK)));
    let credits = arguments.credits.map_or_else(usual, Ok)?;
    let limits = Limits { credits, ..Limits::default() };
    match (subject::collective(&arguments.what), arguments.ranks) {
        (Ok(collective), Some(ranks)) => built_in(arguments, collective, ranks, &limits),
        (Ok(collective), None) => Err(format!(
            "{collective} of how many ranks? add -n N (a file of this name: ./{})",
            arguments.what
        )
        .into()),
        (Err(_), Some(_)) => Err(format!(
            "'{}' is no collective, and -n is for collectives: one of {}",
            arguments.what,
            subject::COLLECTIVES
        )
        .into()),
        (Err(_), None) => file(arguments, &limits),
    }
}

/// All plans that the arguments mean, a line each; one alone in full.
fn built_in(
    arguments: &Arguments,
    collective: Collective,
    ranks: u32,
    limits: &Limits,
) -> Result<Answer, Failure> {
    let placement = subject::placement(ranks, arguments.hosts)?;
    let all: Vec<_> = match arguments.algorithm {
        Some(Named(algorithm)) => {
            subject::able(algorithm, collective, placement)?;
            vec![algorithm]
        }
        None => {
            algorithms::all().iter().copied().filter(|a| a.parts(collective, placement).is_some()).collect()
        }
    };
    let roots = match arguments.root {
        None if collective.rooted() => 0..ranks,
        given => {
            let root = subject::root(collective, ranks, given)?;
            root..root + 1
        }
    };
    let mut verdicts = Vec::new();
    for algorithm in all {
        for root in roots.clone() {
            let plan =
                algorithms::plan(algorithm, collective, placement, root).ok_or("no plan".to_string())?;
            verdicts.push(Verdict::of(&plan, limits));
        }
    }
    answer(arguments, &verdicts, limits)
}

fn file(arguments: &Arguments, limits: &Limits) -> Result<Answer, Failure> {
    let text = read(&arguments.what)?;
    match Plan::from_json(&text, limits) {
        Ok((plan, _)) => answer(arguments, &[Verdict::of(&plan, limits)], limits),
        Err(error) => match error.kind() {
            ErrorKind::PlanRejected(fault) => {
                Ok(Answer::new(format!("{}: refused: {fault}\n", arguments.what)).with_verdict(false))
            }
            _ => Err(format!("{}: {error}", arguments.what).into()),
        },
    }
}

/// A file's text; no more of it than any plan needs.
fn read(name: &str) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("cannot read {name}: {e}");
    let mut bytes = Vec::new();
    let most = MAX_FILE_BYTES as u64 + 1;
    match name {
        "-" => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        path => std::fs::File::open(Path::new(path))
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => {
                    format!("'{path}' is no file, and no collective: one of {}", subject::COLLECTIVES)
                }
                _ => unreadable(e),
            })?
            .take(most)
            .read_to_end(&mut bytes),
    }
    .map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|e| format!("{name} is no text: {e}"))
}

/// A plan and what came of it.
struct Verdict {
    title: String,
    algorithm: String,
    root: Option<Rank>,
    outcome: Result<(Proof, u32), String>,
}

impl Verdict {
    fn of(plan: &Plan, limits: &Limits) -> Verdict {
        let proved = verify::verify(plan, limits)
            .and_then(|proof| Ok((proof, verify::min_credits(plan, limits)?)))
            .map_err(|fault| fault.to_string());
        Verdict {
            title: plan.title().to_string(),
            algorithm: plan.algorithm.clone(),
            root: plan.spec.collective.rooted().then_some(plan.spec.root),
            outcome: proved,
        }
    }

    fn json(&self) -> serde_json::Value {
        let mut value =
            serde_json::json!({"plan": self.title, "algorithm": self.algorithm, "root": self.root});
        match &self.outcome {
            Err(fault) => value["fault"] = fault.as_str().into(),
            Ok((proof, needed)) => {
                let order = proof.order;
                value["proof"] = serde_json::json!({
                    "in_place": proof.in_place,
                    "same_on_every_rank": order.same_on_every_rank,
                    "same_at_every_size": order.same_at_every_size,
                    "rank_order": order.rank_order,
                    "credits_needed": needed,
                    "moves": proof.moves,
                    "messages": proof.messages,
                    "links": proof.links,
                    "busiest_link": proof.busiest_link,
                    "digest": format!("{:016x}", proof.digest),
                });
            }
        }
        value
    }
}

fn answer(arguments: &Arguments, verdicts: &[Verdict], limits: &Limits) -> Result<Answer, Failure> {
    let good = verdicts.iter().all(|verdict| verdict.outcome.is_ok());
    let text = if arguments.json {
        let values: Vec<_> = verdicts.iter().map(Verdict::json).collect();
        serde_json::to_string_pretty(&values).map_err(|e| e.to_string())? + "\n"
    } else if let [one] = verdicts {
        in_full(one, limits)
    } else {
        lines(verdicts, limits)
    };
    Ok(Answer::new(text).with_verdict(good))
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

fn in_full(verdict: &Verdict, limits: &Limits) -> String {
    let (proof, needed) = match &verdict.outcome {
        Ok(proved) => proved,
        Err(fault) => return format!("{}\n  refused: {fault}\n", verdict.title),
    };
    let mut table = Table::plain();
    let order = proof.order;
    table.row(["result", "proved: each contribution that belongs there once, and nothing else"]);
    let same = format!(
        "on every rank {}, at every size {}, in rank order {}",
        yes(order.same_on_every_rank),
        yes(order.same_at_every_size),
        yes(order.rank_order)
    );
    table.row(["same bits".into(), same]);
    table.row(["in place", yes(proof.in_place)]);
    table.row([
        "deadlock".into(),
        format!("none with {} credits per link; it needs {needed}", limits.credits),
    ]);
    let work = format!(
        "{} moves, {} messages on {} links, at most {} on one of them",
        proof.moves, proof.messages, proof.links, proof.busiest_link
    );
    table.row(["per tile".into(), work]);
    table.row(["digest".into(), format!("{:016x}", proof.digest)]);
    format!("{}\n{}", verdict.title, table.text(2))
}

/// One line per plan; plans of one algorithm that differ by their root only, and not in what is proved, share one.
fn lines(verdicts: &[Verdict], limits: &Limits) -> String {
    let names = [
        "algorithm",
        "roots",
        "proved",
        "every rank",
        "every size",
        "rank order",
        "in place",
        "credits",
        "messages",
        "links",
    ];
    let mut table = Table::new(names);
    let mut faults = String::new();
    let cells = |verdict: &Verdict| match &verdict.outcome {
        Err(_) => vec!["no".to_string()],
        Ok((proof, needed)) => {
            let order = proof.order;
            let answers =
                [true, order.same_on_every_rank, order.same_at_every_size, order.rank_order, proof.in_place];
            let counts = [u64::from(*needed), proof.messages, proof.links];
            answers
                .map(|holds| yes(holds).to_string())
                .into_iter()
                .chain(counts.map(|n| n.to_string()))
                .collect()
        }
    };
    let alike = |a: &Verdict, b: &Verdict| a.algorithm == b.algorithm && cells(a) == cells(b);
    for run in verdicts.chunk_by(alike) {
        let roots: Vec<Rank> = run.iter().filter_map(|verdict| verdict.root).collect();
        let roots = if roots.is_empty() { "-".to_string() } else { ccl::RankList(&roots).to_string() };
        table.row([run[0].algorithm.clone(), roots].into_iter().chain(cells(&run[0])));
        for verdict in run {
            if let Err(fault) = &verdict.outcome {
                faults.push_str(&format!("{}: refused: {fault}\n", verdict.title));
            }
        }
    }
    let legend = format!(
        "\nProved with {} credits per link; credits: how many the plan needs. Every rank, every size: the same bits. \
         Messages and links are of one tile.\n",
        limits.credits
    );
    table.text(0) + &legend + &faults
}

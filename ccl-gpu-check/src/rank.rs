//! A rank in a process of its own, which the step `processes` has started.

use crate::Options;
use crate::bench::{Bench, verdict_of};
use crate::case::Case;
use crate::graphs::calls;
use ccl_core::{Error, Result};
use ccl_transport_cuda::gang::{Gang, GangError};
use ccl_transport_cuda::sharing::Handle;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// When a kernel gives up. Processes take turns on a device, so ranks wait for each other for long.
const LIMIT: Duration = Duration::from_secs(8);

pub(crate) fn run(options: &Options, seconds: u64, rank: usize, ranks: usize) -> ! {
    let others = Others::new();
    // A call that waits in vain is over before the step is.
    let patience = seconds.saturating_sub(LIMIT.as_secs());
    let played = Bench::open(options, patience).and_then(|bench| play(&bench, rank, ranks, &others));
    match played {
        Ok(done) => others.last(&json!({"done": done})),
        Err(error) => others.last(&json!({"failed": error.to_string()})),
    }
}

/// The other ranks, which are met by a line from each.
struct Others(Receiver<Value>);

impl Others {
    /// Ends this process as soon as the one that has started it is gone, whatever else goes on.
    fn new() -> Others {
        let (pass, heard) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
                let _ = pass.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
            std::process::exit(1);
        });
        Others(heard)
    }

    fn tell(&self, word: &Value) {
        println!("{word}");
    }

    /// Says something, and waits until all have; what they have said.
    fn meet(&self, word: &Value) -> Vec<Value> {
        self.tell(word);
        // The process has ended when there is nothing more to hear.
        let heard = self.0.recv().unwrap_or(Value::Null);
        heard.as_array().cloned().unwrap_or_default()
    }

    /// Says a last word, and stays: what this rank has, others may be using. The step ends it.
    fn last(&self, word: &Value) -> ! {
        self.tell(word);
        loop {
            std::thread::park();
        }
    }

    /// Says whether there is something wrong here; whether there is anywhere.
    fn compare(&self, wrong: Option<String>) -> bool {
        let word = wrong.map_or(json!({}), |why| json!({"wrong": why}));
        self.meet(&word).iter().any(|word| !word["wrong"].is_null())
    }
}

/// All ranks take the same way through this, and meet at the same places.
fn play(bench: &Bench, rank: usize, ranks: usize, others: &Others) -> Result<Value, GangError> {
    let (mut cases, mut launches, mut left_out) = (0, 0, 0);
    for case in calls(bench, ranks as u32).iter_mut().filter(|case| bench.wants(&case.name())) {
        let all = others.meet(&json!({"goes_on": bench.has_time()}));
        if !all.iter().all(|word| word["goes_on"] == true) {
            left_out += 1;
            continue;
        }
        cases += 1;
        case.shape.limit = LIMIT;
        launches += one(bench, case, rank, others)?;
    }
    Ok(json!({"cases": cases, "launches": launches, "left_out": left_out}))
}

/// Several calls on the same memory; how many.
fn one(bench: &Bench, case: &Case, rank: usize, others: &Others) -> Result<usize, GangError> {
    let mut gang = case.alone(bench, rank)?;
    let done = calls_of(bench, case, rank, &mut gang, others);
    // Memory is freed when nobody has it open any more.
    match done {
        Ok(done) => {
            others.meet(&json!({}));
            Ok(done)
        }
        Err(error) => others.last(&json!({"failed": error.to_string()})),
    }
}

fn calls_of(
    bench: &Bench,
    case: &Case,
    rank: usize,
    gang: &mut Gang,
    others: &Others,
) -> Result<usize, GangError> {
    let told = others.meet(&json!({"handle": hex(&gang.export()?.to_bytes())}));
    let handles = told.iter().map(|word| read(&word["handle"]));
    gang.join(&handles.collect::<Result<Vec<_>>>()?)?;
    let rounds = bench.scale(5, 2);
    let mut done = 0;
    for round in 0..rounds {
        let inputs = case.inputs(round)?;
        let right = case.right(&inputs)?;
        gang.write(rank, &inputs[rank])?;
        others.meet(&json!({}));
        gang.launch()?;
        gang.wait()?;
        done += gang.ranks();
        let wrong = verdict_of(gang, rank, &right[rank])?;
        if others.compare(wrong.map(|what| format!("{}: launch {round}: {what}", case.name()))) {
            break;
        }
    }
    gang.leave()?;
    Ok(done)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read(word: &Value) -> Result<Handle> {
    let text = word.as_str().unwrap_or_default();
    let digits = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        u8::from_str_radix(pair, 16)
    });
    let bytes = digits.collect::<Result<Vec<_>, _>>();
    Handle::from_bytes(
        &bytes.map_err(|_| Error::invalid(format!("a handle '{text}'"), "hexadecimal digits"))?,
    )
}

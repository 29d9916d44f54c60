//! The library's calls beside NCCL's: the same all-reduces through both C interfaces, made and timed by the same code.
//!
//! Each side is a process of its own with a deadline, as what NCCL does on a machine is not ours to answer for: if it is not there, refuses or
//! hangs, that is said, and nothing is wrong. If ours does, something is.

mod find;
mod side;
#[allow(unsafe_code)]
mod sys;

use crate::Options;
use crate::bench::Bench;
use crate::outcome::Outcome;
use ccl_transport_cuda::driver::{Attribute, Device, Driver};
use ccl_transport_cuda::gang::GangError;
use serde_json::{Value, json};
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use side::run as side;

/// A side's process may take so long, where the step's time allows it.
const SECONDS: u64 = 15;

/// The first NCCL of which several ranks may share a device, if `NCCL_MULTI_RANK_GPU_ENABLE` says so.
const SHARES: u64 = 23_003;

pub(crate) fn run(
    bench: &Bench,
    options: &Options,
    seconds: u64,
    outcome: &mut Outcome,
) -> Result<(), GangError> {
    let deadline = Instant::now() + Duration::from_secs(seconds.saturating_sub(3));
    let ours = match find::ours() {
        Ok(file) => file.to_string_lossy().into_owned(),
        Err(why) => {
            outcome.fail(why);
            return Ok(());
        }
    };
    let mut theirs = Theirs::Sought(find::theirs());
    let mut all = Vec::new();
    for &ranks in bench.scale(&[1, 2, 4, 8][..], &[1, 2]) {
        let processors =
            bench.device.attribute(Attribute::Multiprocessors)?.unwrap_or(1).unsigned_abs() as usize;
        let one = |file: &str, prefix: &str| {
            let left =
                deadline.saturating_duration_since(Instant::now()).as_secs().min(bench.scale(SECONDS, 600));
            if left < 2 {
                Err("there was no time".into())
            } else {
                start(options, (file, prefix), ranks, processors, left)
            }
        };
        let own = match one(&ours, "ccl") {
            Ok(own) => own,
            Err(why) => {
                outcome.fail(format!("{ranks} ranks by {ours}: {why}"));
                continue;
            }
        };
        let other = theirs.measure(outcome, ranks, |file| one(file, "nccl"));
        table(outcome, ranks, &own, &other, &mut all);
        outcome.put("beside", json!({"nccl": theirs.file(), "lines": all}));
    }
    Ok(())
}

/// NCCL's library.
enum Theirs {
    /// Files that may be it.
    Sought(Vec<String>),
    /// One that has made calls.
    Found(String),
    /// There is none.
    Nowhere,
}

impl Theirs {
    fn file(&self) -> Option<&str> {
        match self {
            Theirs::Found(file) => Some(file),
            _ => None,
        }
    }

    /// Has it measure; says why not. The first library with which one rank gets through is taken.
    fn measure(
        &mut self,
        outcome: &mut Outcome,
        ranks: usize,
        one: impl Fn(&str) -> Result<Value, String>,
    ) -> Result<Value, String> {
        if let Theirs::Sought(files) = self {
            let mut tried = Vec::new();
            for file in std::mem::take(files) {
                match one(&file) {
                    Ok(found) => {
                        let version = found["version"].as_u64().unwrap_or(0);
                        let shares = if version < SHARES {
                            ": before 2.30.3 it takes one rank for each device"
                        } else {
                            ""
                        };
                        outcome.say(format!("NCCL {} is {file}{shares}", dotted(version)));
                        *self = Theirs::Found(file);
                        return Ok(found);
                    }
                    Err(why) => tried.push(format!("{file}: {why}")),
                }
            }
            let tried = if tried.is_empty() { "nothing was named".into() } else { tried.join("; ") };
            outcome.say(format!("no NCCL could be used, so nothing is compared: {tried}"));
            *self = Theirs::Nowhere;
        }
        match self {
            Theirs::Found(file) => {
                one(file).inspect_err(|why| outcome.say(format!("NCCL, {ranks} ranks: not compared: {why}")))
            }
            _ => Err("no NCCL could be used".into()),
        }
    }
}

/// 23004 as 2.30.4.
fn dotted(version: u64) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Both sides' times of so many ranks, with what of NCCL's time is ours.
fn table(
    outcome: &mut Outcome,
    ranks: usize,
    own: &Value,
    other: &Result<Value, String>,
    all: &mut Vec<Value>,
) {
    let floor = if ranks == 1 { ": what a call costs, as there is nothing to reduce" } else { "" };
    outcome.say(format!(
        "all_reduce of {ranks} through the C interface, us: ours, NCCL's, NCCL's / ours{floor}"
    ));
    let of = |side: &Value, line: usize| side["lines"][line].clone();
    let shown = |line: &Value| match (line["us"].as_f64(), line["not"].as_str()) {
        (Some(time), _) => format!("{time:.2}"),
        (None, Some(why)) => format!("({why})"),
        (None, None) => "-".into(),
    };
    for line in 0..own["lines"].as_array().map_or(0, Vec::len) {
        let ours = of(own, line);
        let theirs = other.as_ref().map_or(Value::Null, |other| of(other, line));
        let ratio = ours["us"].as_f64().zip(theirs["us"].as_f64()).map(|(ours, theirs)| theirs / ours);
        let (bytes, how) = (ours["bytes"].as_u64().unwrap_or(0), ours["how"].as_str().unwrap_or_default());
        outcome.say(format!(
            "{bytes:>10} B  {how:<10}  {}  {}  {}",
            shown(&ours),
            shown(&theirs),
            ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
        ));
        if let Some(why) = ours["not"].as_str() {
            outcome.fail(format!("{ranks} ranks, {bytes} B, {how}: {why}"));
        }
        all.push(json!({
            "ranks": ranks, "bytes": bytes, "how": how, "ours": ours["us"], "nccl": theirs["us"], "not": theirs["not"],
            "ratio": ratio,
        }));
    }
}

/// The devices of so many ranks: one for each, or all on one.
fn devices(driver: Driver, options: &Options, ranks: usize) -> Result<Vec<Device>, String> {
    let all = driver.devices().map_err(|error| error.to_string())?;
    if ranks > 1 && all.len() >= ranks {
        return Ok(all.into_iter().take(ranks).collect());
    }
    let one = all.into_iter().find(|device| device.ordinal == options.device);
    let one = one.ok_or_else(|| format!("there is no device {}", options.device))?;
    Ok(vec![one; ranks])
}

/// What a side's process says.
fn start(
    options: &Options,
    (library, prefix): (&str, &str),
    ranks: usize,
    processors: usize,
    seconds: u64,
) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["nccl", "--library", library, "--prefix", prefix, "--ranks", &ranks.to_string()]);
    command.args(["--device", &options.device.to_string(), "--seconds", &seconds.to_string()]);
    command.args(options.small.then_some("--small"));
    // Ranks of one device must all be on it at once.
    let blocks = (processors / ranks).max(1).to_string();
    let mut set = vec![("RDMACCL_TIMEOUT", "10"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    if ranks > 1 {
        set.push(("NCCL_MAX_CTAS", &blocks));
    }
    if options.small {
        set.extend([("RDMACCL_DEVICE_BLOCKS", "6"), ("RDMACCL_DEVICE_THREADS", "8")]);
    }
    // What somebody has set holds.
    command.envs(set.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // What it said until it ended is all there is.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    // It ends itself; but what hangs in a driver does not.
    let deadline = Instant::now() + Duration::from_secs(seconds + 2);
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("killed after {} s", seconds + 2));
            }
        }
    };
    let said = reader.join().unwrap_or_default();
    // A library may say something, too.
    let words = said.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let Some(word) = words.into_iter().find(Value::is_object) else {
        return Err(match status.code() {
            Some(124) => format!("not done in {seconds} s"),
            _ => format!("its process has ended: {status}"),
        });
    };
    match word["failed"].as_str() {
        Some(why) => Err(why.into()),
        None => Ok(word),
    }
}

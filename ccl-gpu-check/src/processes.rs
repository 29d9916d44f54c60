//! Ranks as processes of one device: each has memory of its own, which the others open.
//!
//! This process starts the ranks, and all that it does for them is to let them meet: when each has written a line, each is given the lines of
//! all. It knows nothing of their calls. However the step ends, each rank's process is killed and waited for.

use crate::Options;
use crate::bench::Bench;
use crate::graphs::calls;
use crate::outcome::Outcome;
use ccl_transport_cuda::gang::GangError;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// For killing and waiting, before the step's own deadline.
const MARGIN: Duration = Duration::from_secs(5);

pub(crate) fn run(
    bench: &Bench,
    options: &Options,
    seconds: u64,
    outcome: &mut Outcome,
) -> Result<(), GangError> {
    let deadline = Instant::now() + Duration::from_secs(seconds).saturating_sub(MARGIN);
    let mut sums = [0; 3];
    const NAMES: [&str; 3] = ["cases", "launches", "left_out"];
    for &ranks in bench.scale(&[2, 3, 4][..], &[3]) {
        if !bench.has_time() {
            sums[2] += calls(bench, ranks as u32).len() as u64;
            continue;
        }
        match Group::start(ranks, options, deadline).and_then(|mut group| group.play(outcome)) {
            Ok(done) => {
                for (sum, name) in sums.iter_mut().zip(NAMES) {
                    *sum += done[name].as_u64().unwrap_or(0);
                }
            }
            Err(why) => outcome.fail(format!("{ranks} ranks as processes: {why}")),
        }
    }
    let [cases, launches, left_out] = sums;
    let rest = if left_out > 0 {
        format!("; {left_out} cases were left out, as there was no time")
    } else {
        String::new()
    };
    outcome
        .say(format!("{cases} cases, {launches} launches of processes that open each other's memory{rest}"));
    outcome.put("processes", json!({"cases": cases, "launches": launches, "left_out": left_out}));
    if cases == 0 {
        outcome.fail("no case was run".into());
    }
    Ok(())
}

/// A rank's process, which does not outlive this.
struct Rank {
    child: Child,
    tell: ChildStdin,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ranks of one communicator, if it were one.
struct Group {
    ranks: Vec<Rank>,
    /// What each says, and at last nothing.
    said: Receiver<(usize, Option<String>)>,
    deadline: Instant,
}

impl Group {
    fn start(count: usize, options: &Options, deadline: Instant) -> Result<Group, String> {
        let (say, said) = channel();
        let mut group = Group { ranks: Vec::new(), said, deadline };
        for rank in 0..count {
            // A little longer than for the group, which says more about it.
            let left = deadline.saturating_duration_since(Instant::now()).as_secs() + 2;
            let started = start(rank, count, options, left, say.clone());
            group.ranks.push(started.map_err(|error| format!("rank {rank} cannot be started: {error}"))?);
        }
        Ok(group)
    }

    /// Lets them meet until they have ended; what they have done.
    fn play(&mut self, outcome: &mut Outcome) -> Result<Value, String> {
        loop {
            let words = self.meeting()?;
            for word in &words {
                if let Some(why) = word["wrong"].as_str() {
                    outcome.fail(format!("{} ranks as processes: {why}", words.len()));
                }
            }
            if !words[0]["done"].is_null() {
                return Ok(words[0]["done"].clone());
            }
            let all = format!("{}\n", Value::from(words));
            for (rank, of) in self.ranks.iter_mut().enumerate() {
                let told = of.tell.write_all(all.as_bytes());
                told.map_err(|error| format!("rank {rank} does not listen: {error}"))?;
            }
        }
    }

    /// A line of each.
    fn meeting(&mut self) -> Result<Vec<Value>, String> {
        let mut words = vec![Value::Null; self.ranks.len()];
        while let Some(absent) = words.iter().position(Value::is_null) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let (rank, line) = self.said.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => format!("no time is left, and rank {absent} has not come"),
                RecvTimeoutError::Disconnected => "all have ended".into(),
            })?;
            let Some(line) = line else {
                let ended = self.ranks[rank].child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                return Err(format!("rank {rank} has ended: {ended}"));
            };
            let word: Value =
                serde_json::from_str(&line).map_err(|_| format!("rank {rank} says '{line}'"))?;
            if let Some(why) = word["failed"].as_str() {
                return Err(format!("rank {rank}: {why}"));
            }
            words[rank] = word;
        }
        Ok(words)
    }
}

/// Starts a rank, and a thread that passes on what it says.
fn start(
    rank: usize,
    count: usize,
    options: &Options,
    seconds: u64,
    say: Sender<(usize, Option<String>)>,
) -> std::io::Result<Rank> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("processes").args(["--rank", &rank.to_string(), "--ranks", &count.to_string()]);
    command.args(["--device", &options.device.to_string(), "--seconds", &seconds.to_string()]);
    command.args(options.small.then_some("--small"));
    command.args(options.only.iter().flat_map(|text| ["--only", text]));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (tell, hear) = (child.stdin.take(), child.stdout.take());
    let (Some(tell), Some(hear)) = (tell, hear) else { unreachable!("both are pipes") };
    let started = Rank { child, tell };
    std::thread::spawn(move || {
        let lines = BufReader::new(hear).lines().map_while(Result::ok).map(Some);
        // Nobody listens any more when the group has ended.
        lines.chain([None]).try_for_each(|line| say.send((rank, line)).ok())
    });
    Ok(started)
}

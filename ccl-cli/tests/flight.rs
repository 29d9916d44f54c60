//! `rdmaccl top` and `rdmaccl flight` on real ranks: this binary starts itself again as each of them.

// The child tells the test by its output.
#![allow(clippy::print_stderr)]

use ccl::{Communicator, ReduceOp, UniqueId};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A rank in a process of its own; killed when it is dropped.
struct Rank(Child);

impl Rank {
    /// Waits until it has said `ready` on standard error.
    fn ready(&mut self) {
        let said = BufReader::new(self.0.stderr.as_mut().unwrap()).lines().map_while(Result::ok);
        assert!(said.into_iter().any(|line| line == "ready"), "the rank went away");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Lets it go on.
    fn go(&mut self) {
        drop(self.0.stdin.take());
    }

    fn succeeds(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `test` of this binary again as each of `ranks` ranks.
fn start(test: &str, ranks: u32, variables: &[(&str, &str)]) -> Vec<Rank> {
    let id = UniqueId::create(&ccl::Config::default()).unwrap();
    let one = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
        command.env("RDMACCL_RANK", rank.to_string()).env("RDMACCL_SIZE", ranks.to_string());
        command.env("RDMACCL_ID", id.to_string()).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Rank(command.spawn().unwrap())
    };
    (0..ranks).map(one).collect()
}

/// The communicator of this process, if it is one of the ranks.
fn as_rank() -> Option<Communicator> {
    std::env::var_os("RDMACCL_RANK").map(|_| Communicator::from_env().unwrap())
}

fn ready() {
    eprintln!("ready");
}

/// Waits until the test lets it go on.
fn wait_for_go() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn rdmaccl(line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaccl"));
    let Output { status, stdout, stderr } =
        command.args(line.split_whitespace()).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What `rdmaccl top` says of the communicator that a process is in, once it is what the test waits for.
fn top(pid: u32, until: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, out, err) = rdmaccl("top --once --json");
        assert_eq!(err, "");
        let seen = json(&out);
        let is_ours = |seen: &&Value| {
            seen["ranks"].as_array().is_some_and(|ranks| ranks.iter().any(|rank| rank["process"] == pid))
        };
        if let Some(seen) = seen.as_array().unwrap().iter().find(is_ours)
            && until(seen)
        {
            return seen.clone();
        }
        assert!(Instant::now() < deadline, "{seen}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn top_sees_who_waits_for_a_rank_that_is_stopped() {
    if let Some(mut comm) = as_rank() {
        comm.all_reduce_in_place(&mut [1.0f32; 3], ReduceOp::Sum).unwrap();
        ready();
        if comm.rank() == 1 {
            wait_for_go();
        }
        return comm.all_reduce_in_place(&mut [1.0f32; 1000], ReduceOp::Sum).unwrap();
    }
    let mut ranks = start("top_sees_who_waits_for_a_rank_that_is_stopped", 2, &[]);
    ranks.iter_mut().for_each(Rank::ready);
    let pid = ranks[1].0.id();
    ranks[1].signal(Signal::STOP);
    let seen = top(pid, |seen| !seen["verdict"].is_null() && seen["ranks"][1]["stopped"] == true);
    let text = seen["verdict"]["text"].as_str().unwrap();
    assert!(text.starts_with(&format!("rank 1 (pid {pid} on ")), "{text}");
    assert!(
        text.contains(
            ") does not answer: stopped, or without a core to run on; rank 0 waits in all_reduce #1 "
        )
    );
    assert_eq!((&seen["verdict"]["blame"], &seen["verdict"]["culprits"]), (&"silent".into(), &json("[1]")));
    assert_eq!((&seen["size"], &seen["not_on_this_host"]), (&2.into(), &json("[]")));
    let [waiting, stopped] = [0, 1].map(|rank| &seen["ranks"][rank]);
    assert_eq!((&waiting["calls"], &waiting["running"][0]["sequence"]), (&2.into(), &1.into()));
    assert_eq!(waiting["waits"][0]["peers"], json("[1]"));
    assert_eq!((&stopped["calls"], &stopped["running"]), (&1.into(), &json("[]")));

    let (status, out, _) = rdmaccl("top --once");
    assert_eq!(status, 1, "somebody hangs");
    assert!(out.contains("stopped, idle after all_reduce #0 (3 x float, sum, "), "{out}");
    assert!(
        out.contains("in all_reduce #1 (1000 x float, sum, ") && out.contains("a piece from 1 (lane "),
        "{out}"
    );
    let (_, out, _) = rdmaccl(&format!("top --once --pid {}", ranks[0].0.id()));
    assert!(out.contains("; not on this host: 1\n"), "{out}");

    ranks[1].signal(Signal::CONT);
    ranks[1].go();
    assert!(ranks.into_iter().all(Rank::succeeds));
}

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rdmaccl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_records_of_ranks_that_disagree_say_who() {
    if let Some(mut comm) = as_rank() {
        for _ in 0..20 {
            comm.all_reduce_in_place(&mut [1.0f32; 3], ReduceOp::Sum).unwrap();
        }
        comm.all_reduce_in_place(&mut vec![1.0f64; 1 << 15], ReduceOp::Max).unwrap();
        ready();
        if comm.rank() == 2 {
            wait_for_go();
        }
        let error = match comm.rank() {
            2 => comm.all_reduce_in_place(&mut [1i64; 16], ReduceOp::Sum),
            _ => comm.all_reduce_in_place(&mut [1i32; 16], ReduceOp::Sum),
        };
        let error = error.unwrap_err().to_string();
        assert!(error.contains("rank 2 asked for all_reduce #21 (16 x int64, sum, "), "{error}");
        return;
    }
    let folder = Folder::new("records");
    let path = folder.0.to_str().unwrap();
    let variables = [("RDMACCL_FLIGHT_DIR", path), ("RDMACCL_FLIGHT_CALLS", "16")];
    let mut ranks = start("the_records_of_ranks_that_disagree_say_who", 3, &variables);
    ranks.iter_mut().for_each(Rank::ready);
    // Both others have asked before rank 2 does: of two ranks that differ nobody can say which one is wrong.
    top(ranks[0].0.id(), |seen| {
        [0, 1].iter().all(|&rank| seen["ranks"][rank]["running"][0]["sequence"] == 21)
    });
    ranks[2].go();
    for mut rank in ranks {
        let mut said = String::new();
        rank.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(rank.succeeds(), "{said}");
    }

    let trace = folder.0.join("trace.json");
    let (status, out, err) = rdmaccl(&format!("flight {path} --trace {}", trace.display()));
    assert_eq!((status, err.as_str()), (1, ""), "{out}");
    let verdict = "  verdict: rank 2 asked for all_reduce #21 (16 x int64, sum, ";
    assert!(out.contains(verdict) && out.contains("they differ in the type"), "{out}");
    assert!(out.contains("ranks 0-2 said: rank 2 asked for"), "the same words on every rank: {out}");
    assert!(out.contains(" failed"), "{out}");

    let (_, out, _) = rdmaccl(&format!("flight {path} --json"));
    let report = json(&out);
    assert_eq!(report[0]["verdict"]["culprits"], json("[2]"));
    assert_eq!((&report[0]["ranks"], &report[0]["missing"]), (&3.into(), &json("[]")));

    let trace = json(&std::fs::read_to_string(&trace).unwrap());
    let events = trace["traceEvents"].as_array().unwrap();
    let calls: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(calls.len(), 3 * 16, "as many as the ring holds");
    assert!(
        calls.iter().all(|call| call["dur"].as_f64().unwrap() >= 0.0 && call["ts"].as_f64().unwrap() >= 0.0)
    );
    assert!(calls.iter().any(|call| call["name"] == "all_reduce #20" && call["args"]["stamped"] == true));
    let rows: std::collections::BTreeSet<_> = calls.iter().map(|call| call["tid"].as_u64()).collect();
    assert_eq!(rows.len(), 3, "one for each rank");
}

#[test]
fn what_is_no_record_is_refused_with_what_is_right() {
    let folder = Folder::new("wrong");
    let path = folder.0.to_str().unwrap();
    let (status, _, err) = rdmaccl(&format!("flight {path}"));
    assert!(status == 2 && err.contains("has no rdmaccl-flight-*.json: set RDMACCL_FLIGHT_DIR"), "{err}");
    std::fs::write(folder.0.join("rdmaccl-flight-0-1-0.json"), "{\"format\": 3}").unwrap();
    let (status, _, err) = rdmaccl(&format!("flight {path}"));
    assert!(status == 2 && err.contains("rdmaccl-flight-0-1-0.json: malformed flight record: "), "{err}");
    let (status, _, err) = rdmaccl(&format!("flight {path}/nothing"));
    assert!(status == 2 && err.contains("cannot read "), "{err}");
    let (status, _, err) = rdmaccl("top --once --pid 4294967295");
    assert!(status == 2 && err.contains("looking at the descriptors of process 4294967295"), "{err}");
    let (status, out, _) = rdmaccl(&format!("top --once --pid {}", std::process::id()));
    assert_eq!((status, out.as_str()), (0, "no communicator in any process that may be looked at\n"));
}

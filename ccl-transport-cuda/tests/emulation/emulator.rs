//! The kernels compiled for the CPU, and what came out of running cases on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program with the kernels in it.
pub(crate) struct Emulator {
    program: PathBuf,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// One per case.
    pub(crate) cases: Vec<Played>,
    /// Data races that ThreadSanitizer has reported, and the first of them.
    pub(crate) races: usize,
    pub(crate) first_race: String,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Played {
    /// Outputs that were not right, over ranks and rounds.
    pub(crate) wrong: usize,
    /// What blocks have given up for.
    pub(crate) failures: Vec<Failure>,
}

/// What a block has given up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) block: usize,
    pub(crate) why: Why,
    pub(crate) lane: usize,
    pub(crate) mv: usize,
    pub(crate) tile: usize,
    pub(crate) operand: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Aborted,
    Late,
    Mismatch,
    Length,
}

impl Emulator {
    /// Compiles it; with a planted bug, if there is one.
    pub(crate) fn build(bug: Option<&str>) -> Emulator {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulator-{}", bug.unwrap_or("clean")));
        let mut compile = Command::new("g++");
        compile.args("-std=c++14 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas".split(' '));
        // As on a device: a multiplication and an addition are two roundings.
        compile.args(["-ffp-contract=off", "-fsanitize=thread", "-pthread"]);
        if let Some(bug) = bug {
            compile.args(["-DPLANTED", &format!("-D{bug}=1")]);
        }
        compile.arg(kernels.join("emulate/main.cpp")).arg("-o").arg(&program);
        let output = compile.output().expect("g++ is needed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Emulator { program }
    }

    /// What the kernels say of their sizes.
    pub(crate) fn layout(&self) -> String {
        let output = self.command("layout").output().expect("runs");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs cases, within so many seconds.
    pub(crate) fn run(&self, name: &str, cases: &[Vec<u8>], seconds: u64) -> Outcome {
        let at = |what: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{what}"));
        std::fs::write(at("cases"), cases.concat()).expect("written");
        let open = |what: &str| std::fs::File::create(at(what)).expect("a file");
        let mut child = self
            .command(at("cases").to_str().expect("a path"))
            .stdin(Stdio::null())
            .stdout(open("out"))
            .stderr(open("races"))
            .spawn()
            .expect("started");
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().expect("killed");
                child.wait().expect("waited for");
                panic!("{name}: not done in {seconds} s");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |what: &str| std::fs::read_to_string(at(what)).expect("text");
        let (out, races) = (read("out"), read("races"));
        for what in ["cases", "out", "races"] {
            std::fs::remove_file(at(what)).expect("removed");
        }
        assert!(status.success(), "{name}: {status}\n{races}");
        let first = races.split("==================").find(|part| part.contains("WARNING"));
        let cases: Vec<_> = out.lines().map(played).collect();
        Outcome {
            cases,
            races: races.matches("WARNING: ThreadSanitizer").count(),
            first_race: first.unwrap_or("").into(),
        }
    }

    fn command(&self, argument: &str) -> Command {
        // Kernels with more random bits for addresses than ThreadSanitizer knows of would stop it at its start.
        let mut command = Command::new("setarch");
        command.arg("-R").arg(&self.program).arg(argument).env("TSAN_OPTIONS", "exitcode=0 history_size=2");
        command
    }
}

fn played(line: &str) -> Played {
    let mut words = line.split(' ').skip(3);
    let wrong = words.next().and_then(|n| n.parse().ok()).expect("a number");
    let failure = |text: &str| {
        let n: Vec<usize> = text.split(':').map(|n| n.parse().expect("a number")).collect();
        let why = [Why::Aborted, Why::Late, Why::Mismatch, Why::Length][n[2] - 1];
        Failure { rank: n[0], block: n[1], why, lane: n[3], mv: n[4], tile: n[5], operand: n[6] }
    };
    Played { wrong, failures: words.skip(1).map(failure).collect() }
}

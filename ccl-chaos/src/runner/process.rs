//! A worker process and what it says.

use crate::event::Event;
use crate::trial::Trial;
use ccl::Rank;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// News of a worker.
pub(super) enum News {
    Said(Event),
    /// A line that is no event.
    Noise(String),
    /// It has closed its output: its process is over.
    Over,
}

pub(super) struct Process {
    pub(super) pid: u32,
    child: Child,
    stdin: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a rank; its news go to `news`, its errors into a file of `folder`.
    pub(super) fn start(
        trial: &Trial,
        rank: Rank,
        folder: &Path,
        news: Sender<(Rank, News)>,
    ) -> Result<Process, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program's file: {e}"))?;
        let errors = File::create(folder.join(format!("stderr.{rank}")))
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        let temporary = folder.join("tmp");
        let mut child = Command::new(program)
            .args(["worker", "--seed", &trial.seed.to_string(), "--number", &trial.number.to_string()])
            .args(["--kind", trial.kind.name(), "--rank", &rank.to_string()])
            .args(["--runner", &std::process::id().to_string()])
            .env("RDMACCL_TIMEOUT", trial.timeout.as_secs_f64().to_string())
            .env("RDMACCL_INIT_TIMEOUT", trial.init.as_secs_f64().to_string())
            .env("RDMACCL_FREEZE_TIMEOUT", trial.freeze.as_secs_f64().to_string())
            .env("TMPDIR", &temporary)
            .current_dir(&temporary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("cannot start rank {rank}: {e}"))?;
        let stdin = child.stdin.take();
        let output = child.stdout.take();
        let reader = output.map(|output| {
            thread::spawn(move || {
                let mut lines = BufReader::new(output);
                let mut line = Vec::new();
                // The last line of a process that was killed may lack its end.
                while lines.read_until(b'\n', &mut line).is_ok() && line.last() == Some(&b'\n') {
                    let what = match serde_json::from_slice(&line) {
                        Ok(event) => News::Said(event),
                        Err(_) => News::Noise(String::from_utf8_lossy(&line).into_owned()),
                    };
                    let _ = news.send((rank, what));
                    line.clear();
                }
                let _ = news.send((rank, News::Over));
            })
        });
        Ok(Process { pid: child.id(), child, stdin, reader })
    }

    /// A process that is over does not hear it, which its end tells anyway.
    pub(super) fn tell(&mut self, word: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{word}").and_then(|()| stdin.flush());
        }
    }

    /// One that is over already takes no signal.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// What its threads are doing, for a report of one that hangs.
    pub(super) fn whereabouts(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let of = |path: std::path::PathBuf, file: &str| {
            std::fs::read_to_string(path.join(file)).unwrap_or_default().trim().to_string()
        };
        let tasks = tasks.filter_map(Result::ok).map(|task| {
            let status = of(task.path(), "status");
            let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default();
            format!("{}:{} in {}", of(task.path(), "comm"), state.trim(), of(task.path(), "wchan"))
        });
        tasks.collect::<Vec<_>>().join("; ")
    }

    /// Collects it. One that is not over within `patience` is killed, which `false` says.
    pub(super) fn collect(&mut self, patience: Duration) -> (Option<ExitStatus>, bool) {
        let (mut left, step) = (patience, Duration::from_millis(1));
        let mut in_time = true;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.stdin = None;
                if let Some(reader) = self.reader.take() {
                    let _ = reader.join();
                }
                return (Some(status), in_time);
            }
            if left.is_zero() {
                in_time = false;
                let _ = self.child.kill();
            }
            left = left.saturating_sub(step);
            thread::sleep(step);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

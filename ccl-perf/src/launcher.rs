//! Starts rank processes on this host, and ends them all when one fails.
//!
//! Each is this same program with the same options and `--child-of`. The first one makes the unique id and
//! writes it into a pipe; the others get it in their environment. All share the launcher's process
//! group, so that Ctrl-C reaches them, and ask the kernel to be killed when the launcher dies
//! ([`tie_to`]): nothing is left behind, whatever ends the launcher.

use crate::{FAILED, WRONG_DATA, job, say};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, set_parent_process_death_signal, waitid};
use std::io::{BufRead as _, BufReader, PipeReader, Read, pipe};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the others have to notice a failure by themselves, and to say what they saw.
const GRACE: Duration = Duration::from_millis(500);

/// Called in a child: dies with its launcher.
pub(crate) fn tie_to(launcher: i32) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| format!("prctl(PR_SET_PDEATHSIG): {e}"))?;
    // It may have died before the kernel was asked.
    if getppid().map(Pid::as_raw_pid) != Some(launcher) {
        return Err("the launcher is gone".into());
    }
    Ok(())
}

/// Starts `processes` processes of `threads` ranks each and waits for them.
pub(crate) fn launch(processes: u32, threads: u32) -> Result<ExitCode, String> {
    let mut ranks = Ranks { processes: Vec::new(), threads };
    let (reader, writer) = pipe().map_err(|e| format!("pipe: {e}"))?;
    let size = processes * threads;
    ranks.start(size, Stdio::from(writer), None)?;
    let id = read_id(reader);
    let started = match id {
        Some(id) => (1..processes).try_for_each(|_| ranks.start(size, Stdio::null(), Some(&id))),
        // The first process ended without making one; waiting for it tells why.
        None => Ok(()),
    };
    if let Err(why) = started {
        ranks.end();
        return Err(why);
    }
    ranks.wait()
}

fn read_id(reader: PipeReader) -> Option<String> {
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).ok()?;
    line.ends_with('\n').then(|| line.trim().to_string())
}

struct Ranks {
    processes: Vec<Process>,
    threads: u32,
}

struct Process {
    child: Child,
    status: Option<ExitStatus>,
    last_line: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Ranks {
    fn start(&mut self, size: u32, stdin: Stdio, id: Option<&str>) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program's file: {e}"))?;
        let first = self.processes.len() as u32 * self.threads;
        let mut words = std::env::args_os();
        let mut command = Command::new(program);
        command
            // The name says which program it is.
            .arg0(words.next().unwrap_or_default())
            .args(words)
            .args(["--child-of", &std::process::id().to_string()])
            .env(job::RANK, first.to_string())
            .env(job::SIZE, size.to_string())
            .stdin(stdin);
        match id {
            Some(id) => command.env(job::ID, id),
            None => command.env_remove(job::ID),
        };
        // Rank 0 keeps the terminal, for the table and its progress line.
        if first > 0 {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|e| format!("cannot start rank {first}: {e}"))?;
        let last_line = Arc::default();
        let reader = child.stderr.take().map(|stderr| forward(stderr, first, Arc::clone(&last_line)));
        self.processes.push(Process { child, status: None, last_line, reader });
        Ok(())
    }

    /// Until all have ended. One that fails ends the others.
    fn wait(mut self) -> Result<ExitCode, String> {
        let mut wrong = false;
        while self.processes.iter().any(|p| p.status.is_none()) {
            // Sleeps until a child has ended, and leaves it to `reap` to collect it.
            let _ = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            self.reap()?;
            wrong |= self.statuses().any(|(_, s)| s.code() == Some(WRONG_DATA.into()));
            if self.statuses().any(|(_, s)| is_failure(s)) {
                let until = Instant::now() + GRACE;
                while Instant::now() < until && self.processes.iter().any(|p| p.status.is_none()) {
                    thread::sleep(Duration::from_millis(5));
                    self.reap()?;
                }
                return Err(self.verdict());
            }
        }
        Ok(if wrong { ExitCode::from(WRONG_DATA) } else { ExitCode::SUCCESS })
    }

    fn reap(&mut self) -> Result<(), String> {
        for process in self.processes.iter_mut().filter(|p| p.status.is_none()) {
            process.status = process.child.try_wait().map_err(|e| format!("wait: {e}"))?;
        }
        Ok(())
    }

    fn statuses(&self) -> impl Iterator<Item = (usize, ExitStatus)> {
        self.processes.iter().enumerate().filter_map(|(i, p)| p.status.map(|s| (i, s)))
    }

    /// Ends those that still run, and says who began it: a process that was killed rather than one that
    /// gave up, since the others give up when they miss it.
    fn verdict(mut self) -> String {
        let failed: Vec<_> = self.statuses().filter(|&(_, s)| is_failure(s)).collect();
        let ended = self.end();
        let culprit = failed.iter().find(|(_, s)| s.signal().is_some()).or(failed.first());
        let Some(&(index, status)) = culprit else { return "no rank failed".into() };
        let process = &self.processes[index];
        let last = process.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let first = index as u32 * self.threads;
        let who = match self.threads {
            1 => format!("rank {first}"),
            n => format!("the process of ranks {first}-{}", first + n - 1),
        };
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}{}", signal_name(signal)),
            (_, code) => format!("ended with status {}", code.unwrap_or_default()),
        };
        let pid = process.child.id();
        let last = if last.is_empty() { last } else { format!("; its last words: {last}") };
        format!("{who} (pid {pid}) {how}{last}; {ended} other processes were ended")
    }

    /// Kills and collects those that still run; how many.
    fn end(&mut self) -> usize {
        let mut ended = 0;
        for process in &mut self.processes {
            if process.status.is_none() {
                let _ = process.child.kill();
                let _ = process.child.wait();
                ended += 1;
            }
            if let Some(reader) = process.reader.take() {
                let _ = reader.join();
            }
        }
        ended
    }
}

fn is_failure(status: ExitStatus) -> bool {
    !status.success() && status.code() != Some(WRONG_DATA.into())
}

fn signal_name(signal: i32) -> &'static str {
    match Signal::from_named_raw(signal) {
        Some(Signal::KILL) => " (SIGKILL)",
        Some(Signal::TERM) => " (SIGTERM)",
        Some(Signal::INT) => " (SIGINT)",
        Some(Signal::SEGV) => " (SIGSEGV)",
        Some(Signal::BUS) => " (SIGBUS)",
        Some(Signal::ABORT) => " (SIGABRT)",
        _ => "",
    }
}

/// Passes a child's lines on under its rank, and keeps the last one.
fn forward(stream: impl Read + Send + 'static, rank: u32, last: Arc<Mutex<String>>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            say(&format!("rank {rank}: {line}"));
            *last.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    })
}

const _: () = assert!(FAILED != WRONG_DATA);

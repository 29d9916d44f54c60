//! Other programs, each with a deadline, and gone when the value that holds it is gone.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that runs.
pub(crate) struct Process {
    line: String,
    child: Child,
    output: File,
}

impl Process {
    /// Starts a program with its arguments; it dies with this one.
    pub(crate) fn start(line: &str) -> Result<Process, String> {
        Process::start_with(line, &[], "")
    }

    /// [`Process::start`] with variables and with words before the program, such as `prlimit --memlock=0`.
    pub(crate) fn start_with(
        line: &str,
        variables: &[(String, String)],
        before: &str,
    ) -> Result<Process, String> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(before.split_whitespace()).args(line.split_whitespace());
        command.envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        Process::spawn(line, &mut command)
    }

    fn spawn(line: &str, command: &mut Command) -> Result<Process, String> {
        let said = |e: std::io::Error| format!("cannot start {line}: {e}");
        let output = File::from(memfd_create("output", MemfdFlags::CLOEXEC).map_err(|e| said(e.into()))?);
        command.stdout(output.try_clone().map_err(said)?).stderr(output.try_clone().map_err(said)?);
        let child = command.spawn().map_err(said)?;
        Ok(Process { line: line.into(), child, output })
    }

    /// What it printed, to both of its outputs; an error if it did not end well, or not by the deadline.
    pub(crate) fn finish(self, deadline: Instant) -> Result<String, String> {
        let line = self.line.clone();
        match self.end(deadline)? {
            (true, output) => Ok(output),
            (false, output) => Err(format!("{line} failed:\n{}", tail(&output))),
        }
    }

    /// Whether it ended well, and what it printed; an error if it does not end by the deadline.
    pub(crate) fn end(mut self, deadline: Instant) -> Result<(bool, String), String> {
        let line = self.line.clone();
        if !self.ends_by(deadline).map_err(|e| format!("{line}: {e}"))? {
            return Err(format!("{line} has not ended by the scenario's deadline:\n{}", tail(&self.said())));
        }
        let status = self.child.wait().map_err(|e| format!("{line}: {e}"))?;
        Ok((status.success(), self.said()))
    }

    /// Whether it has ended already.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// What it has printed so far.
    pub(crate) fn said(&self) -> String {
        let length = self.output.metadata().map_or(0, |file| file.len());
        let mut bytes = vec![0; length as usize];
        // Not `seek`: the program writes where this file stands. What cannot be read is not there to be shown.
        let read = self.output.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    fn ends_by(&self, deadline: Instant) -> rustix::io::Result<bool> {
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tools that change the system do it at once or not at all.
const TOOL: Duration = Duration::from_secs(30);

/// Runs a short program to its end.
pub(crate) fn tool(line: &str) -> Result<String, String> {
    Process::start(line)?.finish(Instant::now() + TOOL)
}

/// Gives a tool that understands `-b` its lines at one go; an error shows the line that failed.
pub(crate) fn batch(tool: &str, lines: &[String]) -> Result<(), String> {
    let mut command = Command::new(tool);
    let mut process = Process::spawn(tool, command.args(["-b", "-"]).stdin(Stdio::piped()))?;
    if let Some(mut stdin) = process.child.stdin.take() {
        stdin.write_all((lines.join("\n") + "\n").as_bytes()).map_err(|e| format!("{tool}: {e}"))?;
    }
    process.finish(Instant::now() + TOOL).map(|_| ()).map_err(|why| {
        // "Command failed -:3"
        let number = why.rsplit_once("-:").and_then(|(_, n)| n.trim().parse::<usize>().ok());
        let line = number.and_then(|n| lines.get(n.saturating_sub(1)));
        line.map_or(why.clone(), |line| format!("{tool} {line}: {why}"))
    })
}

/// Looks again and again, a thousand times a second, until it is so.
pub(crate) fn wait_until(
    what: &str,
    deadline: Instant,
    mut so: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    while !so()? {
        if Instant::now() > deadline {
            return Err(format!("waited until the scenario's deadline for {what}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The last lines of an output.
fn tail(output: &str) -> String {
    let lines: Vec<_> = output.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn outputs_and_ends_are_told() {
        assert_eq!(tool("echo a b").unwrap(), "a b\n");
        assert!(tool("false").unwrap_err().starts_with("false failed"));
        let variables = [("WORD".to_string(), "yes".to_string())];
        let said = Process::start_with("printenv WORD", &variables, "").unwrap().finish(soon()).unwrap();
        assert_eq!(said, "yes\n");
        assert!(!Process::start("ls /nowhere").unwrap().end(soon()).unwrap().0);
    }

    #[test]
    fn who_does_not_end_is_ended() {
        let process = Process::start("sleep 600").unwrap();
        let pid = process.child.id();
        let why = process.finish(Instant::now()).unwrap_err();
        assert!(why.contains("sleep 600 has not ended"), "{why}");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_batch_says_which_line_was_wrong() {
        // A shell understands the same options, and says here what `ip` would.
        let lines = ["true".to_string(), "echo 'Command failed -:2'; exit 1".to_string()];
        let why = batch("sh", &lines).unwrap_err();
        assert!(why.starts_with(&format!("sh {}: ", lines[1])), "{why}");
        batch("sh", &lines[..1]).unwrap();
    }
}

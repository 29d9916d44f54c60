//! One run of the guest: QEMU with the host's files, a command, and an end that is certain.

use super::initramfs;
use super::prepare::{Parts, folder};
use crate::shell::{command, root};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the guest says last, before the command's exit status.
const END: &str = "guest: the command ended with ";
/// How long a kernel may take that only has to say that it runs.
const PROBE: Duration = Duration::from_secs(30);
/// The guest's kernel dies, and says where it was, when a processor has not let go of a task for twice as many seconds as the watchdog's
/// threshold: it never comes back from that, and would be waited for until the deadline.
const KERNEL: &str =
    "console=ttyS0 quiet panic=-1 softlockup_panic=1 watchdog_thresh=30 random.trust_cpu=on mitigations=off";

/// Why a run has not ended well.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The guest's kernel ended it: what that said last.
    Died(String),
    /// The command, the deadline, or this machine.
    Failed(String),
}

impl From<String> for Stopped {
    fn from(why: String) -> Stopped {
        Stopped::Failed(why)
    }
}

/// A guest that can be started.
pub(crate) struct Guest<'a> {
    parts: &'a Parts,
    accelerator: &'static str,
}

impl<'a> Guest<'a> {
    /// With the processor's virtualisation where it proves to work, emulated elsewhere.
    pub(crate) fn new(parts: &'a Parts) -> Guest<'a> {
        let hardware = Guest { parts, accelerator: "kvm" };
        if virtualisation() && hardware.run("true", PROBE, &mut |_| ()).is_ok() {
            return hardware;
        }
        Guest { parts, accelerator: "tcg,thread=multi" }
    }

    /// Which accelerator it runs with.
    pub(crate) fn accelerator(&self) -> &str {
        self.accelerator
    }

    /// An emulator makes `rep movsb` byte by byte, and `pclmulqdq` bit by bit. Linux and glibc copy, and sum up packets, with them wherever a
    /// processor has them: that was half of all work.
    fn processor(&self) -> &'static str {
        if self.accelerator.starts_with("tcg") { "max,erms=off,fsrm=off,pclmulqdq=off" } else { "max" }
    }

    /// Runs a shell script in the guest, in the repository's folder, and hands each line that it prints to `line`.
    /// What it writes to `/run/report` is at the end of [`report`] afterwards. Anything but an end with status 0 within the
    /// deadline is an error, with the last words of the guest's kernel.
    pub(crate) fn run(
        &self,
        script: &str,
        deadline: Duration,
        line: &mut dyn FnMut(&str),
    ) -> Result<(), Stopped> {
        let (archive, console) = (folder().join("initramfs"), folder().join("console.log"));
        let script = format!("cd '{}' || exit\n{script}\n", root().display());
        fs::write(&archive, initramfs::make(self.parts, &script)?)
            .map_err(|e| format!("{}: {e}", archive.display()))?;
        // Whatever ends this program ends the emulator.
        let mut qemu =
            command("setpriv --pdeathsig KILL qemu-system-x86_64 -no-reboot -nodefaults -display none");
        qemu.args(["-accel", self.accelerator, "-cpu", self.processor(), "-smp", "2", "-m", "3072"])
            .arg("-kernel")
            .arg(&self.parts.kernel)
            .arg("-initrd")
            .arg(&archive)
            .args(["-append", KERNEL])
            .args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on"])
            .args(["-device", "virtio-serial-pci"])
            // Not `stdio`: the end of its input would close the port, and the guest's writes would wait for ever.
            .args(["-chardev", "file,id=output,path=/proc/self/fd/1"])
            .args(["-device", "virtserialport,chardev=output,name=output"])
            .args(["-chardev", &format!("file,id=report,append=on,path={}", report().display())])
            .args(["-device", "virtserialport,chardev=report,name=report"])
            .args(["-serial", &format!("file:{}", console.display())]);
        let child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the emulator: {e}"))?;
        let (stopped, why): (fn(String) -> Stopped, _) = match ended(child, deadline, line)? {
            End::Said(status) if status == "0" => return Ok(()),
            End::Said(status) => {
                return Err(format!("the command in the guest ended with status {status}").into());
            }
            End::Died => (Stopped::Died, "the guest died before its command ended".to_string()),
            End::Late => {
                (Stopped::Failed, format!("the guest has not ended within {} s", deadline.as_secs()))
            }
        };
        Err(stopped(format!("{why}; the end of its console:\n{}", last_lines(&console, 200))))
    }
}

/// The file that a guest's `/run/report` is.
pub(crate) fn report() -> PathBuf {
    folder().join("report.jsonl")
}

/// How a run came to its end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The command's exit status, as the guest said it.
    Said(String),
    Died,
    Late,
}

/// Passes its lines on until it ends or the deadline passes. It is gone afterwards.
fn ended(mut child: Child, deadline: Duration, line: &mut dyn FnMut(&str)) -> Result<End, String> {
    let latest = Instant::now() + deadline;
    let (send, lines) = channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    return;
                }
            }
        });
    }
    let mut end = End::Died;
    loop {
        match lines.recv_timeout(latest.saturating_duration_since(Instant::now())) {
            Ok(said) => match said.strip_prefix(END) {
                Some(status) => end = End::Said(status.to_string()),
                None => line(&said),
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                end = End::Late;
                // It may have ended by itself just now.
                let _ = child.kill();
                break;
            }
        }
    }
    child.wait().map_err(|e| format!("the emulator: {e}"))?;
    Ok(end)
}

/// Whether the processor says that it can, and the device is there. Both may be so where it does not work: hence the
/// probe.
fn virtualisation() -> bool {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
        && fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

fn last_lines(file: &Path, count: usize) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program that behaves like this comes to, and the lines that were passed on.
    fn outcome(script: &str, deadline: Duration) -> (End, Vec<String>) {
        let mut shell = command("sh -c");
        let child = shell.arg(script).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Vec::new();
        let end = ended(child, deadline, &mut |line| lines.push(line.to_string())).unwrap();
        (end, lines)
    }

    #[test]
    fn an_end_counts_only_if_it_was_said() {
        let minute = Duration::from_secs(60);
        let said = outcome(&format!("echo one; echo '{END}3'"), minute);
        assert_eq!(said, (End::Said("3".into()), vec!["one".to_string()]));
        assert_eq!(outcome("echo one", minute), (End::Died, vec!["one".to_string()]));
        assert_eq!(outcome("exec sleep 600", Duration::ZERO).0, End::Late);
    }

    #[test]
    fn the_last_words_are_the_last_lines_that_are_not_blank() {
        let file = std::env::temp_dir().join(format!("rdmaccl-console-{}", std::process::id()));
        fs::write(&file, "a\nb\n\nc\n \n").unwrap();
        let words = last_lines(&file, 2);
        fs::remove_file(&file).unwrap();
        assert_eq!(words, "b\nc");
    }
}

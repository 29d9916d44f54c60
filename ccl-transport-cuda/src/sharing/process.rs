//! Which process it is.

use ccl_core::{Error, ErrorKind, Result};
use std::fs::{metadata, read_to_string};
use std::os::unix::fs::MetadataExt;

/// A process, told apart from all others on all hosts, also from one that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The boot of its kernel: one on a host, in containers too.
    pub(crate) boot: [u8; 16],
    /// Within which processes' numbers it has its own.
    pub(crate) namespace: u64,
    pub(crate) pid: u32,
    /// When it began, in ticks since the boot.
    pub(crate) started: u64,
}

impl Process {
    /// This one.
    pub(crate) fn this() -> Result<Process> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        const STAT: &str = "/proc/self/stat";
        let read = |path: &str| {
            read_to_string(path).map_err(|e| Error::system(format!("reading {path}"), e, "mount /proc"))
        };
        let strange = |path: &str, text: &str| {
            Error::from(ErrorKind::Malformed { what: path.into(), cause: format!("'{}'", text.trim()) })
        };
        let (boot, stat) = (read(BOOT)?, read(STAT)?);
        Ok(Process {
            boot: uuid(&boot).ok_or_else(|| strange(BOOT, &boot))?,
            // Where there are no namespaces all have the same.
            namespace: metadata("/proc/self/ns/pid").map_or(0, |about| about.ino()),
            pid: std::process::id(),
            started: start(&stat).ok_or_else(|| strange(STAT, &stat))?,
        })
    }
}

/// 32 hexadecimal digits, with dashes anywhere.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_uuid.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes))?
}

/// The 22nd field. The second is the program's name in parentheses, with whatever in it.
fn start(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let this = Process::this().unwrap();
        assert_eq!((this, this.pid), (Process::this().unwrap(), std::process::id()));
        assert_ne!((this.boot, this.started), ([0; 16], 0));
        let line = "42 (a ) name) S 1 42 42 0 -1 4194560 119 0 0 0 0 0 0 0 20 0 1 0 987654 2703360 231";
        assert_eq!(start(line), Some(987_654));
        assert_eq!(start("42 (a) S 1"), None);
        assert_eq!(uuid("0123-4567"), None);
        assert_eq!(
            uuid("00000000-0000-0000-0000-0000000001ff\n").map(|all| all[14..] == [1, 255]),
            Some(true)
        );
    }
}

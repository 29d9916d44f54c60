//! What a process holds: threads, descriptors, mapped files. Compared before and after, it shows what was left behind.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// What this process holds now, each with how often.
#[derive(Debug, PartialEq)]
pub(crate) struct Remains(BTreeMap<String, usize>);

impl Remains {
    pub(crate) fn now() -> Remains {
        let mut held = BTreeMap::new();
        let mut add = |what: String| *held.entry(what).or_insert(0) += 1;
        for task in entries("/proc/self/task") {
            let name = fs::read_to_string(format!("/proc/self/task/{task}/comm"));
            add(format!("thread {}", name.unwrap_or_default().trim()));
        }
        for descriptor in entries("/proc/self/fd") {
            // The one that the listing itself used is closed by now.
            if let Ok(target) = fs::read_link(format!("/proc/self/fd/{descriptor}")) {
                add(format!("descriptor of {}", without_number(&target.to_string_lossy())));
            }
        }
        for line in fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
            // addresses, permissions, offset, device, inode, path: anonymous memory is the allocator's.
            let mut fields = line.split_whitespace();
            let bytes = fields.next().and_then(span).unwrap_or_default();
            let path = fields.nth(4).unwrap_or_default();
            if path.contains("memfd:") || path.starts_with("/dev/") {
                add(format!("mapping of {bytes} bytes of {path}"));
            }
        }
        Remains(held)
    }

    /// What is held now beyond this, once nothing of it goes away any more within `patience`.
    pub(crate) fn beyond(&self, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        loop {
            let more = Remains::now().less(self);
            if more.is_empty() || Instant::now() >= until {
                return more;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn less(&self, before: &Remains) -> Vec<String> {
        let more = |(what, many): (&String, &usize)| {
            let extra = many.saturating_sub(before.0.get(what).copied().unwrap_or(0));
            (extra > 0).then(|| format!("{extra} x {what}"))
        };
        self.0.iter().filter_map(more).collect()
    }
}

fn entries(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The bytes of `7f00-8f00`.
fn span(addresses: &str) -> Option<u64> {
    let (from, to) = addresses.split_once('-')?;
    u64::from_str_radix(to, 16).ok()?.checked_sub(u64::from_str_radix(from, 16).ok()?)
}

/// `socket:[123]` without its number.
fn without_number(target: &str) -> &str {
    target.split_once(":[").map_or(target, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests run beside it in this process, so what is planted has names and a size of its own.
    #[test]
    fn a_planted_descriptor_mapping_and_thread_are_found() {
        let before = Remains::now();
        let file = fs::File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        let memory = ccl::SharedMemory::alloc(74 << 20).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (start, started) = std::sync::mpsc::channel();
        // A thread gives itself its name.
        let body = move || {
            start.send(()).unwrap();
            stopped.recv()
        };
        let thread = thread::Builder::new().name("planted".into()).spawn(body).unwrap();
        started.recv().unwrap();
        let found = before.beyond(Duration::ZERO).join(", ");
        let descriptor = concat!("descriptor of ", env!("CARGO_MANIFEST_DIR"));
        let mapping = format!("mapping of {} bytes of /memfd:", 74 << 20);
        let planted = [descriptor, "thread planted", &mapping];
        assert!(planted.iter().all(|planted| found.contains(planted)), "{found}");
        drop((file, memory, stop));
        let _ = thread.join();
        let left = before.beyond(Duration::from_secs(1)).join(", ");
        assert!(planted.iter().all(|planted| !left.contains(planted)), "{left}");
    }

    #[test]
    fn sockets_count_by_kind() {
        assert_eq!(without_number("socket:[4711]"), "socket");
        assert_eq!(without_number("/memfd:name (deleted)"), "/memfd:name (deleted)");
        let held = |many| Remains(BTreeMap::from([("descriptor of socket".to_string(), many)]));
        assert_eq!(held(3).less(&held(1)), ["2 x descriptor of socket"]);
        assert_eq!(held(1).less(&held(3)), [""; 0]);
    }
}

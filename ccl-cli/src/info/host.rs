//! This machine, as far as it matters to a communicator. What cannot be read is left out.

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Processor, memory and limits.
#[derive(Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) processor: String,
    /// Cores that are switched on.
    pub(super) cores_online: u32,
    /// Cores that this process may run on.
    pub(super) cores_allowed: u32,
    /// Processor time that the control group grants, in cores.
    pub(super) cores_granted: Option<f64>,
    /// Cores of each NUMA node, as the kernel writes them.
    pub(super) numa_nodes: Vec<String>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) memory_available_bytes: Option<u64>,
    /// What the control group grants.
    pub(super) memory_granted_bytes: Option<u64>,
    /// Reserved huge pages.
    pub(super) huge_pages: Option<u64>,
    pub(super) huge_page_bytes: Option<u64>,
    /// Transparent huge pages for ordinary and for shared memory: always, madvise, never, ….
    pub(super) transparent_huge_pages: Option<String>,
    pub(super) transparent_huge_pages_shared: Option<String>,
    /// Bytes that may be locked; none: no limit. Registration with a NIC counts against it.
    pub(super) locked_memory_limit_bytes: Option<u64>,
    /// Open files; a rank needs a few per peer. None: no limit.
    pub(super) open_files_limit: Option<u64>,
}

/// Looks around.
pub(super) fn look() -> Host {
    let system = rustix::system::uname();
    let memory = read("/proc/meminfo").unwrap_or_default();
    let kilobytes = |name| meminfo(&memory, name).map(|k| k * 1024);
    Host {
        name: system.nodename().to_string_lossy().into_owned(),
        kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        processor: processor(),
        cores_online: read("/sys/devices/system/cpu/online").map_or(1, |list| listed(&list)),
        cores_allowed: rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count()),
        cores_granted: read("/sys/fs/cgroup/cpu.max").and_then(|text| granted(&text)),
        numa_nodes: numa_nodes(),
        memory_bytes: kilobytes("MemTotal"),
        memory_available_bytes: kilobytes("MemAvailable"),
        memory_granted_bytes: read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok()),
        huge_pages: meminfo(&memory, "HugePages_Total"),
        huge_page_bytes: kilobytes("Hugepagesize"),
        transparent_huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        transparent_huge_pages_shared: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        locked_memory_limit_bytes: getrlimit(Resource::Memlock).current,
        open_files_limit: getrlimit(Resource::Nofile).current,
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn processor() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or(std::env::consts::ARCH).to_string()
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How many numbers a list of the kernel's has: `0-3,8` has 5.
fn listed(list: &str) -> u32 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    list.trim().split(',').filter_map(count).sum()
}

/// Cores that `cpu.max` comes to; none where it sets no limit.
fn granted(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(quota / period)
}

fn numa_nodes() -> Vec<String> {
    let path = |node: u32| format!("/sys/devices/system/node/node{node}/cpulist");
    let lists = (0..1024).map_while(|node| read(&path(node)));
    lists.map(|list| list.trim().to_string()).collect()
}

/// The word in brackets: `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = read(path)?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_notations_are_read() {
        assert_eq!([listed("0-3,8\n"), listed("0"), listed("")], [5, 1, 0]);
        assert_eq!(granted("150000 100000\n"), Some(1.5));
        assert_eq!(granted("max 100000\n"), None);
        let text = "MemTotal:       16000 kB\nHugePages_Total:      12\n";
        assert_eq!((meminfo(text, "MemTotal"), meminfo(text, "HugePages_Total")), (Some(16000), Some(12)));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn this_host_has_a_core_and_a_kernel() {
        let host = look();
        assert!(host.cores_allowed >= 1 && host.cores_online >= 1);
        assert!(host.kernel.starts_with("Linux ") && host.memory_bytes.is_some_and(|b| b > 0));
    }
}

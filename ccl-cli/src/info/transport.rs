//! The transports, tried, with what of theirs is on this machine.

use ccl::config::Network;
use ccl::device::Driver;
use ccl::{Builder, Communicator, Config, ReduceOp, UniqueId};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::{MembarrierCommand, membarrier_query};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// One of them.
#[derive(Serialize)]
pub(super) struct Transport {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Whether it would work here.
    pub(super) works: bool,
    /// What was tried or seen, and why it does not work.
    pub(super) notes: Vec<String>,
}

/// How long two ranks of this process may take to meet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries and looks.
pub(super) fn look(config: &Config) -> Vec<Transport> {
    vec![shared_memory(config), rdma(config), sockets(config), gpu(config)]
}

fn shared_memory(config: &Config) -> Transport {
    let outcome = meet(|_| config.clone());
    let mut notes = vec![told(&outcome)];
    notes.push(match sealed_memory() {
        Ok(()) => "memfd: sealed, unnamed memory; /dev/shm is not used".to_string(),
        Err(e) => format!("memfd: not here ({e}); the kernel or a seccomp filter refuses memfd_create"),
    });
    notes.push(match membarrier_query().contains_command(MembarrierCommand::GlobalExpedited) {
        true => "membarrier: here; peers of a rank that sleeps pay no fence per message".to_string(),
        false => {
            "membarrier: not here; a rank that sleeps looks up now and then, and some long waits end later"
                .to_string()
        }
    });
    Transport {
        name: "shm",
        what: "shared memory between processes and threads of a host",

        works: outcome.is_ok(),
        notes,
    }
}

fn sockets(config: &Config) -> Transport {
    let outcome = meet(|rank| apart(config, rank, Network::Tcp));
    let notes = vec![told(&outcome)];
    let what = "sockets, between hosts without RDMA";
    Transport { name: "tcp", what, works: outcome.is_ok(), notes }
}

/// The settings of a rank that pretends to be on another host than the others.
fn apart(config: &Config, rank: u32, net: Network) -> Config {
    let mut config = config.clone();
    (config.host_id, config.net) = (Some(format!("info-{rank}")), net);
    config
}

fn told(outcome: &ccl::Result<()>) -> String {
    match outcome {
        Ok(()) => "two ranks of this process met and reduced through it".to_string(),
        Err(why) => format!("two ranks of this process did not come together: {why}"),
    }
}

/// A communicator of two ranks in this process, with the settings that each is given.
fn meet(config: impl Fn(u32) -> Config + Sync) -> ccl::Result<()> {
    let id = UniqueId::create(&config(0))?;
    let builder = |rank| -> Builder {
        let config = config(rank);
        let patience = (PATIENCE.min(config.init_timeout), PATIENCE.min(config.timeout));
        let builder = Communicator::builder().rank(rank).size(2).unique_id(id).config(config);
        builder.init_timeout(patience.0).timeout(patience.1)
    };
    let reduce = |builder: Builder| -> ccl::Result<()> {
        let mut comm = builder.build()?;
        let mut sum = [comm.rank() + 1];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        match sum {
            [3] => Ok(()),
            [wrong] => Err(ccl::Error::invalid(format!("1 + 2 came to {wrong}"), "report this as a bug")),
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| reduce(builder(1)));
        let own = reduce(builder(0));
        let others = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        own.and(others)
    })
}

fn sealed_memory() -> rustix::io::Result<()> {
    let memory = rustix::fs::memfd_create("rdmaccl-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, 4096)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)
}

fn rdma(config: &Config) -> Transport {
    let (works, notes) = match ccl::rdma_rails(config) {
        Ok(mut rails) => {
            let outcome = meet(|rank| apart(config, rank, Network::Ib));
            rails.insert(0, told(&outcome));
            (outcome.is_ok(), rails)
        }
        Err(why) => (false, vec![why.to_string()]),
    };
    Transport { name: "ibverbs", what: "RDMA: InfiniBand, RoCE", works, notes }
}

fn gpu(config: &Config) -> Transport {
    let what = "buffers on CUDA devices, by kernels or through pinned host memory";
    let driver = Driver::open(config.cuda_library.as_deref());
    let devices = driver.as_ref().map_err(Clone::clone).and_then(|driver| driver.devices());
    let mut notes: Vec<_> = driver.iter().map(|driver| format!("driver: {driver:?}")).collect();
    let works = match devices {
        Ok(devices) => {
            notes.extend(devices.iter().map(|device| format!("works: {device}")));
            notes.extend(ccl::device_code(config).unwrap_or_else(|error| vec![error.to_string()]));
            notes.extend(gpudirect(config));
            true
        }
        Err(error) => {
            notes.push(error.to_string());
            notes.extend(graphics());
            false
        }
    };
    Transport { name: "cuda", what, works, notes }
}

/// What NICs do with the memory of GPUs.
fn gpudirect(config: &Config) -> Vec<String> {
    let what = "GPUDirect RDMA, for what kernels send to other hosts and get from there";
    match ccl::gpudirect(config) {
        Ok(pairs) => {
            let told = pairs.into_iter().map(|pair| format!("chosen for {pair}"));
            std::iter::once(format!("{what} (RDMACCL_GPUDIRECT={}):", config.gpudirect)).chain(told).collect()
        }
        Err(error) => vec![format!("{what}: none, as {error}")],
    }
}

/// GPUs that the kernel shows, whatever the driver's library says.
fn graphics() -> Vec<String> {
    let numbered = |name: &str| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
    let mut seen = entries("/dev", numbered, "/dev");
    if seen.is_empty() {
        seen.push("no GPU is seen here either".into());
    }
    seen
}

/// What lies in a folder, sorted, as `label: name`; nothing where there is no folder.
fn entries(folder: impl AsRef<Path>, fits: impl Fn(&str) -> bool, label: &str) -> Vec<String> {
    let all = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<_> = names.filter(|name| fits(name)).collect();
    found.sort();
    if found.is_empty() { found } else { vec![format!("seen: {label} {}", found.join(", "))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_is_tried() {
        let all = look(&Config::default());
        let of = |name| all.iter().find(|t| t.name == name).unwrap();
        for transport in ["shm", "tcp"].map(of) {
            assert!(transport.works, "{:?}", transport.notes);
        }
        assert!(all.iter().any(|t| t.name == "ibverbs") && all.iter().any(|t| t.name == "cuda"));
    }

    #[test]
    fn a_cuda_driver_that_is_not_here_is_explained() {
        let library = ("RDMACCL_CUDA".to_string(), "/nonexistent/libcuda.so".to_string());
        let gpu = gpu(&Config::from_vars([library]).unwrap());
        assert!(!gpu.works && gpu.notes[0].contains("/nonexistent/libcuda.so"), "{:?}", gpu.notes);
    }

    #[test]
    fn rdma_that_is_not_here_is_explained() {
        let library = ("RDMACCL_IBVERBS".to_string(), "/nonexistent/libibverbs.so".to_string());
        let rdma = rdma(&Config::from_vars([library]).unwrap());
        assert!(!rdma.works && rdma.notes[0].contains("/nonexistent/libibverbs.so"), "{:?}", rdma.notes);
    }

    #[test]
    fn settings_that_no_interface_fits_are_why_it_does_not_work() {
        let config =
            Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=nosuch0".to_string())]).unwrap();
        let shm = &look(&config)[0];
        assert!(!shm.works && shm.notes[0].contains("nosuch0"), "{:?}", shm.notes);
    }

    #[test]
    fn a_folder_that_is_not_there_is_empty() {
        assert!(entries("/nonexistent", |_| true, "x").is_empty());
    }
}

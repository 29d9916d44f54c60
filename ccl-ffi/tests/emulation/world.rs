//! Devices whose kernels run, and communicators on them.

use crate::common::*;
use crate::cuda::*;
use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where a child process finds its parent's kernels.
pub(crate) const KERNELS: &str = "TEST_KERNELS";

/// Blocks of a rank, if a test wants another number.
pub(crate) const BLOCKS: &str = "RDMACCL_DEVICE_BLOCKS";

/// The kernels, compiled once for this program.
pub(crate) fn object() -> &'static Path {
    struct Object(PathBuf);
    static OBJECT: OnceLock<Object> = OnceLock::new();
    let made = || {
        // So many threads of the CPU run a launch.
        // SAFETY: no other test reads the environment before it has devices.
        unsafe {
            if std::env::var_os(BLOCKS).is_none() {
                std::env::set_var(BLOCKS, "4");
            }
            std::env::set_var("RDMACCL_DEVICE_THREADS", "8");
        }
        match std::env::var_os(KERNELS) {
            Some(of_parent) => Object(of_parent.into()),
            None => Object(ccl_fake_cuda::compile_kernels(Path::new(env!("CARGO_TARGET_TMPDIR")), None)),
        }
    };
    &OBJECT.get_or_init(made).0
}

/// So many devices that run kernels.
pub(crate) fn gpus(count: u32, script: &str) -> Gpus {
    Gpus::new(count, &format!("kernels {}; {script}", object().display()))
}

/// A communicator whose ranks are on the device of their number, or on the only one.
pub(crate) fn on_devices<const N: usize>(gpus: &Gpus) -> [Comm; N] {
    gpus.fake.set_device(0);
    let comms = init_all();
    gpus.fake.leave_device();
    comms
}

/// The same with a configuration.
pub(crate) fn on_devices_with<const N: usize>(gpus: &Gpus, config: &Config) -> [Comm; N] {
    gpus.fake.set_device(0);
    let comms = with_config(config);
    gpus.fake.leave_device();
    comms
}

/// A communicator on no device.
pub(crate) fn on_hosts_with<const N: usize>(config: &Config) -> [Comm; N] {
    with_config(config)
}

/// A communicator on no device, whose reductions are in the order of the ranks.
pub(crate) fn reference<const N: usize>() -> [Comm; N] {
    let name = CString::new("oneshot").unwrap();
    with_config(&Config { algorithm: name.as_ptr(), ..CONFIG })
}

fn with_config<const N: usize>(config: &Config) -> [Comm; N] {
    let (id, mut comms) = (id(), [0; N]);
    ok(cclGroupStart());
    for (rank, comm) in (0..).zip(&mut comms) {
        ok(cclCommInitRankConfig(comm, N as c_int, id, rank, config));
    }
    ok(cclGroupEnd());
    comms
}

/// The text of an id, for a child process.
pub(crate) fn hex(id: &Id) -> String {
    id.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id of this text.
pub(crate) fn from_hex(text: &str) -> Id {
    Id { bytes: std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()) }
}

/// How these processes end; together they have so long as anything has.
pub(crate) fn ends_of(mut children: Vec<Child>) -> Vec<ExitStatus> {
    let deadline = Instant::now() + 2 * PATIENCE;
    let mut ends: Vec<Option<ExitStatus>> = vec![None; children.len()];
    while ends.iter().any(Option::is_none) && Instant::now() < deadline {
        for (child, end) in children.iter_mut().zip(&mut ends) {
            *end = end.or_else(|| child.try_wait().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for (child, _) in children.iter_mut().zip(&ends).filter(|(_, end)| end.is_none()) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let end = |(child, end): (usize, Option<_>)| end.unwrap_or_else(|| panic!("child {child} is not done"));
    ends.into_iter().enumerate().map(end).collect()
}

/// Who goes on after whom, where a test depends on it: ranks of this process that have done something, counted.
#[derive(Default)]
pub(crate) struct Order(AtomicUsize);

impl Order {
    pub(crate) fn done(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until so many have done it.
    #[track_caller]
    pub(crate) fn after(&self, ranks: usize) {
        wait_for("the other ranks", || self.0.load(Ordering::Acquire) >= ranks);
    }
}

/// How often kernels were launched.
pub(crate) fn launches(gpus: &Gpus) -> u64 {
    gpus.fake.count("cuLaunchKernel")
}

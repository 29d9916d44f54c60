//! Devices whose kernels run, and communicators on them.

use crate::common::*;
use crate::cuda::*;
use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where a child process finds its parent's kernels.
pub(crate) const KERNELS: &str = "TEST_KERNELS";

/// The kernels, compiled once for this program.
pub(crate) fn object() -> &'static Path {
    struct Object(PathBuf);
    static OBJECT: OnceLock<Object> = OnceLock::new();
    let made = || {
        // So many threads of the CPU run a launch.
        // SAFETY: no other test reads the environment before it has devices.
        unsafe {
            std::env::set_var("RDMACCL_DEVICE_BLOCKS", "4");
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

/// How often kernels were launched.
pub(crate) fn launches(gpus: &Gpus) -> u64 {
    gpus.fake.count("cuLaunchKernel")
}

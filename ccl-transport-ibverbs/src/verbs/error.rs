//! Errors of verbs, with their cures.

use ccl_core::Error;
use rustix::process::{Resource, getrlimit};
use std::io;

/// How the errors of this crate begin.
pub(super) const NAME: &str = "ib";

/// A call that failed, with what to do.
#[cold]
pub(super) fn failed(call: impl Into<String>, source: io::Error, remedy: impl Into<String>) -> Error {
    Error::system(format!("{NAME}: {}", call.into()), source, remedy)
}

/// The remedy where the device itself is at fault.
pub(super) fn look_at(device: &str) -> String {
    format!("look at the kernel's log (dmesg) for {device}")
}

/// The remedy for a registration that failed.
pub(super) fn cure_of_registration(device: &str, source: &io::Error, max_regions: u32) -> String {
    match source.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => cure_of_memlock().unwrap_or_else(|| {
            format!("locked memory is not limited: free memory, or use less than the {max_regions} regions of {device}")
        }),
        Some(libc::EFAULT) => "all of the range must be mapped, and writable if the device is to write".into(),
        Some(libc::EOPNOTSUPP) => format!("{device} or its driver cannot register this kind of memory"),
        _ => look_at(device),
    }
}

/// The remedy where locked memory may have run out; none where it is not limited.
fn cure_of_memlock() -> Option<String> {
    let limit = getrlimit(Resource::Memlock).current?;
    Some(format!(
        "the limit of locked memory is {} KiB (ulimit -l): raise it to unlimited (limits.conf, \
         LimitMEMLOCK=infinity in systemd, --ulimit memlock=-1 in docker)",
        limit / 1024
    ))
}

/// The remedy where a device ran out of something, or of locked memory, in which many drivers keep their queues.
pub(super) fn cure_of_queue(source: &io::Error, of_device: String) -> String {
    let memory = source.raw_os_error() == Some(libc::ENOMEM);
    match cure_of_memlock().filter(|_| memory) {
        Some(cure) => format!("{of_device}; or {cure}"),
        None => of_device,
    }
}

/// The remedy for a path that the device did not take.
pub(super) fn cure_of_path(source: &io::Error, to: &str, gid: &str) -> String {
    match source.raw_os_error() {
        Some(
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EADDRNOTAVAIL | libc::ENODATA,
        ) => {
            format!(
                "nobody answers for {to}: check that the peer's port is up and that its address can be pinged from the interface of {gid}"
            )
        }
        Some(libc::EINVAL) => format!(
            "check that {gid} is set and of the same kind and family as {to} (show_gids, rdma link), \
             and that the path's MTU is at most the port's"
        ),
        _ => "look at the kernel's log (dmesg), and that the port is active".into(),
    }
}

//! Threads that take no signals.

use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};
use std::{io, ptr};

/// Starts a thread with all signals blocked: they are the program's, and its own threads take them.
pub fn spawn_quiet<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread is born with its parent's mask.
    let _blocked = Blocked::new();
    Builder::new().name(name.to_string()).spawn(body)
}

/// All signals of this thread are blocked; the mask from before comes back at the end.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Blocked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigfillset` writes the set that `pthread_sigmask` reads; neither fails on valid arguments, and so
        // both sets are written.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Blocked(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a mask that the system has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn the_new_thread_takes_no_signals_and_the_old_one_those_from_before() {
        let before = blocked();
        let there = spawn_quiet("quiet", blocked).unwrap().join().unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1] {
            assert_ne!(there & (1 << (signal - 1)), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
    }
}

//! Turns of threads on cores that they share with threads which compute.

use std::mem::MaybeUninit;

/// How long a thread of a host stream runs before another gets its turn, in nanoseconds: the shortest that Linux grants. For a thread
/// that is woken with a shorter turn than the running one's Linux (6.12 on) interrupts that; otherwise it waits for the end of it,
/// milliseconds, whenever a peer has a piece for it.
const SLICE_NS: u64 = 100_000;

/// Gives this thread short turns, and soon, where the kernel knows of them and the thread is scheduled like others; all else
/// about it stays. It needs no right. Whether the kernel took it: where it did not, background calls take longer beside computation, no more.
pub(crate) fn take_short_turns() -> bool {
    let Some(mut attributes) = attributes() else { return false };
    if !matches!(attributes.sched_policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return false;
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads a structure of the size that it says, which it has filled in itself but for one number.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// How this thread is scheduled.
fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes `size` bytes at most, all of them numbers, of which zeros are valid ones.
    unsafe {
        let got = libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0);
        (got == 0).then(|| attributes.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Since when the kernel tells, and takes, the turns of ordinary threads.
    const KNOWN_SINCE: (u32, u32) = (6, 12);

    fn kernel() -> (u32, u32) {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    #[test]
    fn turns_are_short_and_niceness_stays() {
        let (before, after) = thread::spawn(|| {
            // SAFETY: it makes this thread, which nobody else uses, give way to others.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) }, 0);
            let before = attributes().unwrap();
            assert!(take_short_turns());
            (before, attributes().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((before.sched_nice, after.sched_nice, after.sched_policy), (5, 5, before.sched_policy));
        if kernel() >= KNOWN_SINCE {
            assert_eq!(after.sched_runtime, SLICE_NS);
            assert!(before.sched_runtime > SLICE_NS, "{}", before.sched_runtime);
        }
    }

    #[test]
    fn a_stream_has_short_turns() {
        let (sender, receiver) = channel();
        let stream = Stream::new().unwrap();
        stream.submit(move || {
            sender.send(attributes().unwrap().sched_runtime).unwrap();
            Ok(())
        });
        let found = receiver.recv().unwrap();
        assert!(found == SLICE_NS || kernel() < KNOWN_SINCE, "{found}");
    }

    #[test]
    fn threads_of_another_policy_keep_it() {
        let kept = thread::spawn(|| {
            let idle = libc::sched_param { sched_priority: 0 };
            // SAFETY: it makes this thread, which nobody else uses, run where nobody else wants to.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &idle) }, 0);
            (take_short_turns(), attributes().unwrap().sched_policy)
        });
        assert_eq!(kept.join().unwrap(), (false, libc::SCHED_IDLE as u32));
    }
}

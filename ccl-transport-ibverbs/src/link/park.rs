//! Sleeping until something happens, and the end.

use super::recovery::LINGER;
use super::transport::IbTransport;
use ccl_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

/// How long the end waits for the peers' devices to take the last messages.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the end sleeps at a time.
const GLANCE: Duration = Duration::from_millis(5);

impl IbTransport {
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        if self.look()? {
            return Ok(());
        }
        for queue in self.adapters.iter().flat_map(|adapter| &adapter.queues) {
            queue.arm(false)?;
        }
        // What came before the queues were armed wakes nobody.
        if self.look()? {
            return Ok(());
        }
        let limit = end.saturating_duration_since(Instant::now());
        self.wait(limit.min(self.until_next_word()))?;
        for adapter in &self.adapters {
            while adapter.channel.next_event()?.is_some() {}
        }
        self.read_events()?;
        self.ask_after_rails();
        self.look().map(drop)
    }

    /// Whether something has happened that was not there at the last look.
    fn look(&mut self) -> Result<bool> {
        self.progress_all()?;
        Ok(std::mem::replace(&mut self.told, self.events) != self.events)
    }

    fn wait(&self, limit: Duration) -> Result<()> {
        let descriptors = self.adapters.iter().flat_map(|adapter| adapter.descriptors());
        let mut descriptors: Vec<_> =
            descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut descriptors, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("ib: poll", error, "see the limits of this process")),
        }
    }

    /// Tells the peers that nothing follows, and waits until their devices have it: it comes behind everything else
    /// that was sent, and a queue pair that is destroyed forgets what it has not sent.
    fn say_goodbye(&mut self) -> Result<()> {
        self.progress_all()?;
        let start = Instant::now();
        loop {
            // Also by queue pairs that take the place of others meanwhile.
            for lane in &mut self.lanes {
                if lane.can_take() && !self.unsent {
                    lane.say_goodbye()?;
                }
            }
            let is_behind = self.unsent_are_near() || self.is_behind();
            let limit = if is_behind { LINGER } else { FAREWELL };
            let waits = is_behind || self.lanes.iter().any(|lane| lane.open && !lane.is_drained());
            let left = limit.saturating_sub(start.elapsed());
            if !waits || left.is_zero() {
                return Ok(());
            }
            self.sleep(left.min(GLANCE))?;
        }
    }
}

impl Drop for IbTransport {
    fn drop(&mut self) {
        self.tell_work();
        if self.abandoned {
            return;
        }
        if let Err(error) = self.say_goodbye() {
            tracing::debug!(target: "net", %error, "a connection could not be closed in order");
        }
    }
}

//! How long a packet without an answer is tried before its connection counts as broken.

use super::Choice;
use ccl_core::config::Ib;
use std::fmt;
use std::time::Duration;

/// The numbers that a queue pair is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A packet is sent again after 4.096 µs × 2^this.
    pub timeout: u8,
    /// How often.
    pub retry_count: u8,
    /// The same for a receiver that is not ready. Credits keep that from happening, so one that does is a fault and
    /// shows at once.
    pub rnr_retry: u8,
}

impl Patience {
    /// Until a packet is sent again.
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(4096u64 << self.timeout.min(31))
    }

    /// From the first try until the connection counts as broken; devices may take up to four times as long.
    pub fn silence(&self) -> Duration {
        self.interval() * (u32::from(self.retry_count) + 1)
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (every, silence) = (self.interval().as_secs_f64(), self.silence().as_secs_f64());
        write!(
            f,
            "timeout {} ({every:.3} s), {} retries, {silence:.1} s in all",
            self.timeout, self.retry_count
        )
    }
}

/// Chooses for a connection over so many rails, on software devices or others.
pub fn choose(rails: usize, software: bool, settings: &Ib) -> Choice<Patience> {
    let (timeout, why) = match (settings.timeout, rails) {
        (Some(timeout), _) => (timeout, "RDMACCL_IB_TIMEOUT"),
        (None, 0 | 1) => (18, "one rail: long enough for a link that comes back"),
        (None, _) => (16, "several rails: short, as another one can take over"),
    };
    let (retry_count, retry_why) = match settings.retry_count {
        Some(count) => (count, "; RDMACCL_IB_RETRY_CNT"),
        // rdma_rxe takes 7 for ever.
        None if software => (6, "; 7 would be for ever on a software device"),
        None => (7, ""),
    };
    Choice::new(Patience { timeout, retry_count, rnr_retry: 0 }, format!("{why}{retry_why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::config::Config;

    #[test]
    fn one_rail_waits_longer_than_several() {
        let settings = Config::default().ib;
        let (one, two) = (choose(1, false, &settings).value, choose(2, false, &settings).value);
        assert!(one.silence() > Duration::from_secs(8) && two.silence() < Duration::from_secs(3));
        assert_eq!(one.to_string(), "timeout 18 (1.074 s), 7 retries, 8.6 s in all");
        assert_eq!(choose(1, true, &settings).value.retry_count, 6);
        let wanted = choose(2, true, &Ib { timeout: Some(20), retry_count: Some(3), ..settings });
        assert_eq!((wanted.value.timeout, wanted.value.retry_count), (20, 3));
        assert_eq!(wanted.why, "RDMACCL_IB_TIMEOUT; RDMACCL_IB_RETRY_CNT");
    }
}

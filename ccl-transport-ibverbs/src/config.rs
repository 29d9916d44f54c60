//! What a user may choose.

use ccl_core::config::{Config, Ib};
use ccl_core::{Error, Result};
use std::time::Duration;

/// Settings of the transport. Slots and credits must be the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbConfig {
    /// Longest piece in bytes: a multiple of 4096, at most 64 MiB; `None`: 64 KiB, and [`LONG_SLOT`](crate::choice::window::LONG_SLOT)
    /// where software is all that ranks have.
    pub slot_bytes: Option<usize>,
    /// Pieces on a link that may be published and not yet released: 1 … 1024; `None`: by the speed of the ports, and at
    /// least [`FEWEST`](crate::choice::window::FEWEST).
    pub credits: Option<u32>,
    /// Library, devices, GIDs, packets and queue pairs, as far as the user has a word in it.
    pub ib: Ib,
    /// How long a connection that failed is tried before its links end with an error.
    pub recovery: Duration,
    /// Names the host in place of the system's name (`RDMACCL_HOSTID`).
    pub host_id: Option<String>,
    /// Which of its host's ranks this is, to begin with another rail than its neighbours.
    pub local_rank: u32,
}

impl Default for IbConfig {
    fn default() -> IbConfig {
        let Config { ib, timeout, .. } = Config::default();
        IbConfig { slot_bytes: None, credits: None, ib, recovery: timeout / 2, host_id: None, local_rank: 0 }
    }
}

impl IbConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: String, remedy: &str| Err(Error::invalid(what, remedy));
        let fits = |bytes: usize| bytes != 0 && bytes.is_multiple_of(4096) && bytes <= 64 << 20;
        if let Some(slot_bytes) = self.slot_bytes.filter(|bytes| !fits(*bytes)) {
            return refuse(format!("slots of {slot_bytes} bytes"), "a multiple of 4096 up to 64 MiB");
        }
        if let Some(credits) = self.credits.filter(|credits| !(1..=1024).contains(credits)) {
            return refuse(format!("{credits} credits per link"), "1 to 1024");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_work_request_cannot_say_is_refused() {
        assert!(IbConfig::default().check().is_ok());
        let of = |slot_bytes, credits| {
            IbConfig { slot_bytes: Some(slot_bytes), credits: Some(credits), ..IbConfig::default() }.check()
        };
        assert!(of(4096, 1024).is_ok() && of(64 << 20, 1).is_ok());
        for slot_bytes in [0, 4095, (64 << 20) + 4096] {
            assert!(of(slot_bytes, 1).unwrap_err().to_string().contains("multiple of 4096"));
        }
        assert!(of(4096, 0).is_err() && of(4096, 1025).is_err());
    }
}

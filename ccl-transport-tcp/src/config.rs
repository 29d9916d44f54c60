//! What a user may choose.

use ccl_core::transport::MOST_STREAMS;
use ccl_core::{Error, Result};
use std::net::IpAddr;

/// Longest pieces where nothing else says how long they get. Measured over loopback with 2 ranks of 2 cores: calls of 2 to 16 MiB took
/// half as long as in pieces of 64 KiB.
const LONG_SLOT: usize = 512 << 10;

/// Bytes that a link's credits may cover, where nothing says how many there are.
const BUDGET: usize = 8 << 20;

/// Settings of the transport; but for the addresses and the host's name the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Longest piece in bytes: 1 … 64 MiB; `None`: 512 KiB, or what other transports take.
    pub slot_bytes: Option<usize>,
    /// Pieces on a link that can always be published and not yet released: 1 … 1024; `None`: as many as cover 8 MiB, at most 32.
    pub credits: Option<u32>,
    /// Sockets between two ranks: 1 … 64.
    pub sockets: u16,
    /// Where this rank listens, for the peers to decide whether they can reach it.
    pub addresses: Vec<IpAddr>,
    /// The host's name, for errors.
    pub host: String,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig { slot_bytes: None, credits: None, sockets: 2, addresses: Vec::new(), host: String::new() }
    }
}

/// What of it governs the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) slot_bytes: usize,
    pub(crate) credits: u32,
    pub(crate) sockets: u16,
}

impl TcpConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: String, remedy: &str| Err(Error::invalid(what, remedy));
        if let Some(slot_bytes) = self.slot_bytes.filter(|bytes| !(1..=64 << 20).contains(bytes)) {
            return refuse(format!("slots of {slot_bytes} bytes"), "1 byte to 64 MiB");
        }
        if let Some(credits) = self.credits.filter(|credits| !(1..=1024).contains(credits)) {
            return refuse(format!("{credits} credits per link"), "1 to 1024");
        }
        if !(1..=MOST_STREAMS).contains(&self.sockets) {
            return refuse(format!("{} sockets between two ranks", self.sockets), "1 to 64");
        }
        Ok(())
    }

    /// The limits where other transports take pieces of `most` bytes.
    pub(crate) fn limits(&self, most: Option<usize>) -> Limits {
        let longest = || most.map_or(LONG_SLOT, |most| most.min(LONG_SLOT));
        let slot_bytes = self.slot_bytes.unwrap_or_else(longest);
        let credits = self.credits.unwrap_or((BUDGET / slot_bytes).clamp(1, 32) as u32);
        Limits { slot_bytes, credits, sockets: self.sockets }
    }
}

impl Limits {
    /// Released pieces of which the sender is told together.
    pub(crate) fn batch(&self) -> u32 {
        (self.credits / 2).max(1)
    }

    /// Pieces that may be on a link: those that always fit, and those whose release the sender is not told yet.
    pub(crate) fn window(&self) -> u32 {
        self.credits + self.batch() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let right = TcpConfig::default();
        assert!(right.check().is_ok());
        for wrong in [
            TcpConfig { slot_bytes: Some(0), ..right.clone() },
            TcpConfig { slot_bytes: Some((64 << 20) + 1), ..right.clone() },
            TcpConfig { credits: Some(0), ..right.clone() },
            TcpConfig { credits: Some(1025), ..right.clone() },
            TcpConfig { sockets: 0, ..right.clone() },
            TcpConfig { sockets: 65, ..right.clone() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn whatever_is_not_told_yet_the_sender_has_its_credits() {
        for credits in 1..=1024 {
            let limits = TcpConfig { credits: Some(credits), ..TcpConfig::default() }.limits(None);
            let told_of_none = limits.batch() - 1;
            assert_eq!(limits.window() - told_of_none, credits);
            assert!(limits.window() < 2 * credits);
        }
    }
}

//! What a user may choose.

use ccl_core::transport::MOST_STREAMS;
use ccl_core::{Error, Result};
use std::net::IpAddr;

/// Settings of the transport; but for the addresses and the host's name the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Longest piece in bytes: 1 … 64 MiB.
    pub slot_bytes: usize,
    /// Pieces on a link that can always be published and not yet released: 1 … 1024.
    pub credits: u32,
    /// Sockets between two ranks: 1 … 64.
    pub sockets: u16,
    /// Where this rank listens, for the peers to decide whether they can reach it.
    pub addresses: Vec<IpAddr>,
    /// The host's name, for errors.
    pub host: String,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            slot_bytes: 64 << 10,
            credits: 32,
            sockets: 2,
            addresses: Vec::new(),
            host: String::new(),
        }
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
    pub(crate) fn limits(&self) -> Result<Limits> {
        let TcpConfig { slot_bytes, credits, sockets, .. } = *self;
        let refuse = |what: String, remedy: &str| Err(Error::invalid(what, remedy));
        if !(1..=64 << 20).contains(&slot_bytes) {
            return refuse(format!("slots of {slot_bytes} bytes"), "1 byte to 64 MiB");
        }
        if !(1..=1024).contains(&credits) {
            return refuse(format!("{credits} credits per link"), "1 to 1024");
        }
        if !(1..=MOST_STREAMS).contains(&sockets) {
            return refuse(format!("{sockets} sockets between two ranks"), "1 to 64");
        }
        Ok(Limits { slot_bytes, credits, sockets })
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
        assert!(right.limits().is_ok());
        for wrong in [
            TcpConfig { slot_bytes: 0, ..right.clone() },
            TcpConfig { slot_bytes: (64 << 20) + 1, ..right.clone() },
            TcpConfig { credits: 0, ..right.clone() },
            TcpConfig { credits: 1025, ..right.clone() },
            TcpConfig { sockets: 0, ..right.clone() },
            TcpConfig { sockets: 65, ..right.clone() },
        ] {
            assert!(wrong.limits().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn whatever_is_not_told_yet_the_sender_has_its_credits() {
        for credits in 1..=1024 {
            let limits = TcpConfig { credits, ..TcpConfig::default() }.limits().unwrap();
            let told_of_none = limits.batch() - 1;
            assert_eq!(limits.window() - told_of_none, credits);
            assert!(limits.window() < 2 * credits);
        }
    }
}

//! What a user may choose.

use crate::shm::Geometry;
use ccl_core::{Error, Result};

/// Settings of the transport; the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Longest piece in bytes: a multiple of 4096, at most 64 MiB.
    pub slot_bytes: usize,
    /// Pieces on a link that may be published and not yet released: 1 … 1024; at most 8 of them in
    /// slots, and 16 where ranks share cores.
    pub credits: u32,
    /// Links on which one rank may send; `None`: 32 per peer, at least 256. They take address space
    /// (up to 16 slots each, and room for short pieces), and memory only when they are used.
    pub max_links: Option<u32>,
    /// Names the host, where the system's own identity is wrong (`RDMACCL_HOSTID`): ranks with different
    /// names do not share memory.
    pub host_id: Option<String>,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { slot_bytes: 64 << 10, credits: 32, max_links: None, host_id: None }
    }
}

impl ShmConfig {
    /// The layout that these settings give for this many ranks.
    pub(crate) fn geometry(&self, ranks: u32) -> Result<Geometry> {
        let refuse = |what: String, remedy: &str| Err(Error::invalid(what, remedy));
        if self.slot_bytes == 0 || !self.slot_bytes.is_multiple_of(4096) || self.slot_bytes > 64 << 20 {
            return refuse(format!("slots of {} bytes", self.slot_bytes), "a multiple of 4096 up to 64 MiB");
        }
        if !(1..=1024).contains(&self.credits) {
            return refuse(format!("{} credits per link", self.credits), "1 to 1024");
        }
        let max_links = self.max_links.unwrap_or_else(|| ranks.saturating_mul(32).max(256));
        let geometry = Geometry { credits: self.credits, slot_bytes: self.slot_bytes, max_links };
        let slots = max_links.checked_mul(self.credits).map(|_| geometry.slots());
        let bytes = slots.and_then(|slots| u64::from(slots).checked_mul(self.slot_bytes as u64));
        if max_links == 0 || bytes.is_none_or(|bytes| bytes > 1 << 44) {
            let (slots, bytes) = (geometry.slots_per_link(true), self.slot_bytes);
            let what = format!("{max_links} links of {slots} slots of {bytes} bytes");
            return refuse(what, "at least one link, and at most 16 TiB of slots");
        }
        Ok(geometry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_be_mapped_or_numbered_is_refused() {
        let right = ShmConfig { slot_bytes: 4096, credits: 1024, ..ShmConfig::default() };
        assert!(right.geometry(2).is_ok());
        for max_links in [0, 1 << 22, u32::MAX] {
            let wrong = ShmConfig { max_links: Some(max_links), ..right.clone() };
            assert!(wrong.geometry(2).unwrap_err().to_string().contains("at least one link"), "{max_links}");
        }
        for slot_bytes in [0, 1, 4095, (64 << 20) + 4096, usize::MAX] {
            let wrong = ShmConfig { slot_bytes, ..right.clone() };
            assert!(
                wrong.geometry(2).unwrap_err().to_string().contains("a multiple of 4096"),
                "{slot_bytes}"
            );
        }
        for credits in [0, 1025, u32::MAX] {
            let wrong = ShmConfig { credits, ..right.clone() };
            assert!(wrong.geometry(2).unwrap_err().to_string().contains("1 to 1024"), "{credits}");
        }
    }
}

//! What a user may choose.

use crate::ring::Laps;
use crate::shm::Geometry;
use ccl_core::{Error, Result};

/// Settings of the transport; the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Longest piece in bytes: a multiple of 4096, at most 64 MiB.
    pub slot_bytes: usize,
    /// Pieces on a link that may be published and not yet released: 1 … 1024; at most 8 of them in
    /// slots, and 32 where ranks share cores. `None`: 256 between up to 4 ranks; 32 between more, and further ones as long as
    /// the receiver lags behind: up to 256 between up to 8, fewer between more.
    pub credits: Option<u32>,
    /// Links on which one rank may send; `None`: 32 per peer, at least 256. They take address space
    /// (up to 32 slots each, and room for short pieces), and memory only when they are used.
    pub max_links: Option<u32>,
    /// Names the host, where the system's own identity is wrong (`RDMACCL_HOSTID`): ranks with different
    /// names do not share memory.
    pub host_id: Option<String>,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { slot_bytes: 64 << 10, credits: None, max_links: None, host_id: None }
    }
}

/// Entries of a link in a communicator of so many ranks. A root runs ahead of its receivers as far as they reach: between 4 ranks on 2 cores
/// broadcasts of 8 bytes and 1 KiB take 0.6 and 0.7 with 256 of what they take with 32. But each entry has a line and room of its own: were laps of 8 ranks on
/// 2 cores never shorter than 64 or 256, all-reduces of 1 KiB would take 1.1 and 1.4 times as long. And the more ranks there are, the more memory it is.
fn laps_of(ranks: u32) -> Laps {
    match ranks {
        0..=4 => Laps { least: 256, most: 256 },
        _ => Laps { least: 32, most: (2048 / ranks).clamp(32, 256) },
    }
}

impl ShmConfig {
    /// The layout that these settings give for this many ranks.
    pub(crate) fn geometry(&self, ranks: u32) -> Result<Geometry> {
        let refuse = |what: String, remedy: &str| Err(Error::invalid(what, remedy));
        if self.slot_bytes == 0 || !self.slot_bytes.is_multiple_of(4096) || self.slot_bytes > 64 << 20 {
            return refuse(format!("slots of {} bytes", self.slot_bytes), "a multiple of 4096 up to 64 MiB");
        }
        let given = self.credits.map(|credits| Laps { least: credits, most: credits });
        let laps = given.unwrap_or_else(|| laps_of(ranks));
        if !(1..=1024).contains(&laps.least) {
            return refuse(format!("{} credits per link", laps.least), "1 to 1024");
        }
        let max_links = self.max_links.unwrap_or_else(|| ranks.saturating_mul(32).max(256));
        let geometry = Geometry { laps, slot_bytes: self.slot_bytes, max_links };
        let slots = max_links.checked_mul(laps.most).map(|_| geometry.slots());
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
        let right = ShmConfig { slot_bytes: 4096, credits: Some(1024), ..ShmConfig::default() };
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
            let wrong = ShmConfig { credits: Some(credits), ..right.clone() };
            assert!(wrong.geometry(2).unwrap_err().to_string().contains("1 to 1024"), "{credits}");
        }
    }

    #[test]
    fn credits_are_as_asked_for_or_by_the_ranks() {
        let laps = |config: ShmConfig, ranks| {
            let Laps { least, most } = config.geometry(ranks).unwrap().laps;
            (least, most)
        };
        let chosen = [1, 2, 4, 5, 8, 16, 64, 1000].map(|ranks| laps(ShmConfig::default(), ranks));
        let few = [(32, 256), (32, 256), (32, 128)];
        assert_eq!(
            (&chosen[..3], &chosen[3..6], &chosen[6..]),
            (&[(256, 256); 3][..], &few[..], &[(32, 32); 2][..])
        );
        assert_eq!(laps(ShmConfig { credits: Some(7), ..ShmConfig::default() }, 8), (7, 7));
    }
}

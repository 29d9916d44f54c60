//! What was chosen for a peer, in a line of the table that `RDMACCL_DEBUG=net` prints.

use super::patience::Patience;
use super::{Choice, quality};
use std::fmt;
use std::net::IpAddr;

/// A pair of rails that carries links to a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// Device and port here, and the GID.
    pub here: (String, IpAddr),
    /// The same there.
    pub there: (String, IpAddr),
    /// Packet payload in bytes.
    pub mtu: Choice<u16>,
    /// Why these two ports.
    pub why: String,
}

/// How a peer is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Ways {
    /// The peer's host.
    pub host: String,
    /// The pairs of rails; at least one.
    pub ways: Vec<Way>,
    /// Queue pairs of each.
    pub queue_pairs: Choice<u32>,
    /// Why the first GID.
    pub gid_why: String,
    /// How the network treats the packets.
    pub traffic_class: Choice<u8>,
    /// The same on InfiniBand.
    pub service_level: Choice<u8>,
    /// How long they are tried.
    pub patience: Choice<Patience>,
    /// Slots of a link.
    pub window: Choice<u32>,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((here, gid), (there, their_gid)) = (&self.here, &self.there);
        write!(f, "{here} ({gid}) to {there} ({their_gid}), MTU {}", self.mtu.value)
    }
}

/// All pairs of rails; then the reasons, those of the pairs where they change.
impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}: ", self.host)?;
        for (i, way) in self.ways.iter().enumerate() {
            write!(f, "{}{way}", if i > 0 { "; " } else { "" })?;
        }
        let class = quality::described(self.traffic_class.value);
        write!(
            f,
            "; {} queue pairs each, class {class}, SL {}, {} slots a link",
            self.queue_pairs.value, self.service_level.value, self.window.value
        )?;
        write!(f, "; {}; because", self.patience.value)?;
        let mut told = ("", "");
        for way in &self.ways {
            let whys = (way.why.as_str(), way.mtu.why.as_str());
            if whys != told {
                write!(f, " ports: {}, MTU: {},", whys.0, whys.1)?;
                told = whys;
            }
        }
        let (queue_pairs, class) = (&self.queue_pairs.why, &self.traffic_class.why);
        write!(
            f,
            " GID: {}, queue pairs: {queue_pairs}, class: {class}, SL: {}, retries: {}, slots: {}",
            self.gid_why, self.service_level.why, self.patience.why, self.window.why
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_named_and_every_reason_once() {
        let way = |k: u8| Way {
            here: (format!("mlx5_{k}:1"), [10, 0, k, 1].into()),
            there: (format!("mlx5_{k}:1"), [10, 0, k, 2].into()),
            mtu: Choice::new(4096, "both ports have it"),
            why: "same network".into(),
        };
        let ways = Ways {
            host: "b".into(),
            ways: vec![way(0), way(1)],
            queue_pairs: Choice::new(4, "Ethernet"),
            gid_why: "routed".into(),
            traffic_class: Choice::new(106, "RDMACCL_IB_TC"),
            service_level: Choice::new(0, "nobody set one"),
            patience: Choice::new(Patience { timeout: 16, retry_count: 7, rnr_retry: 0 }, "several rails"),
            window: Choice::new(23, "the fewest"),
        };
        let text = ways.to_string();
        assert!(
            text.starts_with("host b: mlx5_0:1 (10.0.0.1) to mlx5_0:1 (10.0.0.2), MTU 4096; mlx5_1:1"),
            "{text}"
        );
        assert!(text.contains("106 (DSCP 26, ECN 2)") && text.contains("class: RDMACCL_IB_TC"), "{text}");
        assert!(text.contains("23 slots a link") && text.contains("slots: the fewest"), "{text}");
        assert_eq!((text.matches("same network").count(), text.lines().count()), (1, 1));
    }
}

//! What every rank is told of a rank at initialisation: enough to say whether and how well it is reached.

use super::bytes::{Reader, Writer};
use crate::choice::gid::{Scope, scope};
use crate::choice::rails::Rail;
use crate::choice::survey::{GidKind, Layer};
use crate::choice::window;
use ccl_core::transport::Reach;

/// Says that the bytes are ours, and in which version.
const MAGIC: u32 = 0x6962_0001;
/// One way of a short piece, in nanoseconds, and what a message takes of either end besides its bytes: through two adapters and a
/// switch; and through two software stacks, which do little else in that time.
const CARDS_NS: (f64, f64) = (2_000.0, 250.0);
const SOFTWARE_NS: (f64, f64) = (15_000.0, 7_500.0);

/// A rank's rails in short.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Brief {
    pub(crate) host: String,
    layer: Layer,
    /// Which kinds of addresses its GIDs have, as bits.
    families: u8,
    software: bool,
    /// All rails together.
    gbps: f32,
}

impl Brief {
    pub(crate) fn of(host: &str, rails: &[Rail]) -> Brief {
        let family = |rail: &Rail| {
            rail.gids
                .iter()
                .map(|gid| match (gid.kind, scope(gid.ip())) {
                    (GidKind::Ib, _) => 1,
                    (_, Scope::Global) => {
                        if gid.ip().is_ipv4() {
                            2
                        } else {
                            4
                        }
                    }
                    (_, Scope::LinkLocal) => {
                        if gid.ip().is_ipv4() {
                            8
                        } else {
                            16
                        }
                    }
                    (_, Scope::Loopback) => 32,
                })
                .fold(0u8, |all, one| all | one)
        };
        Brief {
            host: host.to_string(),
            layer: rails.first().map_or(Layer::Ethernet, |rail| rail.layer),
            families: rails.iter().map(family).fold(0, |all, one| all | one),
            software: rails.iter().any(|rail| rail.software),
            gbps: rails.iter().map(|rail| rail.gbps).sum::<f64>() as f32,
        }
    }

    /// At most 256 bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAGIC);
        out.u8(u8::from(self.layer == Layer::InfiniBand));
        out.u8(self.families);
        out.u8(u8::from(self.software));
        out.u32(self.gbps.to_bits());
        out.text(&self.host, 64);
        out.0
    }

    /// `None`: not one of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Brief> {
        let mut bytes = Reader(bytes);
        (bytes.u32()? == MAGIC).then_some(())?;
        let layer = if bytes.u8()? == 1 { Layer::InfiniBand } else { Layer::Ethernet };
        let (families, software) = (bytes.u8()?, bytes.u8()? != 0);
        let gbps = Some(f32::from_bits(bytes.u32()?)).filter(|gbps| gbps.is_finite() && *gbps >= 0.0)?;
        let host = bytes.text()?;
        bytes.end(Brief { host, layer, families, software, gbps })
    }

    /// How well two ranks reach each other, or why not.
    pub(crate) fn reach(&self, peer: &Brief) -> Result<Reach, String> {
        if self.layer != peer.layer {
            return Err(format!(
                "the ports of host {} are {}, those of host {} {}; choose ports of one kind with RDMACCL_IB_HCA",
                self.host, self.layer, peer.host, peer.layer
            ));
        }
        if self.families & peer.families == 0 {
            return Err(format!(
                "the GIDs of hosts {} and {} are of different families; see RDMACCL_IB_ADDR_FAMILY and RDMACCL_IB_GID_INDEX",
                self.host, peer.host
            ));
        }
        let by_processor = self.software || peer.software;
        let (latency_ns, message_ns) = if by_processor { SOFTWARE_NS } else { CARDS_NS };
        // A port that does not know its speed is taken for a slow one.
        let bandwidth = f64::from(self.gbps.min(peer.gbps).max(1.0)) / 8.0;
        Ok(Reach { latency_ns, message_ns, bandwidth, by_processor })
    }

    /// Bytes of a slot for ranks of whom these are all that is known.
    pub(crate) fn slot_bytes(all: impl IntoIterator<Item = Option<Brief>>) -> usize {
        let is_software = |brief: Option<Brief>| brief.is_some_and(|brief| brief.software);
        if all.into_iter().all(is_software) { window::LONG_SLOT } else { window::SLOT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::{rails, survey::Survey, surveys};
    use ccl_core::config::Config;

    fn brief(survey: &Survey) -> Brief {
        Brief::of(&survey.host, &rails::choose(survey, &Config::default().ib).unwrap().value)
    }

    #[test]
    fn a_brief_is_short_and_survives_the_way() {
        let long = Survey { host: "ä".repeat(500), ..surveys::rails(1, 8) };
        let bytes = brief(&long).encode();
        assert!(bytes.len() <= 256);
        let short = brief(&surveys::rails(1, 8));
        assert_eq!(Brief::decode(&short.encode()), Some(short.clone()));
        let bytes = short.encode();
        assert!((0..bytes.len()).all(|n| Brief::decode(&bytes[..n]).is_none()));
        assert_eq!(short.reach(&short).unwrap().bandwidth, 400.0);
    }

    #[test]
    fn slots_are_long_where_all_is_software() {
        let card = brief(&surveys::rails(1, 2));
        let software = Brief { software: true, ..card.clone() };
        let of = |all: [&Brief; 2]| Brief::slot_bytes(all.map(|brief| Some(brief.clone())));
        assert_eq!(of([&software, &software]), window::LONG_SLOT);
        assert_eq!([of([&software, &card]), of([&card, &card])], [window::SLOT; 2]);
        assert_eq!(Brief::slot_bytes([Some(software.clone()), None]), window::SLOT, "one of another version");
        let (slow, fast) = (software.reach(&card).unwrap(), card.reach(&card).unwrap());
        assert!(slow.latency_ns > fast.latency_ns && slow.message_ns > fast.message_ns);
        assert!(slow.by_processor && !fast.by_processor);
    }

    #[test]
    fn who_cannot_be_reached_is_told_why() {
        let (ib, roce) = (brief(&surveys::infiniband()), brief(&surveys::roce()));
        assert!(ib.reach(&roce).unwrap_err().contains("host roce1 Ethernet"));
        let six = Brief { families: 4, ..roce.clone() };
        assert!(six.reach(&Brief { families: 2, ..roce }).unwrap_err().contains("families"));
    }
}

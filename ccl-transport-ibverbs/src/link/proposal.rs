//! The first word between two ranks that connect: what each has, so that both choose the same.

use super::bytes::{Reader, Writer};
use super::wire::MOST_LINKS;
use crate::choice::pairing::{Offer, OfferedRail};
use crate::choice::survey::{Gid, GidKind, Layer, Netdev};
use ccl_core::Rank;
use std::net::Ipv6Addr;

/// Says that the bytes are ours, and in which version.
const MAGIC: u64 = 0x6962_7072_6f70_0002;
/// Rails of a rank: a group of lanes has one for each, and at least a link at home on each. A word has room for some more.
pub(super) const MOST_RAILS: usize = MOST_LINKS as usize;
/// GIDs of each.
const MOST_GIDS: usize = 4;
/// Bytes of names.
const NAME: u8 = 32;

/// One rank's word to one peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) rank: Rank,
    pub(crate) slot_bytes: u32,
    /// Credits that its user wants; 0: by the speed of the ports.
    pub(crate) credits: u32,
    /// Queue pairs between two ports that it would make.
    pub(crate) queue_pairs: u32,
    /// Work requests that each of its queue pairs can hold.
    pub(crate) work_requests: u32,
    /// The packet payload that its user wants; 0: none in particular.
    pub(crate) mtu: u16,
    pub(crate) offer: Offer,
}

impl Proposal {
    /// At most 4096 bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(MAGIC);
        for number in [self.rank, self.slot_bytes, self.credits, self.queue_pairs, self.work_requests] {
            out.u32(number);
        }
        out.u16(self.mtu);
        out.text(&self.offer.host, 2 * NAME);
        out.u8(self.offer.first as u8);
        let rails = &self.offer.rails[..self.offer.rails.len().min(MOST_RAILS)];
        out.u8(rails.len() as u8);
        for rail in rails {
            encode_rail(&mut out, rail);
        }
        out.0
    }

    /// `None`: not a word of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Proposal> {
        let mut bytes = Reader(bytes);
        (bytes.u64()? == MAGIC).then_some(())?;
        let (rank, slot_bytes, credits) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
        let (queue_pairs, work_requests, mtu) = (bytes.u32()?, bytes.u32()?, bytes.u16()?);
        let (host, first) = (bytes.text()?, bytes.u8()?.into());
        let rails = (0..bytes.u8()?).map(|_| decode_rail(&mut bytes)).collect::<Option<_>>()?;
        let offer = Offer { host, rails, first };
        let sane = (1..=128).contains(&queue_pairs) && credits <= 1024;
        bytes
            .end(Proposal { rank, slot_bytes, credits, queue_pairs, work_requests, mtu, offer })
            .filter(|_| sane)
    }
}

fn encode_rail(out: &mut Writer, rail: &OfferedRail) {
    out.text(&rail.name, NAME);
    out.u8(u8::from(rail.layer == Layer::InfiniBand));
    out.u32((rail.gbps as f32).to_bits());
    out.u16(rail.mtu);
    out.u16(rail.lid);
    let gids = &rail.gids[..rail.gids.len().min(MOST_GIDS)];
    out.u8(gids.len() as u8);
    for gid in gids {
        out.u32(gid.index);
        out.0.extend(gid.address.octets());
        out.u8(match gid.kind {
            GidKind::Ib => 0,
            GidKind::RoceV1 => 1,
            GidKind::RoceV2 => 2,
            GidKind::Unknown => 3,
        });
        out.u8(gid.prefix());
        let netdev = gid.netdev.as_ref();
        out.u32(netdev.map_or(0, |netdev| netdev.mtu));
        out.text(netdev.map_or("", |netdev| &netdev.name), 16);
    }
}

fn decode_rail(bytes: &mut Reader<'_>) -> Option<OfferedRail> {
    let name = bytes.text()?;
    let layer = if bytes.u8()? == 1 { Layer::InfiniBand } else { Layer::Ethernet };
    let gbps = f64::from(f32::from_bits(bytes.u32()?));
    let (mtu, lid) = (bytes.u16()?, bytes.u16()?);
    let gids: Vec<Gid> = (0..bytes.u8()?).map(|_| decode_gid(bytes)).collect::<Option<_>>()?;
    let sane = gbps.is_finite() && [256, 512, 1024, 2048, 4096].contains(&mtu) && !gids.is_empty();
    sane.then_some(OfferedRail { name, layer, gbps, mtu, lid, gids })
}

fn decode_gid(bytes: &mut Reader<'_>) -> Option<Gid> {
    let index = bytes.u32()?;
    let address = Ipv6Addr::from(bytes.take::<16>()?);
    let kind = [GidKind::Ib, GidKind::RoceV1, GidKind::RoceV2, GidKind::Unknown];
    let kind = *kind.get(usize::from(bytes.u8()?))?;
    let (prefix, mtu, name) = (bytes.u8()?, bytes.u32()?, bytes.text()?);
    (prefix <= 128).then_some(())?;
    let networks = vec![(address.to_canonical(), prefix)];
    let netdev = (!name.is_empty()).then_some(Netdev { name, up: true, mtu, bond: false, networks });
    Some(Gid { index, address, kind, netdev })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::pairing::pair;
    use crate::choice::{rails, surveys};
    use ccl_core::config::Config;

    fn proposal(number: u8, count: u8) -> Proposal {
        let survey = surveys::rails(number, count);
        let rails = rails::choose(&survey, &Config::default().ib).unwrap().value;
        let offer = Offer::of(&survey.host, &rails, 1);
        Proposal {
            rank: 3,
            slot_bytes: 65536,
            credits: 32,
            queue_pairs: 4,
            work_requests: 4096,
            mtu: 0,
            offer,
        }
    }

    #[test]
    fn both_ends_choose_the_same_from_what_came_over_the_wire() {
        let (a, b) = (proposal(1, 12), proposal(2, 12));
        let told = |p: &Proposal| Proposal::decode(&p.encode()).unwrap();
        assert!(a.encode().len() <= 4096, "{}", a.encode().len());
        let (ours, theirs) = (pair(&a.offer, &told(&b).offer), pair(&told(&a).offer, &b.offer));
        assert_eq!(ours.unwrap(), theirs.unwrap());
    }

    #[test]
    fn a_word_survives_the_way_and_nothing_else_passes() {
        let word = proposal(1, 2);
        let bytes = word.encode();
        let told = Proposal::decode(&bytes).unwrap();
        assert_eq!(told.encode(), bytes);
        assert_eq!((told.offer.first, told.offer.rails.len(), told.credits), (1, 2, 32));
        assert!((0..bytes.len()).all(|n| Proposal::decode(&bytes[..n]).is_none()));
        assert!(Proposal::decode(&[&bytes[..], &[0]].concat()).is_none());
    }
}

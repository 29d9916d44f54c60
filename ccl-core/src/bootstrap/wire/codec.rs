//! Words, texts and lists as bytes, little-endian.

use super::{Garbled, MAX_ADDRESSES, Member};
use crate::plan::Rank;
use std::net::{IpAddr, SocketAddr};

const MAX_TEXT: usize = 1024;

/// Lists are cut to this many ranks, so that a message about a huge job still fits a frame.
const MAX_RANKS: usize = 8192;

pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    /// Cut at a character, where it is too long.
    pub(super) fn text(&mut self, text: &str) {
        self.long_text(text, MAX_TEXT);
    }

    /// [`text`](Writer::text) with a bound of its own.
    pub(super) fn long_text(&mut self, text: &str, most: usize) {
        let end = text.floor_char_boundary(most);
        self.bytes(&text.as_bytes()[..end]);
    }

    pub(super) fn ranks(&mut self, ranks: &[Rank]) {
        let ranks = &ranks[..ranks.len().min(MAX_RANKS)];
        self.u32(ranks.len() as u32);
        for &rank in ranks {
            self.u32(rank);
        }
    }

    pub(super) fn member(&mut self, member: &Member) {
        self.text(&member.host);
        self.u32(member.pid);
        let addresses = &member.addresses[..member.addresses.len().min(MAX_ADDRESSES)];
        self.u32(addresses.len() as u32);
        for address in addresses {
            match address.ip() {
                IpAddr::V4(ip) => self.bytes(&ip.octets()),
                IpAddr::V6(ip) => self.bytes(&ip.octets()),
            }
            self.u16(address.port());
        }
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Garbled> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Garbled("shorter than it says"))?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        Ok(*self.take(N)?.first_chunk().expect("take gave N bytes"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Garbled> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Garbled> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Garbled> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Garbled> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn bytes(&mut self, most: usize) -> Result<&'a [u8], Garbled> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Garbled("longer than allowed"));
        }
        self.take(len)
    }

    pub(super) fn text(&mut self) -> Result<String, Garbled> {
        self.long_text(MAX_TEXT)
    }

    pub(super) fn long_text(&mut self, most: usize) -> Result<String, Garbled> {
        let bytes = self.bytes(most)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Garbled("text is not UTF-8"))
    }

    /// A counted list. Memory grows with the bytes that are there, not with the count that they claim.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Garbled>,
    ) -> Result<Vec<T>, Garbled> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(super) fn ranks(&mut self) -> Result<Vec<Rank>, Garbled> {
        let ranks = self.list(Self::u32)?;
        if ranks.len() > MAX_RANKS { Err(Garbled("too many ranks")) } else { Ok(ranks) }
    }

    pub(super) fn member(&mut self) -> Result<Member, Garbled> {
        let host = self.text()?;
        let pid = self.u32()?;
        let addresses = self.list(|from| {
            let octets = from.bytes(16)?;
            let ip = match octets.len() {
                4 => IpAddr::from(*octets.first_chunk::<4>().expect("four octets")),
                16 => IpAddr::from(*octets.first_chunk::<16>().expect("sixteen octets")),
                _ => return Err(Garbled("address length")),
            };
            Ok(SocketAddr::new(ip, from.u16()?))
        })?;
        if addresses.len() > MAX_ADDRESSES {
            return Err(Garbled("too many addresses"));
        }
        Ok(Member { host, pid, addresses })
    }
}

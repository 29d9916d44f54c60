//! The unique id: where the root listens, and the secret of the job.

use super::key::{KEY_BYTES, Key};
use super::listen::{listen, listen_at};
use super::net::bootstrap_error;
use super::root;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Bytes of a [`UniqueId`].
pub const UNIQUE_ID_BYTES: usize = 128;

/// Ports above the given one that rank 0 may take at a rendezvous, because the given one is often the launcher's own.
const RENDEZVOUS_PORTS: u16 = 8;

/// How an id came to be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Made by rank 0, whose root service listened before there was an id.
    Given = 0,
    /// Derived by all ranks.
    Meeting = 1,
    /// Derived by all ranks, which are on one host.
    MeetingOnLoopback = 2,
}

const MAGIC: [u8; 4] = *b"rccl";
const KIND_AT: usize = 5;
const ID_VERSION: u8 = 1;
const SECRET_AT: usize = 8;
const ADDRESSES_AT: usize = SECRET_AT + KEY_BYTES;
const CHECKSUM_AT: usize = UNIQUE_ID_BYTES - 8;
const ADDRESS_BYTES: usize = 19;
const MOST_ADDRESSES: usize = (CHECKSUM_AT - ADDRESSES_AT) / ADDRESS_BYTES;

/// What brings the ranks of a job together: 128 opaque bytes that rank 0 makes and every rank is given.
///
/// Whoever knows it can join the job: treat it like a password. `Display` and `FromStr` are its hexadecimal
/// form, with the secret; `Debug` shows the addresses only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UNIQUE_ID_BYTES]);

/// A new id and its root service, which ends with it.
#[derive(Debug)]
pub struct Meeting {
    id: UniqueId,
    stop: Option<root::Stop>,
}

impl Meeting {
    /// A new id with its root service.
    pub fn open(config: &Config) -> Result<Meeting> {
        let listeners = listen(config)?;
        let id = UniqueId::new(Key::random()?, &listeners.addresses, Kind::Given);
        let stop = root::serve(listeners.sockets, id.key(), config)?;
        Ok(Meeting { id, stop: Some(stop) })
    }

    /// The id.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Lets the root service run until all ranks have joined, or the deadline.
    pub fn stay(mut self) -> UniqueId {
        self.stop = None;
        self.id
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.stop();
        }
    }
}

impl UniqueId {
    /// A new id. Starts the root service: a thread `rdmaccl-root` that ends when all ranks have joined or the
    /// deadline of initialisation has passed.
    pub fn create(config: &Config) -> Result<UniqueId> {
        Meeting::open(config).map(Meeting::stay)
    }

    /// The id that all ranks of a launcher derive alike from one address: rank 0 listens there, on the
    /// address's port or one of the next seven. At a loopback address it listens on loopback only.
    ///
    /// `secret_seed` is what the ranks of this run share and others do not know, and the job is as private as
    /// it. With a seed of at least 16 random bytes a rendezvous is as good as [`create`](UniqueId::create).
    /// With one that can be guessed (a job's number, an address) it still keeps jobs from mixing by accident,
    /// but whoever reaches the port and guesses can take a rank's place, read what the ranks tell
    /// each other, or be the root for them; then let only trusted hosts reach these ports.
    pub fn from_rendezvous(address: SocketAddr, secret_seed: &[u8]) -> UniqueId {
        UniqueId::meeting(&[address], secret_seed, address.ip().is_loopback())
    }

    /// [`from_rendezvous`](UniqueId::from_rendezvous) for a host with several addresses; `loopback_only` keeps
    /// rank 0 from listening to the network.
    pub(super) fn meeting(addresses: &[SocketAddr], secret_seed: &[u8], loopback_only: bool) -> UniqueId {
        let kind = if loopback_only { Kind::MeetingOnLoopback } else { Kind::Meeting };
        UniqueId::new(Key::from_seed(secret_seed), addresses, kind)
    }

    /// Starts the root service of an id from [`from_rendezvous`](UniqueId::from_rendezvous), on rank 0.
    pub(super) fn serve_rendezvous(&self, config: &Config) -> Result<()> {
        let named: Vec<IpAddr> = self.given().iter().map(SocketAddr::ip).collect();
        let first = self.given()[0].port();
        let last = first.saturating_add(RENDEZVOUS_PORTS - 1);
        let loopback_only = self.0[KIND_AT] == Kind::MeetingOnLoopback as u8;
        let mut failure = None;
        for port in first..=last {
            match listen_at(&named, port, loopback_only, config) {
                Ok(sockets) => return root::serve(sockets, self.key(), config).map(drop),
                Err(error) => failure = Some(error),
            }
        }
        let cause = failure.map_or_else(String::new, |error| format!(" ({error})"));
        Err(bootstrap_error(format!(
            "none of the ports {first}-{last} is free for the root service{cause}; set RDMACCL_ROOT=host:port \
             with a free one"
        )))
    }

    pub(super) fn new(key: Key, addresses: &[SocketAddr], kind: Kind) -> UniqueId {
        let addresses = &addresses[..addresses.len().min(MOST_ADDRESSES)];
        let mut bytes = [0; UNIQUE_ID_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = ID_VERSION;
        bytes[KIND_AT] = kind as u8;
        bytes[6] = addresses.len() as u8;
        bytes[SECRET_AT..ADDRESSES_AT].copy_from_slice(&key.0);
        for (slot, address) in bytes[ADDRESSES_AT..].chunks_exact_mut(ADDRESS_BYTES).zip(addresses) {
            match address.ip() {
                IpAddr::V4(ip) => {
                    slot[0] = 4;
                    slot[1..5].copy_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    slot[0] = 6;
                    slot[1..17].copy_from_slice(&ip.octets());
                }
            }
            slot[17..].copy_from_slice(&address.port().to_le_bytes());
        }
        UniqueId(UniqueId::sealed(bytes))
    }

    /// The bytes with their checksum.
    pub(super) fn sealed(mut bytes: [u8; UNIQUE_ID_BYTES]) -> [u8; UNIQUE_ID_BYTES] {
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum);
        bytes
    }

    /// The id in these bytes, checked.
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<UniqueId> {
        let malformed = |cause: &str| -> Result<UniqueId> {
            Err(ErrorKind::Malformed { what: "unique id".into(), cause: cause.into() }.into())
        };
        if bytes.iter().all(|b| *b == 0) {
            return malformed(
                "it is all zeros; call get_unique_id on rank 0 and send the bytes to all ranks",
            );
        }
        if bytes[..4] != MAGIC {
            return malformed("these bytes are not a unique id of rdmaccl");
        }
        if bytes[4] != ID_VERSION {
            return malformed(&format!("it has version {}, this library makes {ID_VERSION}", bytes[4]));
        }
        if bytes[CHECKSUM_AT..] != checksum(bytes) {
            return malformed("its checksum is wrong: it was cut or changed on its way");
        }
        if bytes[KIND_AT] > Kind::MeetingOnLoopback as u8 {
            return malformed("it is of a kind that this library does not make");
        }
        let id = UniqueId(*bytes);
        let (count, given) = (usize::from(bytes[6]), id.given());
        if count == 0 || count > MOST_ADDRESSES || given.len() != count || given.iter().any(|a| a.port() == 0)
        {
            return malformed("it holds no valid address");
        }
        Ok(id)
    }

    /// The bytes, to be sent to the other ranks.
    pub fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }

    pub(super) fn key(&self) -> Key {
        Key(*self.0[SECRET_AT..].first_chunk().expect("the id holds a secret"))
    }

    pub(super) fn is_rendezvous(&self) -> bool {
        self.0[KIND_AT] != Kind::Given as u8
    }

    /// Where the root may be found.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let ports = if self.is_rendezvous() { RENDEZVOUS_PORTS } else { 1 };
        let given = self.given();
        // Each address with the first port, then each with the next: one that swallows calls costs less.
        let each = |i: u16| given.iter().filter_map(move |a| Some((a.ip(), a.port().checked_add(i)?)));
        (0..ports).flat_map(each).map(SocketAddr::from).collect()
    }

    fn given(&self) -> Vec<SocketAddr> {
        let slots = self.0[ADDRESSES_AT..CHECKSUM_AT].chunks_exact(ADDRESS_BYTES);
        let address = |slot: &[u8]| {
            let ip = match slot[0] {
                4 => IpAddr::from(*slot[1..].first_chunk::<4>()?),
                6 => IpAddr::from(*slot[1..].first_chunk::<16>()?),
                _ => return None,
            };
            Some(SocketAddr::new(ip, u16::from_le_bytes([slot[17], slot[18]])))
        };
        slots.take(usize::from(self.0[6])).filter_map(address).collect()
    }
}

fn checksum(bytes: &[u8; UNIQUE_ID_BYTES]) -> [u8; 8] {
    *Sha256::digest(&bytes[..CHECKSUM_AT]).first_chunk().expect("a digest has 32 bytes")
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("addresses", &self.given()).finish_non_exhaustive()
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let bytes: Option<Vec<u8>> =
            digits.map(|d| d.chunks(2).map(|c| c[0] << 4 | c[c.len() - 1]).collect());
        match bytes.as_deref().map(<&[u8; UNIQUE_ID_BYTES]>::try_from) {
            Some(Ok(bytes)) if text.trim().len() == 2 * UNIQUE_ID_BYTES => UniqueId::from_bytes(bytes),
            _ => Err(ErrorKind::Malformed {
                what: "unique id".into(),
                cause: "it must be 256 hexadecimal digits".into(),
            }
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> UniqueId {
        UniqueId::from_rendezvous("[::1]:4711".parse().unwrap(), b"seed")
    }

    #[test]
    fn text_and_bytes_round_trip() {
        assert_eq!(id().to_string().parse::<UniqueId>().unwrap(), id());
        assert_eq!(UniqueId::from_bytes(id().as_bytes()).unwrap(), id());
        assert_eq!(id().addresses()[..2], ["[::1]:4711".parse().unwrap(), "[::1]:4712".parse().unwrap()]);
    }

    #[test]
    fn bad_ids_are_told_apart() {
        let error = |bytes: [u8; 128]| UniqueId::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error([0; 128]).contains("all zeros"));
        assert!(error([7; 128]).contains("not a unique id"));
        let mut other = *id().as_bytes();
        other[4] = 9;
        assert!(error(other).contains("version 9"));
        for at in 5..128 {
            let mut changed = *id().as_bytes();
            changed[at] ^= 1;
            assert!(error(changed).contains("checksum"), "byte {at}");
        }
        assert!("zz".parse::<UniqueId>().is_err());
        assert!(id().to_string()[1..].parse::<UniqueId>().is_err());
    }

    #[test]
    fn debug_hides_the_secret() {
        let text = format!("{:?}", id());
        assert!(text.contains("[::1]:4711"), "{text}");
        assert!(!text.contains(&id().to_string()[16..80]), "{text}");
    }
}

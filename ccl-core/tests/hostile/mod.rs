//! A peer that was written from the protocol's description and shares no code with the library: it can say anything.

use ccl_core::bootstrap::UniqueId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What a connection is for.
pub(crate) const JOIN: u8 = 1;
/// The control plane.
pub(crate) const TREE: u8 = 2;
/// A transport's stream.
pub(crate) const STREAM: u8 = 4;

const NONCE: [u8; 32] = [0x5a; 32];

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The secret in an id.
pub(crate) fn secret_of(id: &UniqueId) -> [u8; 32] {
    id.as_bytes()[8..40].try_into().unwrap()
}

/// The first address in an id, which must be one of IPv4.
pub(crate) fn root_of(id: &UniqueId) -> SocketAddr {
    let slot = &id.as_bytes()[40..59];
    assert_eq!(slot[0], 4);
    let ip: [u8; 4] = slot[1..5].try_into().unwrap();
    SocketAddr::from((ip, u16::from_le_bytes([slot[17], slot[18]])))
}

/// The version of the protocol, as a listener says it to anybody.
pub(crate) fn version_at(address: SocketAddr) -> u16 {
    let mut stream = connect(address).unwrap();
    stream.write_all(&[&b"rdmaccl\x01\xff\xff\x01"[..], &[0; 40]].concat()).unwrap();
    let mut answer = [0; 59];
    stream.read_exact(&mut answer).unwrap();
    u16::from_le_bytes([answer[8], answer[9]])
}

/// A connection on which nothing waits for ever.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // What is said first arrives first, also on different connections.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The first bytes of a connection.
pub(crate) fn hello(secret: &[u8; 32], version: u16, purpose: u8) -> Vec<u8> {
    let mark = &mac(secret, &[b"mark"])[..8];
    [&b"rdmaccl\x01"[..], &version.to_le_bytes(), &[purpose], mark, &NONCE].concat()
}

/// Somebody who knows the secret.
pub(crate) struct Impostor {
    stream: TcpStream,
    send: [u8; 32],
    mask: [u8; 32],
    sent: u64,
    /// All bytes that it has sent.
    pub(crate) record: Vec<u8>,
}

impl Impostor {
    /// Connects and proves that it knows the secret.
    pub(crate) fn connect(address: SocketAddr, secret: &[u8; 32], purpose: u8) -> Impostor {
        let mut stream = connect(address).unwrap();
        let mut record = hello(secret, version_at(address), purpose);
        stream.write_all(&record).unwrap();
        let mut answer = [0; 59];
        stream.read_exact(&mut answer).unwrap();
        let theirs = &answer[11..43];
        assert_eq!(
            (answer[10], &answer[43..]),
            (0, &mac(secret, &[b"acceptor", &[purpose], &NONCE, theirs])[..16])
        );
        let proof = &mac(secret, &[b"dialler", &[purpose], &NONCE, theirs])[..16];
        stream.write_all(proof).unwrap();
        record.extend(proof);
        let derive = |what: &[u8]| mac(secret, &[what, &[purpose], &NONCE, theirs]);
        let (send, mask) = (derive(b"dialler speaks"), derive(b"mask"));
        Impostor { stream, send, mask, sent: 0, record }
    }

    /// Sends a frame with a right MAC.
    pub(crate) fn say(&mut self, kind: u8, payload: &[u8]) {
        self.say_as_long(payload.len() as u32, kind, payload);
    }

    /// Sends a frame that says another length.
    pub(crate) fn say_as_long(&mut self, len: u32, kind: u8, payload: &[u8]) {
        let header = [&len.to_le_bytes()[..], &[kind]].concat();
        let tag = mac(&self.send, &[&self.sent.to_le_bytes(), &header, payload]);
        self.sent += 1;
        let frame = [&header, payload, &tag[..16]].concat();
        self.record.extend(&frame);
        // The other end may have closed.
        let _ = self.stream.write_all(&frame);
    }

    /// Says who it is, to the root. `address` is where it says that it listens.
    pub(crate) fn join(&mut self, rank: u32, ranks: u32, address: Option<SocketAddr>) {
        let mut payload = [rank.to_le_bytes(), ranks.to_le_bytes()].concat();
        payload.extend(60_000_u64.to_le_bytes());
        payload.extend(member(address));
        self.say(1, &payload);
    }

    /// The next frame: kind and payload. `None` where the other end has closed.
    pub(crate) fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header).ok()?;
        let [a, b, c, d, kind] = header;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        self.stream.read_exact(&mut [0; 16]).ok()?;
        Some((kind, payload))
    }

    /// The text of the refusal that comes.
    pub(crate) fn refusal(&mut self) -> String {
        let (kind, payload) = self.hear().expect("a refusal");
        assert!((3..=5).contains(&kind), "kind {kind}");
        String::from_utf8_lossy(&payload).into_owned()
    }

    /// The key of the job, from the welcome that comes.
    pub(crate) fn welcome(&mut self) -> [u8; 32] {
        let (kind, payload) = self.hear().expect("a welcome");
        assert_eq!(kind, 2);
        std::array::from_fn(|i| payload[i] ^ self.mask[i])
    }
}

/// How a rank describes itself.
pub(crate) fn member(address: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = [&4_u32.to_le_bytes()[..], b"liar", &1_u32.to_le_bytes()].concat();
    bytes.extend(u32::from(address.is_some()).to_le_bytes());
    if let Some(SocketAddr::V4(address)) = address {
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend(address.ip().octets());
        bytes.extend(address.port().to_le_bytes());
    }
    bytes
}

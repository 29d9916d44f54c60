//! One authenticated conversation, without its socket: bytes come in, messages and bytes go out.
//!
//! The end that dials sends `magic, version, purpose, job mark, nonce`; the end that accepts answers
//! `magic, version, status, nonce, proof`, and the dialling end sends its own proof. A proof is a MAC, with a
//! key that both must know, over both nonces; the two directions' proofs differ, so neither can be
//! reflected. From then on frames go both ways, each with a MAC under a key of this conversation and this
//! direction over a counter and the frame, so that nobody else can speak, replay, reorder or drop one.
//!
//! The contents are not encrypted: the tree carries addresses and names, no user data. The session key that
//! `Welcome` carries is masked with a key of the conversation.

use super::key::{KEY_BYTES, Key, TAG_BYTES};
use super::wire::{Garbled, HEADER_BYTES, MAX_PAYLOAD, Message, VERSION};
use crate::error::Result;
use std::fmt;

const MAGIC: [u8; 8] = *b"rdmaccl\x01";
const MARK_BYTES: usize = 8;
const HELLO_BYTES: usize = MAGIC.len() + 2 + 1 + MARK_BYTES + KEY_BYTES;
const ANSWER_BYTES: usize = MAGIC.len() + 2 + 1 + KEY_BYTES + TAG_BYTES;

/// What a connection is for. Keys differ by it, so none can be used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    /// A rank to the root service.
    Join = 1,
    /// A child to its parent.
    Tree = 2,
    /// A rank to a peer, to swap blobs.
    Swap = 3,
    /// A rank to a peer, for a transport to take over.
    Stream = 4,
}

/// How far the other end of an accepted connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not said whom it looks for.
    Silent,
    /// It has named this job, which it may have overheard.
    Named,
    /// It has proved that it knows the secret.
    Proved,
}

/// Why a conversation is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The other end speaks another protocol, or not ours at all.
    Stranger(&'static str),
    /// The other end has another version of this library.
    Version(u16),
    /// The other end belongs to another job.
    OtherJob,
    /// A message that nobody who knows the key would send.
    Forged(&'static str),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Stranger(what) => write!(f, "the other end does not speak rdmaccl's protocol ({what})"),
            Broken::Version(theirs) => write!(
                f,
                "the other end has bootstrap protocol version {theirs}, this one {VERSION}; use one version of \
                 rdmaccl on all ranks"
            ),
            Broken::OtherJob => f.write_str(
                "the other end belongs to another job: its unique id is not this one; give all ranks the id that \
                 rank 0 made for this run",
            ),
            Broken::Forged(what) => write!(f, "the other end sent a message that does not verify ({what})"),
        }
    }
}

impl From<Garbled> for Broken {
    fn from(garbled: Garbled) -> Broken {
        Broken::Forged(garbled.0)
    }
}

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Session {
    key: Key,
    nonce: [u8; KEY_BYTES],
    stage: Stage,
    /// Messages said before the handshake was over.
    early: Vec<Message>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    /// Dialled; waits for the answer.
    Dialled { purpose: Purpose },
    /// Accepts one of these purposes; waits for the hello.
    Accepting { allowed: &'static [Purpose] },
    /// Answered; waits for the proof.
    Answered { purpose: Purpose, theirs: [u8; KEY_BYTES] },
    /// Proved both ways.
    Open { purpose: Purpose, send: Direction, receive: Direction, mask: Key },
}

#[derive(Debug)]
struct Direction {
    key: Key,
    counter: u64,
}

impl Session {
    /// The end that dials.
    pub(super) fn dial(key: Key, purpose: Purpose) -> Result<Session> {
        Ok(Session::dial_with(key, purpose, Key::random()?.0))
    }

    /// The end that dials, with a number that must never come again.
    pub(super) fn dial_with(key: Key, purpose: Purpose, nonce: [u8; KEY_BYTES]) -> Session {
        let mut session = Session::new(key, nonce, Stage::Dialled { purpose });
        let mark = mark(&key);
        session.outgoing.extend_from_slice(&MAGIC);
        session.outgoing.extend_from_slice(&VERSION.to_le_bytes());
        session.outgoing.push(purpose as u8);
        session.outgoing.extend_from_slice(&mark);
        session.outgoing.extend_from_slice(&session.nonce);
        session
    }

    /// The end that accepts.
    pub(super) fn accept(key: Key, allowed: &'static [Purpose]) -> Result<Session> {
        Ok(Session::accept_with(key, allowed, Key::random()?.0))
    }

    /// The end that accepts, with a number that must never come again.
    pub(super) fn accept_with(key: Key, allowed: &'static [Purpose], nonce: [u8; KEY_BYTES]) -> Session {
        Session::new(key, nonce, Stage::Accepting { allowed })
    }

    fn new(key: Key, nonce: [u8; KEY_BYTES], stage: Stage) -> Session {
        Session { key, nonce, stage, early: Vec::new(), incoming: Vec::new(), outgoing: Vec::new() }
    }

    /// What it is for, once the other end has proved that it belongs here.
    pub(super) fn purpose(&self) -> Option<Purpose> {
        match self.stage {
            Stage::Open { purpose, .. } => Some(purpose),
            _ => None,
        }
    }

    /// How far the other end has come.
    pub(super) fn standing(&self) -> Standing {
        match self.stage {
            Stage::Dialled { .. } | Stage::Accepting { .. } => Standing::Silent,
            Stage::Answered { .. } => Standing::Named,
            Stage::Open { .. } => Standing::Proved,
        }
    }

    /// Says something, as soon as the handshake is over.
    pub(super) fn say(&mut self, message: Message) {
        let Stage::Open { mask, .. } = &self.stage else {
            self.early.push(message);
            return;
        };
        let (kind, payload) = masked(message, mask).encode();
        self.send(kind, &payload);
    }

    /// Puts a frame around a payload; nothing before the handshake is over.
    pub(super) fn send(&mut self, kind: u8, payload: &[u8]) {
        let Stage::Open { send, .. } = &mut self.stage else { return };
        debug_assert!(payload.len() <= MAX_PAYLOAD, "a message longer than a frame");
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[4] = kind;
        let tag = send.key.tag(&[&send.counter.to_le_bytes(), &header, payload]);
        send.counter += 1;
        self.outgoing.extend_from_slice(&header);
        self.outgoing.extend_from_slice(payload);
        self.outgoing.extend_from_slice(&tag);
    }

    /// Bytes to be sent; the caller drains what it could send.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Bytes that were received and are not yet a message.
    pub(super) fn held(&self) -> usize {
        self.incoming.len()
    }

    /// Takes in bytes that were received.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// The next whole message. After an error the conversation is over.
    pub(super) fn hear(&mut self) -> Result<Option<Message>, Broken> {
        self.shake_hands()?;
        let Stage::Open { receive, mask, .. } = &mut self.stage else { return Ok(None) };
        let Some(header) = self.incoming.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [a, b, c, d, kind] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > MAX_PAYLOAD {
            return Err(Broken::Forged("longer than allowed"));
        }
        let end = HEADER_BYTES + len;
        let Some(tag) = self.incoming.get(end..).and_then(|rest| rest.first_chunk::<TAG_BYTES>()) else {
            return Ok(None);
        };
        let payload = &self.incoming[HEADER_BYTES..end];
        if !receive.key.verifies(&[&receive.counter.to_le_bytes(), header, payload], tag) {
            return Err(Broken::Forged("wrong MAC"));
        }
        receive.counter += 1;
        let message = masked(Message::decode(kind, payload)?, mask);
        self.incoming.drain(..end + TAG_BYTES);
        Ok(Some(message))
    }

    /// Goes on with the handshake as far as the bytes that came reach.
    pub(super) fn shake_hands(&mut self) -> Result<(), Broken> {
        while self.purpose().is_none() && self.shake()? {}
        Ok(())
    }

    /// One step of the handshake; false where bytes are missing.
    fn shake(&mut self) -> Result<bool, Broken> {
        if !matches!(self.stage, Stage::Answered { .. }) {
            check_magic(&self.incoming)?;
        }
        match self.stage {
            Stage::Accepting { allowed } => {
                let Some(hello) = self.incoming.first_chunk::<HELLO_BYTES>().copied() else {
                    return Ok(false);
                };
                self.incoming.drain(..HELLO_BYTES);
                self.answer(&hello, allowed)?;
            }
            Stage::Dialled { purpose } => {
                let Some(answer) = self.incoming.first_chunk::<ANSWER_BYTES>().copied() else {
                    return Ok(false);
                };
                self.incoming.drain(..ANSWER_BYTES);
                self.prove(&answer, purpose)?;
            }
            Stage::Answered { purpose, theirs } => {
                let Some(proof) = self.incoming.first_chunk::<TAG_BYTES>().copied() else { return Ok(false) };
                self.incoming.drain(..TAG_BYTES);
                if !self.key.verifies(&[b"dialler", &[purpose as u8], &theirs, &self.nonce], &proof) {
                    return Err(Broken::Forged("wrong proof"));
                }
                let (dialler, acceptor) = (theirs, self.nonce);
                self.open(purpose, &dialler, &acceptor, false);
            }
            Stage::Open { .. } => {}
        }
        Ok(true)
    }

    fn answer(&mut self, hello: &[u8; HELLO_BYTES], allowed: &[Purpose]) -> Result<(), Broken> {
        let (version, rest) = version_of(hello);
        let (purpose, rest) = (rest[0], &rest[1..]);
        let (their_mark, theirs) = rest.split_at(MARK_BYTES);
        let theirs: [u8; KEY_BYTES] = theirs.try_into().expect("the hello ends with a nonce");
        let purpose = allowed.iter().copied().find(|p| *p as u8 == purpose);
        let verdict = match purpose {
            _ if version != VERSION => Err(Broken::Version(version)),
            _ if their_mark != mark(&self.key) => Err(Broken::OtherJob),
            Some(purpose) => Ok(purpose),
            None => Err(Broken::Stranger("purpose")),
        };
        // A refusal is answered too, so that the other end can say why; it proves nothing.
        let status = match &verdict {
            Ok(_) => 0,
            Err(Broken::OtherJob) => 1,
            Err(_) => 2,
        };
        let proof = match &verdict {
            Ok(purpose) => self.key.tag(&[b"acceptor", &[*purpose as u8], &theirs, &self.nonce]),
            Err(_) => [0; TAG_BYTES],
        };
        self.outgoing.extend_from_slice(&MAGIC);
        self.outgoing.extend_from_slice(&VERSION.to_le_bytes());
        self.outgoing.push(status);
        self.outgoing.extend_from_slice(&self.nonce);
        self.outgoing.extend_from_slice(&proof);
        self.stage = Stage::Answered { purpose: verdict?, theirs };
        Ok(())
    }

    fn prove(&mut self, answer: &[u8; ANSWER_BYTES], purpose: Purpose) -> Result<(), Broken> {
        let (version, rest) = version_of(answer);
        let (status, rest) = (rest[0], &rest[1..]);
        let (theirs, proof) = rest.split_at(KEY_BYTES);
        let theirs: [u8; KEY_BYTES] = theirs.try_into().expect("the answer holds a nonce");
        let proof = proof.try_into().expect("the answer ends with a proof");
        match status {
            _ if version != VERSION => return Err(Broken::Version(version)),
            0 => {}
            1 => return Err(Broken::OtherJob),
            _ => return Err(Broken::Stranger("purpose")),
        }
        if !self.key.verifies(&[b"acceptor", &[purpose as u8], &self.nonce, &theirs], proof) {
            return Err(Broken::Forged("wrong proof"));
        }
        let ours = self.key.tag(&[b"dialler", &[purpose as u8], &self.nonce, &theirs]);
        self.outgoing.extend_from_slice(&ours);
        let (dialler, acceptor) = (self.nonce, theirs);
        self.open(purpose, &dialler, &acceptor, true);
        Ok(())
    }

    fn open(&mut self, purpose: Purpose, dialler: &[u8], acceptor: &[u8], dialled: bool) {
        let derive = |what: &[u8]| self.key.derive(&[what, &[purpose as u8], dialler, acceptor]);
        let there = Direction { key: derive(b"dialler speaks"), counter: 0 };
        let back = Direction { key: derive(b"acceptor speaks"), counter: 0 };
        let mask = derive(b"mask");
        let (send, receive) = if dialled { (there, back) } else { (back, there) };
        self.stage = Stage::Open { purpose, send, receive, mask };
        for message in std::mem::take(&mut self.early) {
            self.say(message);
        }
    }
}

/// What a listener may know of a job before anything is proved: a MAC of nothing.
fn mark(key: &Key) -> [u8; MARK_BYTES] {
    *key.tag(&[b"mark"]).first_chunk().expect("a mark is shorter than a tag")
}

/// Turns away other protocols at their first byte, instead of waiting for more.
fn check_magic(bytes: &[u8]) -> Result<(), Broken> {
    let len = bytes.len().min(MAGIC.len());
    if bytes[..len] == MAGIC[..len] { Ok(()) } else { Err(Broken::Stranger("first bytes")) }
}

fn version_of(bytes: &[u8]) -> (u16, &[u8]) {
    let rest = &bytes[MAGIC.len()..];
    (u16::from_le_bytes([rest[0], rest[1]]), &rest[2..])
}

/// Masks or unmasks the session key of a `Welcome`. The mask is used once: a conversation has one.
fn masked(mut message: Message, mask: &Key) -> Message {
    if let Message::Welcome { session, .. } = &mut message {
        session.iter_mut().zip(mask.0).for_each(|(byte, mask)| *byte ^= mask);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(a: &[u8], b: &[u8]) -> (Session, Session) {
        let dial = Session::dial(Key::from_seed(a), Purpose::Tree).unwrap();
        (dial, Session::accept(Key::from_seed(b), &[Purpose::Tree]).unwrap())
    }

    /// Carries what `from` said to `to`, a byte at a time.
    fn carry(from: &mut Session, to: &mut Session) -> Result<Vec<Message>, Broken> {
        let mut heard = Vec::new();
        for byte in std::mem::take(from.outgoing()) {
            to.feed(&[byte]);
            while let Some(message) = to.hear()? {
                heard.push(message);
            }
        }
        Ok(heard)
    }

    fn opened() -> (Session, Session) {
        let (mut a, mut b) = pair(b"k", b"k");
        for _ in 0..2 {
            carry(&mut a, &mut b).unwrap();
            carry(&mut b, &mut a).unwrap();
        }
        assert!(a.purpose().is_some() && b.purpose().is_some());
        (a, b)
    }

    #[test]
    fn messages_arrive_in_order_even_early_ones() {
        let (mut a, mut b) = pair(b"k", b"k");
        a.say(Message::Caller { rank: 3 });
        assert_eq!(carry(&mut a, &mut b), Ok(vec![]));
        carry(&mut b, &mut a).unwrap();
        a.say(Message::Blob(vec![7]));
        assert_eq!(carry(&mut a, &mut b), Ok(vec![Message::Caller { rank: 3 }, Message::Blob(vec![7])]));
    }

    #[test]
    fn another_secret_is_another_job_for_both_ends() {
        let (mut a, mut b) = pair(b"k", b"other");
        assert_eq!(carry(&mut a, &mut b), Err(Broken::OtherJob));
        assert_eq!(carry(&mut b, &mut a), Err(Broken::OtherJob));
    }

    #[test]
    fn replayed_reflected_and_changed_frames_are_refused() {
        let (mut a, mut b) = opened();
        a.say(Message::Blob(vec![7]));
        let frame = a.outgoing().clone();
        for bit in 32..frame.len() * 8 {
            let (mut a, mut b) = opened();
            a.say(Message::Blob(vec![7]));
            a.outgoing()[bit / 8] ^= 1 << (bit % 8);
            assert!(carry(&mut a, &mut b).is_err(), "bit {bit}");
        }
        assert_eq!(carry(&mut a, &mut b), Ok(vec![Message::Blob(vec![7])]));
        b.feed(&frame);
        assert_eq!(b.hear(), Err(Broken::Forged("wrong MAC")));
        a.feed(&frame);
        assert_eq!(a.hear(), Err(Broken::Forged("wrong MAC")));
    }
}

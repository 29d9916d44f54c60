//! What comes in on the bootstrap's port, and the unique id.

use super::id::{Kind, UNIQUE_ID_BYTES, UniqueId};
use super::key::{KEY_BYTES, Key};
use super::session::{Purpose, Session};
use super::wire::{HEADER_BYTES, MAX_PAYLOAD, Member, Message, Refusal};
use crate::fuzzing::Script;

/// A payload is refused, or is what the message in it is written as. The first byte is the kind.
pub fn message(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    if let Ok(message) = Message::decode(*kind, payload) {
        assert_eq!(message.encode(), (*kind, payload.to_vec()), "{message:?}");
    }
}

const ALL: &[Purpose] = &[Purpose::Join, Purpose::Tree, Purpose::Swap];

/// One end of a conversation, and what it has heard and said.
struct End {
    session: Session,
    said: Vec<Message>,
    heard: Vec<Message>,
    over: bool,
}

impl End {
    fn new(session: Session) -> End {
        End { session, said: Vec::new(), heard: Vec::new(), over: false }
    }

    fn feed(&mut self, bytes: &[u8]) {
        if self.over {
            return;
        }
        self.session.feed(bytes);
        loop {
            match self.session.hear() {
                Ok(Some(message)) => self.heard.push(message),
                Ok(None) => break,
                Err(broken) => {
                    assert!(!broken.to_string().is_empty());
                    self.over = true;
                    return;
                }
            }
        }
        let held = self.session.held();
        assert!(held < HEADER_BYTES + MAX_PAYLOAD + 16, "{held} bytes are held");
    }
}

/// Two ends and somebody between them who may do anything but knows no key. Whatever happens, an end hears what the
/// other has said, in order and up to some point, and nothing else.
pub fn session(data: &[u8]) {
    let mut script = Script::new(data);
    let start = script.u8();
    let purpose = ALL[usize::from(start) % ALL.len()];
    let other = if start & 0x80 == 0 { b"key" } else { b"yek" };
    let dialler = Session::dial_with(Key::from_seed(b"key"), purpose, [1; KEY_BYTES]);
    let allowed = if start & 0x40 == 0 { ALL } else { &ALL[..1] };
    let acceptor = Session::accept_with(Key::from_seed(other), allowed, [2; KEY_BYTES]);
    let mut ends = [End::new(dialler), End::new(acceptor)];
    while !script.is_over() {
        let order = script.u8();
        let [one, two] = &mut ends;
        let (from, to) = if order & 1 == 0 { (one, two) } else { (two, one) };
        match order >> 1 & 7 {
            0 => {
                let len = usize::from(script.u16()).min(from.session.outgoing().len());
                let bytes: Vec<u8> = from.session.outgoing().drain(..len).collect();
                to.feed(&bytes);
            }
            1 => {
                let bytes = std::mem::take(from.session.outgoing());
                to.feed(&bytes);
            }
            2 => to.feed(script.piece()),
            3 => {
                // Heard twice.
                let bytes = from.session.outgoing().clone();
                to.feed(&bytes);
            }
            4 => {
                let at = usize::from(script.u16());
                let bit = 1 << (script.u8() % 8);
                if let Some(byte) = from.session.outgoing().get_mut(at) {
                    *byte ^= bit;
                }
            }
            5 => {
                let kind = script.u8();
                if let Ok(message) = Message::decode(kind, script.piece()) {
                    from.session.say(message.clone());
                    from.said.push(message);
                }
            }
            6 => {
                // One who knows the key, and sends what no rank would.
                let (kind, payload) = (script.u8(), script.piece());
                if from.session.purpose().is_some() && Message::decode(kind, payload).is_err() {
                    from.session.send(kind, payload);
                }
            }
            _ => drop(from.session.outgoing().pop()),
        }
        let [one, two] = &ends;
        assert!(two.said.starts_with(&one.heard) && one.said.starts_with(&two.heard));
        if start & 0x80 != 0 || !allowed.contains(&purpose) {
            assert!(one.heard.is_empty() && two.heard.is_empty() && one.session.purpose().is_none());
        }
    }
}

/// Bytes and text are refused, or are an id that comes back the same. Of the first byte, bit 0 means text, bit 1 puts a
/// right checksum in.
pub fn unique_id(data: &[u8]) {
    let mut script = Script::new(data);
    let how = script.u8();
    let rest = script.rest();
    let read = if how & 1 == 1 {
        std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok())
    } else {
        let mut bytes = [0; UNIQUE_ID_BYTES];
        let len = rest.len().min(UNIQUE_ID_BYTES);
        bytes[..len].copy_from_slice(&rest[..len]);
        UniqueId::from_bytes(&if how & 2 == 2 { UniqueId::sealed(bytes) } else { bytes }).ok()
    };
    let Some(id) = read else { return };
    assert_eq!(UniqueId::from_bytes(id.as_bytes()).expect("the same bytes"), id);
    assert_eq!(id.to_string().parse::<UniqueId>().expect("its own text"), id);
    assert!(!id.addresses().is_empty() && !format!("{id:?}").is_empty());
    assert!(id.addresses().iter().all(|address| address.port() != 0), "{id:?}");
}

fn member() -> Member {
    let addresses = ["10.0.0.1:4711", "[fe80::1]:9"].map(|a| a.parse().expect("an address"));
    Member { host: "n0".into(), pid: 7, addresses: addresses.to_vec() }
}

fn messages() -> Vec<(&'static str, Message)> {
    vec![
        ("join", Message::Join { rank: 1, ranks: 4, patience_ms: 60_000, member: member() }),
        ("welcome", Message::Welcome { session: [3; 32], parent: Some(member()) }),
        ("welcome-root", Message::Welcome { session: [3; 32], parent: None }),
        ("absent-at-root", Message::Refusal(Refusal::Absent(vec![2, 3]))),
        ("conflict", Message::Refusal(Refusal::Conflict("two of a kind".into()))),
        ("left", Message::Refusal(Refusal::Left { rank: 1, cause: "gone".into() })),
        ("caller", Message::Caller { rank: 5 }),
        ("goodbye", Message::Blob(vec![7])),
        ("blob", Message::Blob(vec![1, 2, 3])),
    ]
}

pub(crate) fn message_seeds() -> Vec<(String, Vec<u8>)> {
    let bytes = |message: Message| {
        let (kind, payload) = message.encode();
        [&[kind][..], &payload].concat()
    };
    messages().into_iter().map(|(name, message)| (name.to_string(), bytes(message))).collect()
}

pub(crate) fn session_seeds() -> Vec<(String, Vec<u8>)> {
    let say = |order: u8, message: &Message| {
        let (kind, payload) = message.encode();
        [&[order, kind][..], &(payload.len() as u16).to_le_bytes(), &payload].concat()
    };
    // Each end says something early, all bytes are carried three times round, then everything is said.
    let mut good = vec![0];
    good.extend(say(10, &Message::Caller { rank: 1 }));
    good.extend([2, 3, 2, 3]);
    for (_, message) in messages() {
        good.extend(say(10, &message));
        good.extend(say(11, &message));
        good.extend([2, 3]);
    }
    let lie = [&good[..], &say(12, &Message::Blob(vec![7])), &[12, 99, 1, 0, 0, 2]].concat();
    let mut replay = good.clone();
    replay.extend(say(10, &Message::Blob(vec![7])));
    replay.extend([6, 6, 2]);
    let mut changed = good.clone();
    changed.extend(say(10, &Message::Blob(vec![7])));
    changed.extend([8, 5, 0, 3, 2]);
    let other_job = [&[0x80][..], &good[1..]].concat();
    let other_purpose = [&[0x41][..], &good[1..]].concat();
    let all = [
        ("good", good),
        ("lie", lie),
        ("replay", replay),
        ("changed", changed),
        ("other-job", other_job),
        ("other-purpose", other_purpose),
        ("garbage", b"\0\x04\x10\0GET / HTTP/1.1\r\n".to_vec()),
    ];
    all.map(|(name, bytes)| (name.to_string(), bytes)).to_vec()
}

pub(crate) fn unique_id_seeds() -> Vec<(String, Vec<u8>)> {
    let id = |kind| UniqueId::new(Key::from_seed(b"seed"), &member().addresses, kind);
    let text = id(Kind::Given).to_string().into_bytes();
    vec![
        ("given".into(), [&[0][..], id(Kind::Given).as_bytes()].concat()),
        ("meeting".into(), [&[2][..], id(Kind::Meeting).as_bytes()].concat()),
        ("loopback".into(), [&[2][..], id(Kind::MeetingOnLoopback).as_bytes()].concat()),
        ("text".into(), [&[1][..], &text].concat()),
    ]
}

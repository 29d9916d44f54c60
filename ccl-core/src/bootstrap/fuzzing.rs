//! What comes in on the bootstrap's port, and the unique id.

use super::id::{Kind, UNIQUE_ID_BYTES, UniqueId};
use super::key::{KEY_BYTES, Key};
use super::session::{Purpose, Session};
use super::wire::{HEADER_BYTES, MAX_PAYLOAD, Member, Message, Refusal};
use crate::control::{
    self, Action, Agreement, Command, End as Ended, EndKind, Event, Fact, LinkId, Loss, Node, Settings, Vote,
};
use crate::fuzzing::Script;
use crate::plan::Rank;
use std::collections::BTreeSet;
use std::time::Duration;

/// A payload is refused, or is what the message in it is written as. The first byte is the kind.
pub fn message(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    if let Ok(message) = Message::decode(*kind, payload) {
        assert_eq!(message.encode(), (*kind, payload.to_vec()), "{message:?}");
    }
}

const ALL: &[Purpose] = &[Purpose::Join, Purpose::Tree, Purpose::Swap, Purpose::Stream];

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

/// A control node that hears and sees anything, and whose own rank wants anything. Ranks that it speaks of exist, it says
/// each loss and the end once, and nothing that is too long for a frame.
pub fn node(data: &[u8]) {
    let mut script = Script::new(data);
    let ranks = u32::from(script.u8() % 64) + 1;
    let rank = u32::from(script.u8()) % ranks;
    let freeze = script.u8();
    let freeze = (freeze > 0).then(|| Duration::from_millis(u64::from(freeze) * 20));
    let settings = Settings { rank, ranks, freeze, inquest: Duration::from_secs(1) };
    let mut now = Duration::ZERO;
    let mut node = Node::new(settings, now);
    let mut gone = BTreeSet::new();
    let mut ended = false;
    while !script.is_over() {
        let event = event(&mut script, ranks, &mut now);
        node.handle(now, event);
        let actions: Vec<Action> = node.actions().collect();
        for action in actions {
            match action {
                Action::Send { message, .. } => {
                    let (_, payload) = Message::Control(message).encode();
                    assert!(payload.len() <= MAX_PAYLOAD, "a message of {} bytes", payload.len());
                }
                Action::Dial(peer) => assert!(peer < ranks && peer != rank),
                Action::Lost(Loss { rank: peer, .. }) | Action::Left(peer) => {
                    assert!(peer < ranks && peer != rank && gone.insert(peer), "rank {peer} of {ranks}");
                }
                Action::Ended(end) => assert!(!std::mem::replace(&mut ended, true) && end.by < ranks),
                Action::Gathered(Ok(all)) => assert_eq!(all.len(), ranks as usize),
                Action::Gathered(Err(failed)) => assert!(failed.absent.iter().all(|absent| *absent < ranks)),
                Action::Judge { by, states, .. } => {
                    assert!(by < ranks && states.iter().all(|(of, _)| *of < ranks));
                }
                Action::Close(_) | Action::Agreed(_) | Action::Excluded { .. } | Action::Report { .. } => {}
                Action::Unagreed { absent } => assert!(absent.iter().all(|absent| *absent < ranks)),
            }
        }
        assert!(node.wake().is_none_or(|wake| wake <= now + Duration::from_secs(1)), "it sleeps for ever");
        let known = 64 * data.len() + 4096 + 512 * ranks as usize;
        assert!(format!("{node:?}").len() <= 8 * known, "it keeps more than it was told");
    }
}

fn event(script: &mut Script<'_>, ranks: u32, now: &mut Duration) -> Event {
    let order = script.u8();
    let link = LinkId::from(order >> 4);
    match order & 15 {
        0 => Event::Up { link, peer: u32::from(script.u8()) },
        1..6 => match Message::decode(7, script.piece()) {
            Ok(Message::Control(message)) => Event::Heard { link, message },
            _ => Event::Tick,
        },
        6 => Event::Down { link, cause: "closed".into(), state: script.piece().to_vec() },
        7 => Event::Unreached { peer: u32::from(script.u8()), cause: "x".into(), refused: order & 16 == 0 },
        8 => {
            *now += Duration::from_millis(u64::from(script.u16()));
            Event::Tick
        }
        9 => {
            let deadline = *now + Duration::from_millis(u64::from(script.u16()));
            Event::Command(Command::Gather { bytes: script.piece().to_vec(), deadline })
        }
        10 => Event::Command(Command::Agree { flags: script.u64(), blob: script.piece().to_vec() }),
        11 => Event::Command(Command::GiveUp),
        12 => Event::Command(Command::Exclude { ranks: vec![script.u32() % (2 * ranks)], cause: "x".into() }),
        13 => Event::Command(Command::Inquire { reason: script.piece().to_vec() }),
        14 => Event::Command(Command::Report { inquest: script.u64(), state: script.piece().to_vec() }),
        _ => match order >> 4 {
            0 => Event::Command(Command::Leave),
            1 => Event::Command(Command::State(script.piece().to_vec())),
            _ => Event::Command(Command::End(Ended { by: 0, kind: EndKind::Failed, text: "x".into() })),
        },
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
    [
        ("join", Message::Join { rank: 1, ranks: 4, patience_ms: 60_000, member: member() }),
        ("welcome", Message::Welcome { session: [3; 32], parent: Some(member()) }),
        ("welcome-root", Message::Welcome { session: [3; 32], parent: None }),
        ("absent-at-root", Message::Refusal(Refusal::Absent(vec![2, 3]))),
        ("conflict", Message::Refusal(Refusal::Conflict("two of a kind".into()))),
        ("left", Message::Refusal(Refusal::Left { rank: 1, cause: "gone".into() })),
        ("caller", Message::Caller { rank: 5 }),
        ("stream", Message::Stream { rank: 5, index: 1 }),
        ("blob", Message::Blob(vec![1, 2, 3])),
    ]
    .into_iter()
    .chain(control_messages().into_iter().map(|(name, message)| (name, Message::Control(message))))
    .collect()
}

fn control_messages() -> Vec<(&'static str, control::Message)> {
    use control::Message;
    let agreement = || Agreement { flags: 5, blob: vec![1], gone: vec![2] };
    let vote = |decided| Vote { rank: 1, head: 0, flags: 7, blob: vec![9], decided };
    let entries = |ranks: std::ops::Range<Rank>| ranks.map(|rank| (rank, vec![rank as u8])).collect();
    let ended = |kind| Message::Fact(Fact::Ended(Ended { by: 1, kind, text: "why".into() }));
    vec![
        ("ping", Message::Ping { state: vec![1, 2] }),
        ("lost", Message::Fact(Fact::Lost(Loss { rank: 1, cause: "gone".into(), state: vec![3] }))),
        ("left-it", Message::Fact(Fact::Left(2))),
        ("aborted", ended(EndKind::Aborted)),
        ("revoked", ended(EndKind::Revoked)),
        ("judged", ended(EndKind::Verdict)),
        ("up", Message::GatherUp { round: 0, entries: entries(1..4) }),
        ("down", Message::GatherDown { round: 0, entries: entries(0..4) }),
        ("gather-failed", Message::GatherFailed { round: 0, absent: vec![3] }),
        ("vote", Message::Vote { number: 0, vote: vote(None) }),
        ("vote-decided", Message::Vote { number: 0, vote: vote(Some(agreement())) }),
        ("decision", Message::Decision { number: 0, head: 0, agreement: agreement() }),
        ("inquire", Message::Inquire { by: 3, reason: vec![4] }),
        ("question", Message::Question { inquest: 0 }),
        ("answers", Message::Answers { inquest: 0, entries: entries(1..4) }),
    ]
}

/// A node of four ranks, connected to the others, that wants everything and hears everything.
pub(crate) fn node_seeds() -> Vec<(String, Vec<u8>)> {
    let heard = |link: u8, message: &control::Message| {
        let (_, payload) = Message::Control(message.clone()).encode();
        [&[link << 4 | 1][..], &(payload.len() as u16).to_le_bytes(), &payload].concat()
    };
    let mut seeds = Vec::new();
    for rank in 0..3 {
        let mut start = vec![3, rank, 50];
        for peer in (0..4).filter(|peer| *peer != rank) {
            start.extend([peer << 4, peer]);
        }
        let mut all = start.clone();
        all.extend([9, 100, 0, 1, 0, 7, 10, 255, 0, 0, 0, 0, 0, 0, 0, 1, 0, 9, 13, 1, 0, 3]);
        for (name, message) in control_messages() {
            all.extend(heard(1, &message));
            all.extend([8, 10, 0]);
            seeds.push((format!("{name}-at-{rank}"), [&start[..], &heard(1, &message), &[8, 0, 4]].concat()));
        }
        // A connection closes, a dial is refused twice, time passes, the rank leaves.
        all.extend([0x36, 0, 0, 7, 3, 8, 255, 0, 7, 3, 8, 255, 255, 11, 15]);
        seeds.push((format!("all-at-{rank}"), all));
    }
    seeds
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
    let lie = [&good[..], &say(12, &Message::Caller { rank: 2 }), &[12, 99, 1, 0, 0, 2]].concat();
    let mut replay = good.clone();
    replay.extend(say(10, &Message::Caller { rank: 2 }));
    replay.extend([6, 6, 2]);
    let mut changed = good.clone();
    changed.extend(say(10, &Message::Caller { rank: 2 }));
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

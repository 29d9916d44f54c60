//! What ranks say of themselves: the states that an inquest collects, and the memory of another process.

use super::about::vocabulary;
use super::memory::Line;
use super::{
    About, CallState, End, Identity, KernelState, Memory, Progress, RankState, Reason, Recorder, Verdict,
    View,
};
use super::{WaitFor, WaitState, judge, lines_for};
use crate::engine::{Wait, WaitOn};
use crate::fuzzing::Script;
use crate::plan::Rank;
use crate::{Collective, DataType, ReduceOp};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// A state is read or refused, can be shown, and comes back the same from what is written of it.
pub fn flight(data: &[u8]) {
    let Some(state) = RankState::from_bytes(data) else { return };
    for call in state.running.iter().chain(&state.last) {
        assert!(!call.to_string().is_empty());
    }
    assert_eq!(RankState::from_bytes(&state.to_bytes()), Some(state));
}

/// Whatever ranks say of themselves, somebody is blamed who exists, in words that fit a message. The first byte is how many
/// ranks there are; then comes the reason; then, for each rank that was asked, its number and what it said.
pub fn verdict(data: &[u8]) {
    let mut script = Script::new(data);
    let ranks = u32::from(script.u8() % 32) + 1;
    let reason = Reason::from_bytes(script.piece()).unwrap_or(Reason::Asked);
    let mut states: BTreeMap<Rank, Option<RankState>> = BTreeMap::new();
    while !script.is_over() {
        let rank = u32::from(script.u8()) % ranks;
        states.insert(rank, RankState::from_bytes(script.piece()));
    }
    let states: Vec<_> = states.into_iter().collect();
    let verdict = judge(ranks, &reason, &states);
    assert!(!verdict.text.is_empty());
    assert!(verdict.culprits.iter().all(|culprit| *culprit < ranks), "{verdict:?}");
    assert!(verdict.culprits.is_sorted_by(|a, b| a < b), "{verdict:?}");
    let text = serde_json::to_string(&verdict).expect("a verdict serialises");
    assert!(text.len() <= 32 * 1024, "a verdict of {} bytes", text.len());
    assert_eq!(serde_json::from_str::<Verdict>(&text).ok(), Some(verdict));
}

pub(crate) fn verdict_seeds() -> Vec<(String, Vec<u8>)> {
    let call = |sequence: u64, fingerprint: u64| CallState {
        sequence,
        name: "all_reduce".into(),
        count: 64,
        dtype: "f32".into(),
        fingerprint,
        started_ns: Some(5),
        ..CallState::default()
    };
    let waits = |rank: Rank, call: CallState, on: Rank| RankState {
        rank,
        ranks: 3,
        host: format!("n{rank}"),
        now_ns: 1_000_000_000,
        calls: call.sequence + 1,
        earlier: vec![call.clone()],
        transfers: vec![CallState { name: "send".into(), peer: Some(3), ..call.clone() }],
        running: vec![call],
        waits: vec![WaitState { peers: vec![on], ..wait() }],
        ..RankState::default()
    };
    let idle = |rank: Rank| RankState {
        rank,
        ranks: 3,
        calls: 1,
        last: Some(call(0, 1)),
        now_ns: 1_000_000_000,
        ..RankState::default()
    };
    let seed = |name: &str, reason: Reason, states: &[Option<RankState>]| {
        let mut bytes = vec![2];
        let mut piece = |start: &[u8], piece: &[u8]| {
            bytes.extend([start, &(piece.len() as u16).to_le_bytes(), piece].concat());
        };
        piece(&[], &reason.to_bytes());
        for (rank, state) in (0..).zip(states) {
            piece(&[rank], &state.as_ref().map(RankState::to_bytes).unwrap_or_default());
        }
        (name.to_string(), bytes)
    };
    let late = Reason::Timeout { by: 0, waited: std::time::Duration::from_secs(3) };
    let three = |a, b, c| [Some(a), Some(b), Some(c)];
    vec![
        seed("absent", late, &three(waits(0, call(1, 1), 2), waits(1, call(1, 1), 2), idle(2))),
        seed("silent", late, &[Some(waits(0, call(1, 1), 2)), Some(waits(1, call(1, 1), 2)), None]),
        seed("other-call", late, &three(waits(0, call(1, 1), 2), waits(1, call(1, 2), 2), idle(2))),
        seed(
            "circle",
            late,
            &three(waits(0, call(1, 1), 1), waits(1, call(1, 1), 2), waits(2, call(1, 1), 0)),
        ),
        seed("mismatch", Reason::Mismatch { by: 0, peer: 1 }, &three(idle(0), idle(1), idle(2))),
        seed("nothing", Reason::Asked, &[None, None, None]),
    ]
}

/// A record is read or refused, whatever is in the memory, and the state that is read can be told to others.
pub fn record(data: &[u8]) {
    let words = data.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let mut words: Vec<u64> = words.collect();
    // Depends on all names of the library: inputs would not outlive the next algorithm.
    if let Some(word) = words.get_mut(1) {
        *word = vocabulary();
    }
    let lines: Vec<Line> = words.chunks(Line::WORDS).map(line).collect();
    let Some(view) = View::open(&lines) else { return };
    assert!(view.who().rank < view.who().ranks);
    for recorded in view.calls() {
        assert!(!recorded.call.to_string().is_empty());
    }
    let state = view.state(1);
    let bytes = state.to_bytes();
    assert!(bytes.len() <= 32 * 1024, "a state of {} bytes", bytes.len());
    assert_eq!(RankState::from_bytes(&bytes), Some(state));
}

fn line(words: &[u64]) -> Line {
    let line = Line::default();
    for (at, word) in line.0.iter().zip(words) {
        at.store(*word, Ordering::Relaxed);
    }
    line
}

fn wait() -> WaitState {
    WaitState { lane: 0, mv: 3, tile: 9, on: WaitFor::Credit, peers: vec![1, 2], channel: 1, since_ns: 77 }
}

pub(crate) fn record_seeds() -> Vec<(String, Vec<u8>)> {
    let who = Identity { communicator: 5, rank: 2, ranks: 8, host: "n0".into(), pid: 4711 };
    let seed = |name: &str, fill: &dyn Fn(&Recorder)| {
        let recorder = Recorder::new(Memory::heap(lines_for(4)), &who, 4);
        fill(&recorder);
        let words = recorder.lines().iter().flat_map(|line| &line.0);
        (name.into(), words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect())
    };
    let about =
        || About::collective((Collective::AllReduce, 0), (7, DataType::F64, ReduceOp::Max), "ring", 56, 9);
    vec![
        seed("empty", &|_| {}),
        seed("busy", &|recorder| {
            for sequence in 0..6 {
                let entry = recorder.begin(&about(), sequence, Some(1));
                recorder.end(entry, || 2);
            }
            assert!(recorder.is_stamped(recorder.begin(&about(), 6, Some(3))));
            let on = WaitOn::Credit { peers: &[1, 2], channel: 1 };
            let waits = [Wait { lane: 0, mv: 3, tile: 9, on }; 2];
            recorder.wait(4, Progress { done: 1, total: 9 }, waits);
            let entry = recorder.begin(&About::transfer(End::Send, 5, 10, DataType::F32, 1), 0, None);
            assert!(!recorder.is_stamped(entry));
            recorder.broken("the communicator was aborted", 6);
        }),
    ]
}

pub(crate) fn flight_seeds() -> Vec<(String, Vec<u8>)> {
    let call = CallState {
        sequence: 91,
        name: "all_reduce".into(),
        count: 4096,
        dtype: "f32".into(),
        op: Some("sum".into()),
        algorithm: "ring".into(),
        bytes: 16384,
        fingerprint: 7,
        started_ns: Some(5),
        ..CallState::default()
    };
    let busy = RankState {
        communicator: 1,
        rank: 2,
        ranks: 8,
        host: "n0".into(),
        pid: 4711,
        now_ns: 1_000_000,
        calls: 92,
        last: Some(CallState { sequence: 90, root: Some(1), peer: Some(0), ..call.clone() }),
        earlier: vec![call.clone()],
        transfers: vec![CallState { name: "send".into(), peer: Some(3), ..call.clone() }],
        kernels: Some(KernelState {
            calls: 3,
            running: Some(call.clone()),
            last: Some(call.clone()),
            transfers: vec![call.clone()],
            ended: vec![call.clone()],
            awaited: vec![1],
            mapped: 1,
            multicast: "off".into(),
        }),
        running: vec![call],
        waits: vec![wait()],
        progress: Some(Progress { done: 2, total: 7 }),
        broken: Some("aborted".into()),
    };
    vec![("idle".into(), RankState::default().to_bytes()), ("busy".into(), busy.to_bytes())]
}

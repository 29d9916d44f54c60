//! The record as its writer writes and others read it.

use super::*;
use crate::engine::{self, WaitOn};
use crate::{Collective, DataType, ReduceOp};
use std::sync::atomic::{AtomicBool, Ordering};

fn who() -> Identity {
    Identity { communicator: 77, rank: 2, ranks: 8, host: "node7".into(), pid: 4711 }
}

fn recorder(calls: usize) -> Recorder {
    Recorder::new(Memory::heap(lines_for(calls)), &who(), calls)
}

/// The clock of calls that have no stamps.
fn unasked() -> u64 {
    unreachable!("nobody should look at the clock")
}

/// Records these waits.
fn tell(record: &Recorder, since_ns: u64, progress: Progress, waits: &[WaitState]) {
    record.wait(since_ns, progress, waits.iter().map(as_wait));
}

fn as_wait(wait: &WaitState) -> engine::Wait<'_> {
    let on = match wait.on {
        WaitFor::Piece => WaitOn::Piece { peer: &wait.peers[0], channel: wait.channel },
        WaitFor::Credit => WaitOn::Credit { peers: &wait.peers, channel: wait.channel },
    };
    engine::Wait { lane: wait.lane as usize, mv: wait.mv as usize, tile: wait.tile as usize, on }
}

fn about(count: usize) -> About {
    let call = (Collective::AllReduce, 0);
    About::collective(call, (count, DataType::F32, ReduceOp::Sum), "ring", 4 * count, count as u64)
}

#[test]
fn a_line_is_a_cache_line() {
    assert_eq!((size_of::<Line>(), align_of::<Line>()), (Line::BYTES, Line::BYTES));
}

#[test]
fn calls_are_seen_running_then_last_with_the_stamps_they_were_given() {
    let record = recorder(8);
    assert_eq!(record.state(5).calls, 0);
    let first = record.begin(&about(1), 0, None);
    assert!(!record.is_stamped(first));
    record.end(first, unasked);
    let second = record.begin(&about(100), 1, Some(1000));
    assert!(record.is_stamped(second));
    let state = record.state(1500);
    assert_eq!((state.communicator, state.rank, state.ranks, state.pid), (77, 2, 8, 4711));
    assert_eq!((state.host.as_str(), state.now_ns, state.calls), ("node7", 1500, 2));
    assert_eq!(state.running[0].to_string(), "all_reduce #1 (100 x float, sum, ring)");
    assert_eq!((state.running[0].started_ns, state.running[0].bytes), (Some(1000), 400));
    let last = state.last.expect("one ended");
    assert_eq!((last.sequence, last.count, last.started_ns, last.ended_ns), (0, 1, None, None));
    record.end(second, || 2000);
    let state = record.state(2500);
    assert!(state.running.is_empty());
    assert_eq!(state.last.expect("one ended").ended_ns, Some(2000));
    let third = record.begin(&about(3), 2, None);
    record.stamp(third, 3000);
    record.stamp(third, 4000);
    record.broken("a test", 5000);
    record.end(third, || 6000);
    let calls = record.calls();
    assert_eq!(
        calls.iter().map(|c| c.status).collect::<Vec<_>>(),
        [Status::Done, Status::Done, Status::Failed]
    );
    assert_eq!((calls[2].call.started_ns, calls[2].call.ended_ns), (Some(3000), Some(5000)));
}

#[test]
fn who_looks_now_and_then_knows_since_when_a_rank_is_idle() {
    let record = recorder(4);
    let first = record.begin(&about(1), 0, None);
    assert_eq!(record.state(100).last, None);
    record.end(first, unasked);
    let ended = |now| record.state(now).last.expect("one ended").ended_ns;
    assert_eq!((ended(200), ended(300)), (Some(200), Some(200)));
    let second = record.begin(&about(1), 1, None);
    assert_eq!(ended(400), Some(200), "the first one is still the last that ended");
    record.end(second, unasked);
    assert_eq!((ended(500), ended(600)), (Some(500), Some(500)));
    let third = record.begin(&about(1), 2, Some(650));
    record.end(third, || 660);
    assert_eq!(ended(700), Some(660), "a stamp is better");
}

#[test]
fn the_ring_keeps_the_newest_and_an_entry_that_was_taken_stays_as_it_is() {
    let record = recorder(4);
    let old = record.begin(&about(0), 0, None);
    for sequence in 1..7 {
        let entry = record.begin(&about(sequence as usize), sequence, None);
        record.end(entry, unasked);
    }
    record.end(old, || 1);
    record.stamp(old, 1);
    let calls = record.calls();
    assert_eq!(calls.iter().map(|c| c.call.sequence).collect::<Vec<_>>(), [3, 4, 5, 6]);
    assert!(calls.iter().all(|c| c.call.started_ns.is_none() && c.call.ended_ns.is_none()));
}

#[test]
fn a_call_that_is_withdrawn_was_none() {
    let record = recorder(4);
    let first = record.begin(&about(1), 0, Some(1));
    assert_eq!(record.state(2).running.len(), 1);
    record.withdraw(first);
    assert_eq!((record.state(2).calls, record.calls()), (0, vec![]));
    let again = record.begin(&about(1), 0, None);
    record.withdraw(record.begin(&About::transfer(End::Send, 1, 1, DataType::U8, 0), 0, None));
    record.end(again, unasked);
    assert_eq!((record.state(2).calls, record.calls().len()), (1, 1));
}

#[test]
fn transfers_push_no_collective_out() {
    let record = recorder(4);
    let done = record.begin(&about(1), 41, None);
    record.end(done, unasked);
    for sequence in 0..9 {
        let sends = About::transfer(End::Send, 5, 10, DataType::F32, 1);
        let entry = record.begin(&sends, sequence, None);
        if sequence < 8 {
            record.end(entry, unasked);
        }
    }
    let state = record.state(0);
    assert_eq!((state.calls, state.last.expect("one ended").sequence), (42, 41));
    assert_eq!(state.running.len(), 1);
    assert_eq!(
        (state.running[0].name.as_str(), state.running[0].peer, state.running[0].sequence),
        ("send", Some(5), 8)
    );
}

#[test]
fn waits_are_there_from_the_park_to_the_next_move() {
    let record = recorder(8);
    let wait = |lane: u32, peers: &[u32]| WaitState {
        lane,
        mv: 3,
        tile: 17,
        on: WaitFor::Credit,
        peers: peers.to_vec(),
        channel: 1,
        since_ns: 9,
    };
    let progress = Progress { done: 5, total: 20 };
    let entry = record.begin(&about(1), 0, None);
    let waits = [wait(0, &[1, 3, 7]), wait(1, &[]), wait(2, &[0, 1, 3, 4, 5, 6, 7, 0, 1])];
    tell(&record, 9, progress, &waits);
    let state = record.state(10);
    assert_eq!(state.waits[..2], [wait(0, &[1, 3, 7]), wait(1, &[])]);
    assert_eq!(state.waits[2].peers, [0, 1, 3, 4, 5, 6, 7, 0], "as many as a line holds");
    assert_eq!(state.progress, Some(progress));
    tell(&record, 10, progress, &Vec::from_iter((0..100).map(|lane| wait(lane, &[1]))));
    assert_eq!(record.state(11).waits.len(), 16);
    record.moved();
    let state = record.state(12);
    assert_eq!((state.waits, state.progress), (vec![], None));
    tell(&record, 13, progress, &[wait(0, &[1])]);
    record.end(entry, unasked);
    assert_eq!(record.state(14).waits, [], "nothing runs");
}

#[test]
fn the_first_reason_stays_and_is_cut_where_a_letter_ends() {
    let record = recorder(4);
    assert_eq!(record.state(0).broken, None);
    let long = "é".repeat(200);
    record.broken(&long, 1);
    record.broken("later", 2);
    let kept = record.state(0).broken.expect("broken");
    assert!(long.starts_with(&kept) && kept.len() == 248, "{}", kept.len());
}

#[test]
fn a_state_is_small_enough_for_a_message_and_comes_back() {
    let record = recorder(256);
    record.broken(&"\"".repeat(1000), 1);
    for sequence in 0..300 {
        let sends = About::transfer(End::Send, 5, usize::MAX, DataType::F32, u64::MAX);
        let _ = record.begin(&sends, sequence, Some(u64::MAX));
    }
    let wait = |lane| WaitState {
        lane: u32::MAX - lane,
        mv: u32::MAX,
        tile: u64::MAX,
        on: WaitFor::Credit,
        peers: vec![7; 20],
        channel: u16::MAX,
        since_ns: u64::MAX,
    };
    tell(&record, 1, Progress { done: 1, total: u64::MAX }, &Vec::from_iter((0..100).map(wait)));
    let state = record.state(u64::MAX);
    let bytes = state.to_bytes();
    assert!(bytes.len() < 8 << 10, "{} bytes", bytes.len());
    assert_eq!(RankState::from_bytes(&bytes), Some(state));
}

#[test]
fn memory_of_any_length_makes_a_record() {
    for lines in [0, 1, 22, 30, 31, 40, lines_for(256)] {
        let record = Recorder::new(Memory::heap(lines), &who(), 256);
        for sequence in 0..600 {
            let entry = record.begin(&about(1), sequence, None);
            record.end(entry, unasked);
        }
        assert_eq!(record.state(0).calls, 600, "{lines} lines");
    }
}

#[test]
fn a_record_that_is_dropped_is_no_record_and_its_memory_goes_back() {
    let lines: &'static [Line] = Box::leak((0..lines_for(4)).map(|_| Line::default()).collect());
    let back = std::sync::Arc::new(());
    let record = Recorder::new(Memory::lent(lines, back.clone()), &who(), 4);
    assert!(record.is_shared());
    assert_eq!(View::open(lines).expect("a record").who(), &who());
    drop(record);
    assert!(View::open(lines).is_none());
    assert_eq!(std::sync::Arc::strong_count(&back), 1);
}

#[test]
fn who_reads_while_it_is_written_sees_whole_calls() {
    let record = recorder(4);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) || seen == 0 {
                for Recorded { call, .. } in record.calls() {
                    let count = call.sequence % 1000;
                    assert_eq!((call.count, call.bytes, call.fingerprint), (count, 4 * count, count));
                    assert!([None, Some(call.sequence + 1)].contains(&call.started_ns));
                    seen += 1;
                }
                for wait in record.state(0).waits {
                    assert_eq!((wait.lane, u64::from(wait.mv)), (wait.tile as u32, wait.since_ns));
                }
            }
            seen
        };
        let reader = scope.spawn(reader);
        for sequence in 0..200_000_u64 {
            let stamp = sequence.is_multiple_of(2).then_some(sequence + 1);
            let entry = record.begin(&about((sequence % 1000) as usize), sequence, stamp);
            if sequence.is_multiple_of(16) {
                let n = sequence as u32;
                let wait = |lane| WaitState {
                    lane,
                    mv: n,
                    tile: lane.into(),
                    on: WaitFor::Piece,
                    peers: vec![1],
                    channel: 0,
                    since_ns: n.into(),
                };
                tell(&record, n.into(), Progress { done: 0, total: 1 }, &Vec::from_iter((0..3).map(wait)));
            }
            record.end(entry, || sequence + 2);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("no torn call") > 0);
    });
}

proptest::proptest! {
    #[test]
    fn garbage_is_read_as_something_or_nothing(seed: [u64; 32], calls in 0_u64..20, keep_head: bool) {
        let lines: Vec<Line> = (0..lines_for(8)).map(|_| Line::default()).collect();
        for (at, word) in lines.iter().flat_map(|line| &line.0).enumerate() {
            let mixed = seed[at % 32].rotate_left(at as u32 / 32);
            word.store(if at % 3 == 0 { mixed & 0xff } else { mixed }, Ordering::Relaxed);
        }
        if keep_head {
            let good = recorder(8);
            let head = &good.lines()[0];
            for (to, from) in lines[0].0.iter().zip(&head.0) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            lines[0].0[4].store(calls << 32, Ordering::Relaxed);
        }
        if let Some(view) = View::open(&lines) {
            let state = view.state(0);
            proptest::prop_assert!(state.rank < state.ranks);
            proptest::prop_assert!(state.waits.iter().all(|wait| wait.peers.iter().all(|p| *p < state.ranks)));
            proptest::prop_assert!(view.calls().len() <= 16);
            let _ = RankState::from_bytes(&state.to_bytes());
        }
    }
}

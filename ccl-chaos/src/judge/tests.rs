//! The judge itself: what it must let pass, and what it must not.

use super::*;
use crate::trial::Trial;
use Class::*;

const SECOND: u64 = 1_000_000_000;

/// A trial of four ranks in which rank 2 is killed at 10 s, and what should come of it.
fn killed() -> (Trial, Record) {
    let trial = Trial {
        ranks: 4,
        culprits: vec![2],
        aftermath: vec![Aftermath::Destroy; 4],
        ..Trial::draw(1, 1, Some(Kind::KillInCall))
    };
    let rank = |rank: u32| {
        let joined = Event::Joined { at: SECOND };
        let pid = 100 + rank;
        if rank == 2 {
            let events = vec![joined, Event::Fault { at: 10 * SECOND }];
            return RankRecord { pid, events, end: End::Signal(SIGKILL), ..RankRecord::default() };
        }
        let failure = Failure {
            stage: Stage::Step(3),
            began: 9 * SECOND,
            at: 10 * SECOND + SECOND / 100,
            case: Case::PeerLost,
            accused: vec![2],
            text: "rank 2 (process 102 on vm) is lost: the connection was closed".into(),
        };
        let events = vec![joined, Event::Failed(failure), Event::Destroyed { took_ms: 3 }, Event::End];
        RankRecord { pid, events, ..RankRecord::default() }
    };
    let record = Record { ranks: (0..4).map(rank).collect(), ..Record::default() };
    (trial, record)
}

/// A trial of a slow rank that went well.
fn slow() -> (Trial, Record) {
    let trial = Trial { ranks: 3, culprits: vec![1], ..Trial::draw(1, 1, Some(Kind::Slow)) };
    let events = vec![Event::Joined { at: SECOND }, Event::Done, Event::Destroyed { took_ms: 1 }, Event::End];
    let ranks = vec![RankRecord { events, ..RankRecord::default() }; 3];
    (trial, Record { ranks, ..Record::default() })
}

fn failure(record: &mut Record, rank: usize) -> &mut Failure {
    let events = record.ranks[rank].events.iter_mut();
    let mut failures = events.filter_map(|event| match event {
        Event::Failed(failure) => Some(failure),
        _ => None,
    });
    failures.next().expect("it has one")
}

/// The classes of what is complained about.
fn classes((trial, record): &(Trial, Record)) -> Vec<Class> {
    judge(trial, record, AT_ONCE).complaints.into_iter().map(|complaint| complaint.class).collect()
}

/// What the judge says after a change of a good outcome.
fn planted(good: fn() -> (Trial, Record), change: impl FnOnce(&mut Trial, &mut Record)) -> Vec<Class> {
    let (mut trial, mut record) = good();
    change(&mut trial, &mut record);
    classes(&(trial, record))
}

#[test]
fn good_outcomes_pass_and_are_timed() {
    assert_eq!(classes(&killed()), []);
    assert_eq!(classes(&slow()), []);
    let (trial, record) = killed();
    assert_eq!(judge(&trial, &record, AT_ONCE).delays, [Duration::from_millis(10); 3]);
}

#[test]
fn a_hang_is_found() {
    let hang = |_: &mut Trial, record: &mut Record| record.ranks[3].end = End::Hung("asleep".into());
    assert_eq!(planted(killed, hang), [Hang]);
    // Also of the culprit, and where no error is due.
    assert_eq!(planted(killed, |_, record| record.ranks[2].end = End::Hung("stopped".into())), [Hang]);
    assert_eq!(planted(slow, hang_of_first), [Hang]);
    fn hang_of_first(_: &mut Trial, record: &mut Record) {
        record.ranks[0].end = End::Hung("asleep".into());
    }
}

#[test]
fn a_wrong_result_is_found() {
    let wrong = |_: &mut Trial, record: &mut Record| {
        record.ranks[0].events.push(Event::Wrong { what: "byte 3".into() });
    };
    assert_eq!(planted(slow, wrong), [Wrong]);
    assert_eq!(planted(killed, wrong), [Wrong]);
}

#[test]
fn a_false_accusation_is_found() {
    assert_eq!(planted(killed, |_, record| failure(record, 0).accused = vec![1]), [FalseAccusation]);
    // Nobody is dead before his time.
    assert_eq!(planted(killed, |_, record| failure(record, 0).at = 10 * SECOND - 1), [FalseAccusation]);
    // The true one beside another is no better.
    assert_eq!(planted(killed, |_, record| failure(record, 0).accused = vec![1, 2]), [FalseAccusation]);
}

#[test]
fn a_rank_that_has_ended_its_process_may_be_named_from_then_on() {
    let exits = |at: u64| {
        move |_: &mut Trial, record: &mut Record| {
            record.ranks[1].events.retain(|event| !matches!(event, Event::Destroyed { .. } | Event::End));
            record.ranks[1].events.push(Event::Exiting { at });
            let failure = failure(record, 3);
            (failure.accused, failure.text) = (vec![1], "rank 1 (process 101 on vm) is lost".into());
        }
    };
    assert_eq!(planted(killed, exits(10 * SECOND + 1)), []);
    assert_eq!(planted(killed, exits(11 * SECOND)), [FalseAccusation]);
}

#[test]
fn in_a_split_processes_are_named() {
    let says = |pid: u32| {
        move |_: &mut Trial, record: &mut Record| {
            let failure = failure(record, 0);
            (failure.stage, failure.accused) = (Stage::Split(Some(1)), vec![0]);
            failure.text = format!("rank 0 (process {pid} on vm) is lost");
            // Before the others, who may leave the split when they have theirs.
            failure.at -= SECOND / 1000;
        }
    };
    assert_eq!(planted(killed, says(102)), []);
    assert_eq!(planted(killed, says(101)), [FalseAccusation]);
}

/// Rank 2 dies and the others shrink; then rank 1 dies, of which rank 3 learns while it makes a part, and leaves that.
#[test]
fn who_leaves_a_part_for_an_error_of_the_whole_may_break_it() {
    let parting = |stage: Stage| {
        move |trial: &mut Trial, record: &mut Record| {
            *trial = Trial {
                ranks: 4,
                culprits: vec![2, 1],
                aftermath: vec![Aftermath::Shrink; 4],
                ..Trial::draw(1, 1, Some(Kind::KillInShrink))
            };
            let shrunk = |at, world: &[Rank]| Event::Shrunk { at, took_ms: 5, world: world.to_vec() };
            let events = &mut record.ranks[1].events;
            events.retain(|event| !matches!(event, Event::Destroyed { .. } | Event::End));
            events.extend([shrunk(11 * SECOND, &[0, 1, 3]), Event::Fault { at: 12 * SECOND }]);
            record.ranks[1].end = End::Signal(SIGKILL);
            let lost = "rank 1 (process 101 on vm) is lost";
            // The one that leaves says so last.
            let at = 12 * SECOND + SECOND / 100;
            let broken = (Case::Broke, 3, at, format!("rank 3 has broken the communicator: {lost}"));
            let own = (Case::PeerLost, 1, at + 1, lost.to_string());
            for (rank, (case, accused, at, text)) in [(0, broken), (3, own)] {
                let accused = vec![accused];
                let failure = Failure { stage, began: 12 * SECOND, at, case, accused, text };
                let events = &mut record.ranks[rank].events;
                events.truncate(2);
                events.extend([shrunk(11 * SECOND, &[0, 1, 3]), Event::Failed(failure)]);
                events.extend([shrunk(13 * SECOND, &[0, 3]), Event::Done]);
                events.extend([Event::Destroyed { took_ms: 1 }, Event::End]);
            }
        }
    };
    assert_eq!(planted(killed, parting(Stage::Split(None))), []);
    // Outside of a part nobody leaves in order.
    assert_eq!(planted(killed, parting(Stage::After)), [WrongError]);
    // An error of the communicator before this one is no reason.
    let earlier = |trial: &mut Trial, record: &mut Record| {
        parting(Stage::Split(None))(trial, record);
        record.ranks[3].events.remove(3);
    };
    assert_eq!(planted(killed, earlier), [WrongError]);
}

#[test]
fn a_leak_is_found() {
    let left = |_: &mut Trial, record: &mut Record| {
        record.ranks[0].events.push(Event::Left { what: "1 x descriptor of socket".into() });
    };
    assert_eq!(planted(slow, left), [Leak]);
    assert_eq!(planted(killed, left), [Leak]);
    assert_eq!(planted(slow, |_, record| record.files.push("rdmaccl.1".into())), [Leak]);
}

#[test]
fn a_missing_and_a_surplus_error_are_found() {
    let silent = |_: &mut Trial, record: &mut Record| {
        record.ranks[1].events.retain(|event| !matches!(event, Event::Failed(_)));
    };
    assert_eq!(planted(killed, silent), [NoError]);
    let surplus = |_: &mut Trial, record: &mut Record| {
        let (_, mut other) = killed();
        let error = failure(&mut other, 0).clone();
        record.ranks[1].events.push(Event::Failed(error));
    };
    assert_eq!(planted(slow, surplus), [WrongError]);
    // Another error than a loss.
    assert_eq!(planted(killed, |_, record| failure(record, 0).case = Case::Timeout), [WrongError]);
}

#[test]
fn what_comes_too_late_is_found() {
    assert_eq!(planted(killed, |_, record| failure(record, 0).at = 12 * SECOND), [Late]);
    let slowly = |_: &mut Trial, record: &mut Record| {
        record.ranks[0].events.push(Event::Destroyed { took_ms: 2500 });
    };
    assert_eq!(planted(killed, slowly), [Late]);
}

#[test]
fn words_must_name_the_process_and_verdicts_be_the_same() {
    assert_eq!(planted(killed, |_, record| failure(record, 0).text = "rank 2 is lost".into()), [Words]);
    let absent = |words: [&'static str; 3]| {
        move |trial: &mut Trial, record: &mut Record| {
            let culprits = std::mem::take(&mut trial.culprits);
            *trial = Trial {
                ranks: 4,
                culprits,
                aftermath: vec![Aftermath::Destroy; 4],
                ..Trial::draw(1, 1, Some(Kind::Absent))
            };
            for (rank, words) in [0, 1, 3].into_iter().zip(words) {
                let failure = failure(record, rank);
                (failure.case, failure.text) = (Case::Absent, words.into());
            }
            let own = failure(record, 0).clone();
            record.ranks[2].events.extend([Event::Failed(own), Event::End]);
            record.ranks[2].end = End::Code(0);
        }
    };
    assert_eq!(planted(killed, absent(["rank 2 never came"; 3])), []);
    assert_eq!(
        planted(killed, absent(["rank 2 never came", "rank 2 did not come", "rank 2 never came"])),
        [Words]
    );
}

#[test]
fn an_end_that_none_should_have_is_found() {
    assert_eq!(planted(slow, |_, record| record.ranks[0].end = End::Signal(11)), [Crash]);
    assert_eq!(planted(killed, |_, record| record.ranks[2].end = End::Code(0)), [Crash]);
    let mute = |_: &mut Trial, record: &mut Record| {
        record.ranks[0].events.pop();
    };
    assert_eq!(planted(slow, mute), [Crash]);
}

#[test]
fn those_who_shrank_must_agree_on_who_they_are() {
    let shrunk = |worlds: [&'static [Rank]; 3]| {
        move |trial: &mut Trial, record: &mut Record| {
            trial.aftermath = vec![Aftermath::Shrink; 4];
            for (rank, world) in [0, 1, 3].into_iter().zip(worlds) {
                let shrunk = Event::Shrunk { at: 11 * SECOND, took_ms: 5, world: world.to_vec() };
                record.ranks[rank].events.extend([shrunk, Event::Done, Event::End]);
            }
        }
    };
    assert_eq!(planted(killed, shrunk([&[0, 1, 3], &[0, 1, 3], &[0, 1, 3]])), []);
    assert_eq!(planted(killed, shrunk([&[0, 1, 3], &[0, 1, 3], &[3]])), [Wrong, Wrong]);
    // Whoever was to shrink and did not get there.
    let not_shrunk = |trial: &mut Trial, _: &mut Record| trial.aftermath = vec![Aftermath::Shrink; 4];
    assert_eq!(planted(killed, not_shrunk), [WrongError; 3]);
}

#[test]
fn ranks_are_read_out_of_texts() {
    for (text, rank, is_named) in [
        ("ranks 0, 2-4 wait", 3, true),
        ("ranks 0, 2-4 wait", 1, false),
        ("rank 12 is lost", 1, false),
        ("rank 1 asked for x, rank 0 for y", 0, true),
        ("no such thing", 0, false),
        ("this rank was declared lost", 0, false),
    ] {
        assert_eq!(mentions(text, rank), is_named, "{text}: {rank}");
    }
}

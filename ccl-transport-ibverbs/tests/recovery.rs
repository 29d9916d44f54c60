//! Queue pairs, ports, addresses and devices that fail while links are used: every message arrives once, in order, unchanged.

mod hosts;

use ccl_core::transport::conformance::{connect, mesh, receive, send};
use ccl_core::transport::{Fabric, ReceiverId, Transport};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::IbTransport;
use hosts::streams::{GUARD, Traffic, both, pair, unconnected, until};
use std::time::{Duration, Instant};

#[test]
fn a_queue_pair_that_fails_moves_to_the_other_rail() {
    for delivered in ["no", "yes"] {
        for nth in [1, 2, 17, 40] {
            let fake = Fake::start(&hosts::script(2, 2));
            let mut t = pair(2, |_| {});
            let mut traffic = Traffic::new(&mut t, 2);
            traffic.run(&mut t, 20);
            fake.run(&format!(
                "complete status=IBV_WC_RETRY_EXC_ERR vendor=129 nth={nth} on=h0r0 delivered={delivered}"
            ));
            traffic.run(&mut t, 200);
            assert_eq!(both(&t, |work| work.repairs), [1, 1], "{delivered} {nth}");
            assert_eq!(both(&t, |work| work.moves), [1, 1]);
            // What is lost is the one that failed and those behind it.
            assert!(both(&t, |work| work.resent).iter().sum::<u64>() >= u64::from(delivered == "no"));
        }
    }
}

/// What the old queue pair has brought counts only once the device has given everything back.
#[test]
fn nothing_is_agreed_on_before_the_old_queue_pair_is_drained() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |_| {});
    let mut traffic = Traffic::new(&mut t, 1);
    traffic.run(&mut t, 10);
    // The receives of rail 0 are late, the words over rail 1 are not.
    fake.run("delay 1000");
    traffic.step(&mut t, 11);
    fake.run("delay 0; down h0r0/1");
    for _ in 0..100 {
        t.iter_mut().for_each(|t| t.park(Duration::from_millis(1)).unwrap());
    }
    assert_eq!(both(&t, |work| work.repairs), [0, 0]);
    traffic.run(&mut t, 100);
    assert_eq!(both(&t, |work| work.repairs), [1, 1]);
}

#[test]
fn with_one_rail_the_queue_pair_is_built_anew() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(3, |_| {});
    let mut traffic = Traffic::new(&mut t, 3);
    for round in 1..20 {
        let on = ["h0r0", "h1r0"][round as usize % 2];
        fake.run(&format!("complete status=IBV_WC_RETRY_EXC_ERR nth={round} on={on} delivered=yes"));
        traffic.run(&mut t, 30 * round);
    }
    assert_eq!(both(&t, |work| work.repairs), [19, 19]);
    assert_eq!(both(&t, |work| work.moves), [0, 0]);
}

#[test]
fn a_port_that_goes_down_is_left_at_once_and_used_again_when_it_is_back() {
    for port in ["h0r0/1", "h1r0/1"] {
        let fake = Fake::start(&hosts::script(2, 2));
        let mut t = pair(2, |_| {});
        let mut traffic = Traffic::new(&mut t, 2);
        traffic.run(&mut t, 10);
        // What was sent would wait for ever: it is the event that counts.
        fake.run(&format!("down {port} traffic=stall"));
        until(&mut t, |t| both(t, |work| work.moves) == [1, 1]);
        traffic.run(&mut t, 100);
        fake.run(&format!("up {port}"));
        until(&mut t, |t| both(t, |work| work.moves) == [2, 2]);
        traffic.run(&mut t, 200);
        assert_eq!(both(&t, |work| work.moves), [2, 2], "no more than there and back");
    }
}

/// Moves both ends as long as something is so, with messages all the time.
fn busy_while(t: &mut [IbTransport], traffic: &mut Traffic, so: impl Fn(&[IbTransport]) -> bool) {
    let start = Instant::now();
    while so(t) {
        traffic.step(t, u64::MAX);
        assert!(t.iter_mut().all(|t| t.flush().is_ok()) && start.elapsed() < GUARD);
    }
}

/// Under load a rank finds what it waits for before it would sleep, for as long as the load lasts.
#[test]
fn a_port_that_is_back_is_used_again_though_nobody_sleeps() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(2, |_| {});
    let mut traffic = Traffic::new(&mut t, 2);
    fake.run("down h1r0/1 traffic=stall");
    busy_while(&mut t, &mut traffic, |t| both(t, |work| work.moves) != [1, 1]);
    fake.run("up h1r0/1");
    busy_while(&mut t, &mut traffic, |t| both(t, |work| work.moves) != [2, 2]);
}

#[test]
fn a_port_that_is_back_before_the_other_rail_is_used_is_gone_back_to() {
    for steps in 0..12 {
        let fake = Fake::start(&hosts::script(2, 2));
        let mut t = pair(1, |_| {});
        let mut traffic = Traffic::new(&mut t, 1);
        traffic.run(&mut t, 10);
        fake.run("down h1r0/1");
        for step in 0..steps {
            t[step % 2].park(Duration::from_millis(1)).unwrap();
        }
        fake.run("up h1r0/1");
        let is_home = |t: &mut [IbTransport]| both(t, |work| work.moves).iter().all(|moves| moves % 2 == 0);
        traffic.run(&mut t, 60);
        until(&mut t, is_home);
        traffic.run(&mut t, 120);
        assert!(is_home(&mut t), "{steps}");
    }
}

/// What lies between two ports can fail and be mended while both stay active.
#[test]
fn a_rail_that_answers_again_is_gone_back_to_though_no_port_says_so() {
    /// All words of the repair are said by then.
    const SETTLED: Duration = Duration::from_millis(500);
    // Who finds out: the one who asks, or the other.
    for on in ["h0r0", "h1r0"] {
        let fake = Fake::start(&hosts::script(2, 2));
        let mut t = pair(2, |_| {});
        let mut traffic = Traffic::new(&mut t, 2);
        traffic.run(&mut t, 10);
        fake.run(&format!("complete status=IBV_WC_RETRY_EXC_ERR on={on}"));
        let start = Instant::now();
        busy_while(&mut t, &mut traffic, |t| {
            both(t, |work| work.moves) != [1, 1] || start.elapsed() < SETTLED
        });
        if on == "h0r0" {
            // The first question.
            fake.run("lose h0r0");
        }
        busy_while(&mut t, &mut traffic, |t| both(t, |work| work.moves) != [2, 2]);
        let asked = if on == "h0r0" { 2 } else { 1 };
        assert!(start.elapsed() >= asked * Duration::from_secs(2), "not before it has answered");
    }
}

#[test]
fn an_end_that_only_receives_learns_of_it_too() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |_| {});
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    fake.run("complete status=IBV_WC_RETRY_EXC_ERR nth=5 on=h0r0");
    let (mut sent, mut received) = (0u64, 0u64);
    let start = Instant::now();
    while received < 50 {
        if sent < 50 && send(&mut t[0], to, &[sent as u8; 3000], sent) {
            sent += 1;
        }
        if let Some((bytes, tag)) = receive(&mut t[1], from) {
            assert_eq!((bytes, tag), (vec![received as u8; 3000], received));
            received += 1;
        }
        assert!(t.iter_mut().all(|t| t.flush().is_ok()) && start.elapsed() < GUARD);
    }
}

#[test]
fn what_fails_in_the_middle_of_a_repair_is_tried_again() {
    for nth in 1..12 {
        let fake = Fake::start(&hosts::script(2, 2));
        let mut t = pair(1, |_| {});
        let mut traffic = Traffic::new(&mut t, 1);
        traffic.run(&mut t, 10);
        // First the step to error, then those of both new queue pairs.
        fake.run(&format!(
            "complete status=IBV_WC_RETRY_EXC_ERR on=h0r0; fail modify_qp errno=ETIMEDOUT nth={nth} times=2"
        ));
        traffic.run(&mut t, 60);
        fake.run(&format!(
            "complete status=IBV_WC_REM_OP_ERR on=h1r0; fail create_qp errno=ENOMEM nth={}",
            nth % 3 + 1
        ));
        traffic.run(&mut t, 120);
    }
}

#[test]
fn words_that_are_lost_are_said_again() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(1, |_| {});
    let mut traffic = Traffic::new(&mut t, 1);
    for nth in 1..8 {
        fake.run(&format!(
            "complete status=IBV_WC_RETRY_EXC_ERR on=h0r0; lose h0r0 nth={nth}; lose h1r0 nth={nth} times=2"
        ));
        traffic.run(&mut t, 20 * nth);
        fake.run(&format!("complete status=IBV_WC_RETRY_EXC_ERR nth=2 on=h1r0; lose h0r0 times={nth}"));
        traffic.run(&mut t, 20 * nth + 10);
    }
}

#[test]
fn an_end_for_datagrams_that_fails_begins_anew() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(1, |_| {});
    let mut traffic = Traffic::new(&mut t, 1);
    // The first send that fails is a message, the second a word.
    fake.run(
        "complete status=IBV_WC_RETRY_EXC_ERR on=h0r0; complete status=IBV_WC_LOC_QP_OP_ERR nth=2 on=h0r0",
    );
    traffic.run(&mut t, 50);
    fake.run(
        "complete status=IBV_WC_RETRY_EXC_ERR on=h1r0; complete status=IBV_WC_LOC_QP_OP_ERR nth=3 on=h1r0",
    );
    traffic.run(&mut t, 100);
}

#[test]
fn all_rails_may_be_dead_for_a_while() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(2, |_| {});
    let mut traffic = Traffic::new(&mut t, 2);
    traffic.run(&mut t, 10);
    for (down, up) in [
        ("down h0r0/1; down h0r1/1", "up h0r1/1; up h0r0/1"),
        ("down h0r0/1; down h1r1/1", "up h1r1/1; up h0r0/1"),
    ] {
        fake.run(down);
        let before = traffic.links[0].received;
        for _ in 0..200 {
            traffic.step(&mut t, before + 100);
        }
        t[0].park(Duration::from_millis(20)).unwrap();
        assert!(traffic.links.iter().all(|link| link.received < before + 100));
        fake.run(up);
        traffic.run(&mut t, before + 100);
    }
}

#[test]
fn a_gid_that_goes_or_moves_is_followed() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(2, |_| {});
    let mut traffic = Traffic::new(&mut t, 2);
    traffic.run(&mut t, 10);
    fake.run("nogid h0r0/1 1");
    until(&mut t, |t| both(t, |work| work.moves) == [1, 1]);
    traffic.run(&mut t, 50);
    fake.run("gid h0r0/1 3 10.0.0.1");
    until(&mut t, |t| both(t, |work| work.moves) == [2, 2]);
    traffic.run(&mut t, 100);
    // To another index in one go: the rail stays, with a new queue pair.
    fake.run("nogid h1r1/1 1; gid h1r1/1 0 10.0.1.2");
    until(&mut t, |t| both(t, |work| work.repairs) == [3, 3]);
    traffic.run(&mut t, 150);
    assert_eq!(both(&t, |work| work.moves), [2, 2]);
}

#[test]
fn a_device_that_fails_is_left_for_good() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(4, |_| {});
    let mut traffic = Traffic::new(&mut t, 4);
    traffic.run(&mut t, 10);
    fake.run("event h1r1 8");
    until(&mut t, |t| both(t, |work| work.moves) == [1, 1]);
    traffic.run(&mut t, 100);
    fake.run("down h1r1/1; up h1r1/1");
    traffic.run(&mut t, 200);
    assert_eq!(both(&t, |work| work.moves), [1, 1]);
    // With the last one ends what a repair could do.
    fake.run("event h1r0 8");
    until(&mut t, |t| t[1].peek(traffic.links[0].ends.1).is_err());
    t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
}

#[test]
fn a_queue_pair_that_cannot_be_connected_begins_on_another_rail() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t: Vec<_> = (0..2).map(|rank| unconnected(rank, |_| {})).collect();
    fake.run("nogid h0r0/1 1");
    connect(&mut t, &mesh(2, 2));
    let mut traffic = Traffic::new(&mut t, 2);
    traffic.run(&mut t, 100);
    assert_eq!(both(&t, |work| work.moves), [1, 1]);
}

/// The error of one end, when it has one.
fn error_of(t: &mut IbTransport, from: ReceiverId) -> String {
    let start = Instant::now();
    loop {
        match t.peek(from) {
            Ok(_) => assert!(start.elapsed() < GUARD),
            Err(error) => return error.to_string(),
        }
    }
}

#[test]
fn what_stays_dead_is_an_error_that_says_all_there_is_to_know() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |config| config.recovery = Duration::from_millis(30));
    let ends =
        [0, 1].map(|i| (t[i].sender(&[1 - i as u32], 0).unwrap(), t[i].receiver(1 - i as u32, 0).unwrap()));
    fake.run("down h0r0/1; down h1r1/1");
    assert!(send(&mut t[0], ends[0].0, b"x", 0));
    let said = error_of(&mut t[0], ends[0].1);
    let both_ends =
        ["h0r0:1", "10.0.0.1", "h1r0:1", "10.0.0.2", "h0r1:1", "10.0.1.1", "h1r1:1", "10.0.1.2", "rank 1"];
    let why =
        ["status 12", "vendor 0x81", "the port here is down", "counters", "check cables", "RDMACCL_TIMEOUT"];
    for word in both_ends.iter().chain(&why) {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(t[0].flush().is_err(), "the other end may not have it");
    assert!(t[0].reserve(ends[0].0, 1).is_err());
    t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
}

#[test]
fn who_gives_up_tells_the_other_end() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |_| {});
    let ends =
        [0, 1].map(|i| (t[i].sender(&[1 - i as u32], 0).unwrap(), t[i].receiver(1 - i as u32, 0).unwrap()));
    fake.run("complete status=IBV_WC_RNR_RETRY_EXC_ERR on=h0r0");
    assert!(send(&mut t[0], ends[0].0, b"x", 0));
    assert!(error_of(&mut t[0], ends[0].1).contains("receiver-not-ready"));
    // The other end learns it when it looks for what has become of its own.
    fake.run("complete status=IBV_WC_RETRY_EXC_ERR on=h1r0");
    assert!(send(&mut t[1], ends[1].0, b"y", 0));
    let start = Instant::now();
    let said = loop {
        drop(t[0].peek(ends[0].1));
        match t[1].peek(ends[1].1) {
            Ok(_) => assert!(start.elapsed() < GUARD),
            Err(error) => break error.to_string(),
        }
    };
    assert!(said.contains("the peer has given it up") && said.contains("status 12"), "{said}");
    t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_repair_is_an_error_in_the_end() {
    let fake = Fake::start(&hosts::script(2, 2));
    for steps in [0, 1, 2, 3, 5, 8] {
        let mut t = pair(1, |config| config.recovery = Duration::from_secs(1));
        let mut traffic = Traffic::new(&mut t, 1);
        traffic.run(&mut t, 5);
        fake.run("complete status=IBV_WC_RETRY_EXC_ERR on=h0r0");
        for _ in 0..steps {
            traffic.step(&mut t, 100);
        }
        t[1].withdraw();
        drop(t.pop());
        let (to, from) = traffic.links[0].ends;
        let back = traffic.links[1].ends.1;
        assert_eq!(from, back, "one link each");
        let start = Instant::now();
        // Credits, and then the wait for an answer, come to an end.
        let said = loop {
            let sent = t[0]
                .reserve(to, 1)
                .and_then(|slot| if slot.is_some() { t[0].publish(to, 0) } else { Ok(()) });
            if let Err(error) = sent {
                break error.to_string();
            }
            assert!(start.elapsed() < GUARD);
        };
        assert!(said.contains("rank 1") && said.contains("in vain"), "{said}");
        t[0].withdraw();
    }
}

#[test]
fn the_last_message_arrives_though_its_rail_fails_and_its_sender_ends() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |_| {});
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    fake.run("complete status=IBV_WC_RETRY_EXC_ERR on=h0r0");
    assert!(send(&mut t[0], to, b"last", 1));
    let sender = t.remove(0);
    std::thread::scope(|scope| {
        let end = scope.spawn(move || drop(sender));
        let start = Instant::now();
        let got = loop {
            if let Some(got) = receive(&mut t[0], from) {
                break got;
            }
            assert!(start.elapsed() < GUARD);
        };
        assert_eq!(got, (b"last".to_vec(), 1));
        // It waits until its goodbye is there.
        while !end.is_finished() {
            drop(t[0].peek(from));
        }
    });
    assert_eq!(receive(&mut t[0], from), None);
}

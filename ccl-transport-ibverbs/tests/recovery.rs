//! Queue pairs, ports, addresses and devices that fail while links are used: every message arrives once, in order, unchanged.

mod hosts;

use ccl_core::transport::conformance::{connect, mesh, receive, send, stress};
use ccl_core::transport::{Fabric, LinkKey, ReceiverId, SenderId, Transport};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport, Work};
use std::time::{Duration, Instant};

/// What has not happened by then never will.
const GUARD: Duration = Duration::from_secs(60);

fn pair(channels: u16, change: impl Fn(&mut IbConfig)) -> Vec<IbTransport> {
    let mut transports: Vec<_> = (0..2).map(|rank| unconnected(rank, &change)).collect();
    connect(&mut transports, &mesh(2, channels));
    transports
}

fn unconnected(rank: u32, change: impl Fn(&mut IbConfig)) -> IbTransport {
    let mut config = hosts::config(rank, 4096, 4);
    change(&mut config);
    IbTransport::new(rank, 2, &config).unwrap()
}

/// Streams on all links of two ranks, moved by one thread.
struct Traffic {
    links: Vec<Link>,
}

struct Link {
    key: LinkKey,
    ends: (SenderId, ReceiverId),
    sent: u64,
    received: u64,
}

/// What message `number` of a link is; short ones and long ones.
fn message(key: LinkKey, number: u64) -> Vec<u8> {
    let seed =
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(key.from) << 40 ^ u64::from(key.channel) << 48;
    let len = if seed >> 9 & 3 == 0 { seed >> 20 & 4095 } else { seed >> 20 & 127 };
    (0..len).map(|at| (seed >> (at % 8 * 8)) as u8 ^ at as u8).collect()
}

impl Traffic {
    fn new(t: &mut [IbTransport], channels: u16) -> Traffic {
        let link = |key: LinkKey| {
            let to = t[key.from as usize].sender(&[key.to], key.channel).unwrap();
            let from = t[key.to as usize].receiver(key.from, key.channel).unwrap();
            Link { key, ends: (to, from), sent: 0, received: 0 }
        };
        Traffic { links: mesh(2, channels).into_iter().map(link).collect() }
    }

    /// One message of each link that has a credit, and one of each that has come.
    fn step(&mut self, t: &mut [IbTransport], until: u64) {
        for link in &mut self.links {
            let (from, to) = (link.key.from as usize, link.key.to as usize);
            if link.sent < until && send(&mut t[from], link.ends.0, &message(link.key, link.sent), link.sent)
            {
                link.sent += 1;
            }
            if let Some((bytes, tag)) = receive(&mut t[to], link.ends.1) {
                assert_eq!(tag, link.received, "{:?}", link.key);
                assert!(bytes == message(link.key, tag), "{:?} {tag}", link.key);
                link.received += 1;
            }
        }
    }

    /// All links send up to this message, and get them all.
    fn run(&mut self, t: &mut [IbTransport], until: u64) {
        self.run_with(t, until, || {});
    }

    /// The same, and does something now and then.
    fn run_with(&mut self, t: &mut [IbTransport], until: u64, mut now_and_then: impl FnMut()) {
        let start = Instant::now();
        for step in 1u64.. {
            if self.links.iter().all(|link| link.received == until) {
                break;
            }
            self.step(t, until);
            if step.is_multiple_of(100) {
                now_and_then();
                t.iter_mut().for_each(|t| t.park(Duration::ZERO).unwrap());
            }
            assert!(
                start.elapsed() < GUARD,
                "{:?}",
                self.links.iter().map(|l| (l.sent, l.received)).collect::<Vec<_>>()
            );
        }
        for link in &self.links {
            assert_eq!(receive(&mut t[link.key.to as usize], link.ends.1), None);
        }
    }
}

/// Moves both ends until something is so.
fn until(t: &mut [IbTransport], mut so: impl FnMut(&mut [IbTransport]) -> bool) {
    let start = Instant::now();
    while !so(t) {
        t.iter_mut().for_each(|t| t.park(Duration::from_millis(1)).unwrap());
        assert!(start.elapsed() < GUARD);
    }
}

fn both(t: &[IbTransport], of: impl Fn(Work) -> u64) -> [u64; 2] {
    [of(t[0].work()), of(t[1].work())]
}

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
    t.iter_mut().for_each(Transport::withdraw);
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
    t.iter_mut().for_each(Transport::withdraw);
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
    t.iter_mut().for_each(Transport::withdraw);
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_repair_is_an_error_in_the_end() {
    let fake = Fake::start(&hosts::script(2, 2));
    for steps in [0, 1, 2, 3, 5, 8] {
        let mut t = pair(1, |config| config.recovery = Duration::from_millis(30));
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

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % n
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A fault, and what undoes it, if it does not end by itself.
fn fault(random: &mut Random, rails: u64) -> (String, Option<String>) {
    let (host, rail, nth) = (random.below(2), random.below(rails), random.below(30) + 1);
    let device = format!("h{host}r{rail}");
    match random.below(10) {
        0..4 => {
            let status =
                random.pick(&["RETRY_EXC", "REM_OP", "WR_FLUSH", "LOC_QP_OP", "GENERAL", "BAD_RESP"]);
            let delivered = random.pick(&["yes", "no"]);
            (format!("complete status=IBV_WC_{status}_ERR nth={nth} on={device} delivered={delivered}"), None)
        }
        4 => (format!("lose {device} nth={nth} times={}", random.below(4)), None),
        5 => (
            format!(
                "fail {} errno=ETIMEDOUT nth={nth} times={}",
                random.pick(&["modify_qp", "create_qp"]),
                random.below(3)
            ),
            None,
        ),
        6 => (format!("delay {}", random.below(3)), None),
        7 => {
            let address = format!("10.0.{rail}.{}", host + 1);
            (format!("nogid {device}/1 1"), Some(format!("gid {device}/1 1 {address}")))
        }
        _ => {
            let traffic = random.pick(&["stall", "fail"]);
            (
                format!("down {device}/1 after={} traffic={traffic}", random.below(20)),
                Some(format!("up {device}/1")),
            )
        }
    }
}

/// Random failures, in one thread, so that a seed says it all but how long words wait.
#[test]
fn whatever_fails_every_message_arrives_once_and_in_order() {
    for seed in 1..60u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (rails, channels) = (1 + random.below(3), 1 + random.below(5) as u16);
        let fake = Fake::start(&hosts::script(2, rails as u32));
        let queue_pairs = 1 + random.below(2) as u32;
        let mut t = pair(channels, |config| {
            config.ib.qps_per_connection = Some(queue_pairs);
            // A stall ends with an up below, not by itself.
            config.recovery = GUARD;
        });
        let mut traffic = Traffic::new(&mut t, channels);
        let mut undo = Vec::new();
        for round in 1..=6 {
            let faults: Vec<_> = (0..1 + random.below(3)).map(|_| fault(&mut random, rails)).collect();
            for (text, _) in &faults {
                fake.run(text);
            }
            for _ in 0..random.below(60) {
                traffic.step(&mut t, 40 * round);
            }
            for t in &mut t {
                t.park(Duration::ZERO).unwrap();
            }
            // Some have not come yet, and come later.
            undo.extend(faults.into_iter().filter_map(|(_, undo)| undo));
            traffic.run_with(&mut t, 40 * round, || undo.iter().for_each(|undo| fake.run(undo)));
        }
        // Faults that have not come yet would come at the end.
        t.iter_mut().for_each(Transport::withdraw);
    }
}

/// Three ranks in threads, whose devices fail at random meanwhile.
#[test]
fn threads_go_on_too() {
    let fake = Fake::start(&hosts::script(3, 2));
    let mut t: Vec<_> =
        (0..3).map(|rank| IbTransport::new(rank, 3, &hosts::config(rank, 4096, 5)).unwrap()).collect();
    connect(&mut t, &mesh(3, 2));
    std::thread::scope(|scope| {
        let ranks = t.iter_mut().zip(0..).map(|(t, rank)| scope.spawn(move || stress(t, rank, 3, 400)));
        let ranks: Vec<_> = ranks.collect();
        let mut random = Random(7);
        for _ in 0..60 {
            let device = format!("h{}r{}", random.below(3), random.below(2));
            match random.below(2) {
                0 => fake.run(&format!(
                    "complete status=IBV_WC_RETRY_EXC_ERR on={device} delivered={}",
                    random.pick(&["yes", "no"])
                )),
                _ => fake.run(&format!("down {device}/1; up {device}/1")),
            }
            std::thread::yield_now();
        }
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
    t.iter_mut().for_each(Transport::withdraw);
}

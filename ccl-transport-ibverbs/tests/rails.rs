//! Several rails and several queue pairs: where links go, and how much work they are.

mod hosts;

use ccl_core::transport::conformance::{connect, mesh, receive, send, stress};
use ccl_core::transport::{Fabric, LinkKey, Transport};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport};

fn pair(change: impl Fn(&mut IbConfig)) -> Vec<IbTransport> {
    let new = |rank| {
        let mut config = hosts::config(rank, 8192, 8);
        change(&mut config);
        IbTransport::new(rank, 2, &config).unwrap()
    };
    (0..2).map(new).collect()
}

/// Channels go round rails and queue pairs, and have one on each rail; every link works, whichever is its home.
#[test]
fn links_are_spread_over_rails_and_queue_pairs() {
    let fake = Fake::start(&hosts::script(2, 2));
    for (queue_pairs, channels, made) in [(1, 1, 2), (1, 2, 2), (1, 9, 4), (3, 6, 6), (3, 2, 2), (3, 3, 4)] {
        let before = fake.count("create_qp");
        let mut t = pair(|config| config.ib.qps_per_connection = Some(queue_pairs));
        connect(&mut t, &mesh(2, channels));
        // Besides, one for datagrams per rail.
        assert_eq!((fake.count("create_qp") - before) / 2, made + 2, "{queue_pairs} × {channels}");
        for round in 0..20u64 {
            for link in mesh(2, channels) {
                let (from, to) = (link.from as usize, link.to as usize);
                let sender = t[from].sender(&[link.to], link.channel).unwrap();
                assert!(send(&mut t[from], sender, &vec![round as u8; 300 * (round as usize % 3)], round));
                let receiver = t[to].receiver(link.from, link.channel).unwrap();
                assert_eq!(receive(&mut t[to], receiver).unwrap().1, round);
            }
        }
        let text = t[0].describe(1);
        assert!(text.contains("h0r0:1 (10.0.0.1) to h1r0:1 (10.0.0.2)") && text.contains("h0r1:1"), "{text}");
    }
    drop(fake);
}

/// Links that are opened later join the queue pairs that are there.
#[test]
fn later_links_share_queue_pairs() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(|_| {});
    connect(&mut t, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    let made = fake.count("create_qp");
    connect(&mut t, &mesh(2, 4));
    assert_eq!(fake.count("create_qp"), made);
    connect(&mut t, &mesh(2, 5));
    assert_eq!(fake.count("create_qp"), made + 2, "the fifth channel needs another one at each end");
}

/// Every message of an exchange is one work request: credits go back with the messages of the other direction.
#[test]
fn an_exchange_sends_no_message_of_its_own() {
    let _fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(|_| {});
    connect(&mut t, &mesh(2, 1));
    let ends: Vec<_> = (0..2)
        .map(|i| (t[i].sender(&[1 - i as u32], 0).unwrap(), t[i].receiver(1 - i as u32, 0).unwrap()))
        .collect();
    for k in 0..1000u64 {
        for i in 0..2 {
            assert!(send(&mut t[i], ends[i].0, &k.to_le_bytes(), k));
        }
        for i in 0..2 {
            assert!(receive(&mut t[i], ends[i].1).is_some());
        }
    }
    for t in &t {
        let work = t.work();
        assert_eq!((work.sends, work.inline, work.credits), (1000, 1000, 0));
        // Receives are posted in batches of 16, sends ask rarely for a completion.
        assert!(work.doorbells <= 1000 + 1000 / 16 + 2, "{work:?}");
        assert!(work.signaled <= 1000 / 8, "{work:?}");
    }
}

/// A stream in one direction costs a message without bytes per half of the credits.
#[test]
fn a_stream_returns_credits_by_halves() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(|_| {});
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let before = fake.count("bytes");
    for k in 0..400u64 {
        assert!(send(&mut t[0], to, &[7; 5000], k));
        assert!(receive(&mut t[1], from).is_some());
    }
    assert_eq!((t[0].work().sends, t[0].work().inline), (400, 0));
    assert_eq!((t[1].work().sends, t[1].work().credits), (100, 100));
    assert_eq!(fake.count("bytes") - before, 400 * (5000 + 24));
}

/// Threads that send all kinds of lengths over two rails with three queue pairs each: no receiver is ever without a
/// receive, or the fake would end the send with that error.
#[test]
fn no_receiver_is_ever_not_ready() {
    let _fake = Fake::start(&hosts::script(3, 2));
    for credits in [1, 2, 5] {
        let mut t: Vec<_> = (0..3)
            .map(|rank| {
                let mut config = hosts::config(rank, 4096, credits);
                config.ib.qps_per_connection = Some(3);
                IbTransport::new(rank, 3, &config).unwrap()
            })
            .collect();
        connect(&mut t, &mesh(3, 2));
        std::thread::scope(|scope| {
            for (t, rank) in t.iter_mut().zip(0..) {
                scope.spawn(move || stress(t, rank, 3, 300));
            }
        });
        // A closing rank waits until its peers' devices have everything: in turn, so that none closes on another.
        t.into_iter().for_each(drop);
    }
}

/// Two ports of one InfiniBand adapter: addressed by lid, one queue pair each.
#[test]
fn infiniband_ports_of_one_device_are_rails_too() {
    let port = |host: u32, port: u32| {
        let lid = 10 * host + port;
        format!(
            "port h{host}r0/{port} link=infiniband lid={lid}; gid h{host}r0/{port} 0 fe80::{host}:{port} type=ib"
        )
    };
    let host = |host: u32| format!("device h{host}r0 ports=2; {}; {}\n", port(host, 1), port(host, 2));
    let fake = Fake::start(&(host(0) + &host(1)));
    let mut t = pair(|_| {});
    connect(&mut t, &mesh(2, 4));
    // One for datagrams per port.
    assert_eq!((fake.count("create_qp"), fake.count("create_cq")), (4 + 4, 2));
    let text = t[1].describe(0);
    assert!(
        text.contains("h1r0:2 (fe80::1:2) to h0r0:2 (fe80::2)") && text.contains("1 queue pairs"),
        "{text}"
    );
    std::thread::scope(|scope| {
        for (t, rank) in t.iter_mut().zip(0..) {
            scope.spawn(move || stress(t, rank, 2, 300));
        }
    });
}

/// What is in a slot for several peers is one buffer and one work request each.
#[test]
fn a_piece_for_several_peers_is_one_work_request_each() {
    let fake = Fake::start(&hosts::script(4, 1));
    let mut t = hosts::transports(4, 8192, 4);
    connect(&mut t, &mesh(4, 1));
    let to = t[0].sender(&[1, 2, 3], 0).unwrap();
    let before = (t[0].work().sends, t[0].memory(), fake.count("reg_mr_iova2") + fake.count("reg_mr"));
    for k in 0..50 {
        assert!(send(&mut t[0], to, &[k as u8; 8000], k));
        for peer in &mut t[1..] {
            let from = peer.receiver(0, 0).unwrap();
            assert_eq!(receive(peer, from), Some((vec![k as u8; 8000], k)));
        }
    }
    let after = (t[0].work().sends, t[0].memory(), fake.count("reg_mr_iova2") + fake.count("reg_mr"));
    assert_eq!(after, (before.0 + 150, before.1, before.2), "nothing is registered on the way");
}

/// A rank that closes has its last pieces delivered, and takes no time for it.
#[test]
fn what_was_sent_arrives_though_its_sender_has_closed() {
    let fake = Fake::start(&hosts::script(2, 1));
    let mut t = pair(|_| {});
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    assert!(send(&mut t[0], to, b"last", 1));
    drop(t.remove(0));
    assert_eq!(receive(&mut t[0], from), Some((b"last".to_vec(), 1)));
    assert_eq!(receive(&mut t[0], from), None, "no error: it has just closed");
    let back = t[0].sender(&[0], 0).unwrap();
    let error = t[0].reserve(back, 1).unwrap_err().to_string();
    assert!(error.contains("closed its end") && error.contains("rank 0"), "{error}");
    drop(t);
    assert_eq!(fake.live(), 0);
}

/// Nobody names a number: faster ports get more slots, and both ends agree on how many.
#[test]
fn the_window_follows_the_speed_of_the_ports() {
    // 4x EDR is 100 Gb/s, 4x SDR 10 Gb/s.
    for (rails, speed, slots) in [(1, 32, 40), (1, 1, 23), (2, 32, 64)] {
        let fake = Fake::start(&hosts::script(2, rails));
        for (host, rail) in (0..2).flat_map(|host| (0..rails).map(move |rail| (host, rail))) {
            fake.run(&format!("port h{host}r{rail}/1 speed={speed}"));
        }
        let mut t = pair(|config| config.credits = None);
        connect(&mut t, &mesh(2, 1));
        let text = t[0].describe(1);
        assert!(text.contains(&format!("{slots} slots a link")), "{text}");
        let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
        let mut sent = 0;
        while send(&mut t[0], to, &[1; 8192], sent) {
            sent += 1;
        }
        assert_eq!(sent, slots);
        (0..sent).for_each(|k| assert_eq!(receive(&mut t[1], from).unwrap().1, k));
    }
}

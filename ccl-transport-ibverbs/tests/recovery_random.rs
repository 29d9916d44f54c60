//! Failures at random: every message arrives once, in order, unchanged.

mod hosts;

use ccl_core::transport::Transport;
use ccl_core::transport::conformance::{connect, mesh, stress};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::IbTransport;
use hosts::streams::{GUARD, Traffic, pair};
use std::time::Duration;

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
    match random.below(11) {
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
        10 => (format!("pace {device} {}", random.below(20)), None),
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
        t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
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
    t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
}

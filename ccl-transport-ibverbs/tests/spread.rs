//! Pieces of one link over several rails: what each rail gets, and what happens when one fails.

mod hosts;

use ccl_core::transport::conformance::{receive, send};
use ccl_core::transport::{Fabric, ReceiverId, SenderId, Transport};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::IbTransport;
use hosts::streams::{GUARD, SLOT, Traffic, both, pair, until};
use std::time::{Duration, Instant};

fn ends(t: &mut [IbTransport]) -> (SenderId, ReceiverId) {
    (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap())
}

/// Sends so many messages of this length from one rank to the other. What each rail carried of them, in parts of all.
fn stream(t: &mut [IbTransport], messages: u64, len: usize) -> Vec<f64> {
    let (to, from) = ends(t);
    let before = t[0].shares();
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    while received < messages {
        if sent < messages && send(&mut t[0], to, &vec![sent as u8; len], sent) {
            sent += 1;
        } else if let Some((bytes, tag)) = receive(&mut t[1], from) {
            assert_eq!((bytes, tag), (vec![received as u8; len], received));
            received += 1;
        }
        assert!(start.elapsed() < GUARD, "{sent} {received}");
    }
    let all = messages as f64 * len as f64;
    t[0].shares().iter().zip(before).map(|(now, then)| (now.1 - then.1) as f64 / all).collect()
}

/// Both ends of a rail take so many polls for each piece.
fn pace(fake: &Fake, rail: u32, polls: u32) {
    fake.run(&format!("pace h0r{rail} {polls}; pace h1r{rail} {polls}"));
}

#[test]
fn one_link_uses_all_rails_and_short_pieces_stay_at_home() {
    let fake = Fake::start(&hosts::script(2, 3));
    let mut t = pair(1, |config| config.credits = Some(16));
    (0..3).for_each(|rail| pace(&fake, rail, 10));
    let shares = stream(&mut t, 4000, SLOT);
    assert!(shares.iter().all(|share| *share > 0.05), "{shares:?}");
    assert_eq!(stream(&mut t, 600, 8192), [1.0, 0.0, 0.0]);
}

/// What a rail gets follows what it does, when it changes as well. The fake's time are polls, the transport's is the clock: so
/// there is much room between the part that would be right, one in 21, and that of equal shares.
#[test]
fn shares_follow_the_speed_of_rails() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |config| config.credits = Some(16));
    pace(&fake, 0, 5);
    pace(&fake, 1, 100);
    let shares = stream(&mut t, 4000, SLOT);
    assert!(shares[1] > 0.0 && shares[1] < 0.4, "{shares:?}");
    // The other way round: home is the slow one.
    pace(&fake, 0, 100);
    pace(&fake, 1, 5);
    stream(&mut t, 500, SLOT);
    let shares = stream(&mut t, 4000, SLOT);
    assert!(shares[0] > 0.0 && shares[0] < 0.4, "{shares:?}");
}

/// Nothing waits for a repair that cannot even begin, as long as another rail works.
#[test]
fn while_a_rail_is_out_everything_goes_over_the_others() {
    for rail in [0, 1] {
        let fake = Fake::start(&hosts::script(2, 2));
        let mut t = pair(3, |_| {});
        let mut traffic = Traffic::new(&mut t, 3);
        traffic.run(&mut t, 50);
        let lost: Vec<_> = ["h0r0", "h0r1", "h1r0", "h1r1"]
            .iter()
            .map(|name| format!("lose {name} times=1000000"))
            .collect();
        fake.run(&format!("{}; down h0r{rail}/1; down h1r{rail}/1", lost.join(";")));
        // Both hear of it.
        for _ in 0..10 {
            t.iter_mut().for_each(|t| t.park(Duration::from_millis(1)).unwrap());
        }
        traffic.run(&mut t, 300);
        assert_eq!((both(&t, |work| work.repairs), both(&t, |work| work.resent)), ([0, 0], [0, 0]));
        t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
    }
}

/// What was under way on the rail that fails goes over the other as soon as it is known what has come, though
/// the rail itself does not come back.
#[test]
fn what_was_under_way_goes_over_another_rail_at_once() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |config| config.credits = Some(16));
    let (to, from) = ends(&mut t);
    stream(&mut t, 100, SLOT);
    fake.run("down h0r0/1 traffic=stall after=2; fail create_qp errno=ENOMEM times=1000");
    for k in 0..12u64 {
        assert!(send(&mut t[0], to, &vec![k as u8; SLOT], k));
    }
    let mut received = 0;
    until(&mut t, |t| {
        while let Some((bytes, tag)) = receive(&mut t[1], from) {
            assert_eq!((bytes, tag), (vec![received as u8; SLOT], received));
            received += 1;
        }
        received == 12
    });
    assert_eq!(both(&t, |work| work.repairs), [0, 0]);
    assert!(t[0].work().resent > 0, "{:?}", t[0].work());
    t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
}

/// A message that waits for a lane goes when there is one, also where its sender makes no other call.
#[test]
fn a_reservation_may_outlive_its_lane() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = pair(1, |_| {});
    let (to, from) = ends(&mut t);
    stream(&mut t, 10, SLOT);
    assert!(t[0].reserve(to, 100).unwrap().is_some());
    fake.run("down h0r0/1; down h0r1/1");
    until(&mut t, |t| !t[0].describe(1).is_empty() && t[0].flush().is_ok());
    t[0].publish(to, 77).unwrap();
    fake.run("up h0r1/1; up h0r0/1");
    until(&mut t, |t| receive(&mut t[1], from).is_some_and(|(bytes, tag)| (bytes.len(), tag) == (100, 77)));
}

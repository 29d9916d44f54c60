//! Collectives between hosts over queue pairs, on a fake libibverbs: each rank, or two of them, on a host of its own.

use ccl::config::{Config, Network};
use ccl::{Communicator, ReduceOp, UniqueId};
use ccl_fake_ibverbs::Fake;

/// A script for so many hosts with two rails each.
fn hosts(count: u32) -> String {
    let rail = |host: u32, rail: u32| {
        format!("device h{host}r{rail}; gid h{host}r{rail}/1 1 10.0.{rail}.{}\n", host + 1)
    };
    (0..count).flat_map(|host| (0..2).map(move |r| rail(host, r))).collect()
}

fn config(host: u32, rails: u32) -> Config {
    let mut config = Config::default();
    config.net = Network::Ib;
    config.host_id = Some(format!("host-{host}"));
    config.ib.library = Some(Fake::library().to_string_lossy().into_owned());
    let names: Vec<_> = (0..rails).map(|rail| format!("h{host}r{rail}")).collect();
    config.ib.hca = Some(format!("={}", names.join(",")).parse().unwrap());
    config
}

/// Runs `body` on each of `hosts × per_host` ranks.
fn on_hosts<R: Send>(
    (hosts, per_host, rails): (u32, u32, u32),
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let id = UniqueId::create(&Config::default()).unwrap();
    let size = hosts * per_host;
    std::thread::scope(|scope| {
        let rank = |rank: u32| {
            let (id, body) = (id, &body);
            scope.spawn(move || {
                let config = config(rank / per_host, rails);
                let builder = Communicator::builder().rank(rank).size(size).unique_id(id).config(config);
                body(builder.build().unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_reduce_between_hosts_is_right_at_every_size() {
    let _fake = Fake::start(&hosts(4));
    for shape in [(2, 1, 1), (2, 1, 2), (2, 2, 2), (4, 1, 2), (4, 2, 1)] {
        on_hosts(shape, |mut comm| {
            for count in [0, 1, 3, 24, 25, 1000, 16_383, 100_001, 1_000_003] {
                let rank = u64::from(comm.rank());
                let mut data: Vec<u64> = (0..count).map(|i| i * 7 + rank).collect();
                comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                let n = u64::from(comm.size());
                let right = (0..count).all(|i| data[i as usize] == i * 7 * n + n * (n - 1) / 2);
                assert!(right, "{shape:?}, {count} elements");
            }
        });
    }
}

#[test]
fn every_peer_is_told_by_which_way_it_is_reached() {
    let _fake = Fake::start(&hosts(2));
    on_hosts((2, 2, 2), |mut comm| {
        let mut data = vec![1u32; 100];
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        for route in comm.describe().routes {
            let same_host = route.peer / 2 == comm.rank() / 2;
            assert_eq!(route.transport, Some(if same_host { "shm" } else { "ib" }), "{route:?}");
        }
    });
}

/// Every message of a plan is one work request. Beside them there are only returns of credits, at most one for 8 messages (half the
/// credits) of a link whose other direction is not used.
#[test]
fn a_collective_costs_the_work_requests_of_its_plan() {
    let fake = Fake::start(&hosts(4));
    for (ranks, algorithm, most_returns) in
        [(2, "ring", 0.0), (4, "ring", 1.0 / 8.0), (4, "recursive", 0.0), (4, "tree", 1.0 / 8.0)]
    {
        let before = (fake.count("sends"), fake.count("inline_sends"));
        let communicators = on_hosts((ranks, 1, 1), |mut comm| {
            comm.set_algorithm(Some(algorithm)).unwrap();
            for _ in 0..100 {
                comm.all_reduce_in_place(&mut [1.0f32; 16], ReduceOp::Sum).unwrap();
                comm.all_reduce_in_place(&mut vec![1.0f32; 10_000], ReduceOp::Sum).unwrap();
            }
            comm
        });
        let sent = communicators.iter().flat_map(|comm| {
            let own = comm.counters().into_iter().filter(|(link, _)| link.from == comm.rank());
            own.map(|(_, counters)| (counters.pieces, counters.inline))
        });
        let (pieces, short) = sent.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (sends, inline) = (fake.count("sends") - before.0, fake.count("inline_sends") - before.1);
        let returns = sends - pieces;
        assert!(pieces >= 200 * u64::from(ranks), "{algorithm}: {pieces}");
        assert_eq!(inline, short, "{algorithm}: short messages are inline, and no others");
        assert!(returns as f64 <= pieces as f64 * most_returns, "{algorithm}: {returns} beside {pieces}");
    }
}

//! Ranks on several hosts: which transport carries whom, what it counts, and how calls end.

use ccl::{Communicator, Config, ErrorKind, ReduceOp, UniqueId};
use std::sync::Barrier;

/// Runs ranks as threads, each on the host that `host` names.
fn on_hosts<T: Send>(
    size: u32,
    vars: &[(&str, &str)],
    host: impl Fn(u32) -> u32,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    let vars = [("RDMACCL_SOCKET_IFNAME", "=lo"), ("RDMACCL_NET", "tcp")].iter().chain(vars);
    let config = Config::from_vars(vars.map(|(n, v)| (n.to_string(), v.to_string()))).expect("right");
    let id = UniqueId::create(&config).expect("an id");
    std::thread::scope(|scope| {
        let rank = |rank: u32| {
            let (mut config, work) = (config.clone(), &work);
            config.host_id = Some(format!("host-{}", host(rank)));
            let builder = Communicator::builder().rank(rank).size(size).unique_id(id).config(config);
            scope.spawn(move || work(builder.build().expect("join")))
        };
        let threads: Vec<_> = (0..size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn each_pair_has_the_best_transport_that_both_have() {
    on_hosts(
        4,
        &[("RDMACCL_TCP_SOCKETS", "3")],
        |rank| rank / 2,
        |mut comm| {
            comm.barrier().unwrap();
            comm.all_gather(&[comm.rank()], &mut [0; 4]).unwrap();
            let rank = comm.rank();
            for route in comm.describe().routes {
                let expected = if route.peer / 2 == rank / 2 { "shm" } else { "tcp" };
                assert_eq!(route.transport, Some(expected), "{route:?}");
                let told = route.why.contains("3 sockets from 127.0.0.1 to 127.0.0.1:");
                let connected =
                    comm.counters().iter().any(|(link, _)| [link.from, link.to].contains(&route.peer));
                assert_eq!(told, expected == "tcp" && connected, "{route:?}");
            }
            comm.barrier().unwrap();
        },
    );
}

#[test]
fn different_settings_are_told() {
    let config = |sockets: &str, net: &str| {
        let vars = [("RDMACCL_SOCKET_IFNAME", "=lo"), ("RDMACCL_TCP_SOCKETS", sockets), ("RDMACCL_NET", net)];
        Config::from_vars(vars.map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
    };
    let join = |first: Config, second: Config| {
        let id = UniqueId::create(&first).unwrap();
        std::thread::scope(|scope| {
            let build = |(rank, config)| {
                let builder = Communicator::builder().rank(rank).size(2).unique_id(id).config(config);
                scope.spawn(move || builder.build().map(drop).unwrap_err().to_string())
            };
            let threads = [(0, first), (1, second)].map(build);
            threads.map(|thread| thread.join().unwrap())
        })
    };
    for error in join(config("1", "tcp"), config("2", "tcp")) {
        assert!(error.contains("tcp_sockets 1") && error.contains("tcp_sockets 2"), "{error}");
    }
}

#[test]
fn ranks_in_different_calls_are_told_apart() {
    let errors = on_hosts(
        2,
        &[],
        |rank| rank,
        |mut comm| {
            let (rank, mut values) = (comm.rank(), [1.0f32; 10]);
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
            let error = match rank {
                0 => comm.all_reduce_in_place(&mut values, ReduceOp::Max),
                _ => comm.all_reduce_in_place(&mut values, ReduceOp::Sum),
            };
            error.unwrap_err().to_string()
        },
    );
    assert_eq!(errors[0], errors[1], "one verdict");
    assert!(errors[0].contains("max") && errors[0].contains("sum"), "{}", errors[0]);
}

/// What a rank has sent before it leaves arrives, also where the peer was not looking until then.
#[test]
fn the_last_pieces_of_a_rank_that_leaves_arrive() {
    let leaving = Barrier::new(2);
    on_hosts(
        2,
        &[],
        |rank| rank,
        |mut comm| {
            // More than goes to the other end at once: the sockets' buffers fill.
            let mut values = vec![comm.rank(); 500_000];
            comm.broadcast(&mut values, 0).unwrap();
            values.fill(7 + comm.rank());
            if comm.rank() == 0 {
                comm.broadcast(&mut values, 0).unwrap();
                leaving.wait();
                drop(comm);
            } else {
                leaving.wait();
                comm.broadcast(&mut values, 0).unwrap();
                assert!(values.iter().all(|value| *value == 7));
            }
        },
    );
}

/// A rank that waits for one transport's peer must not keep what it owes to another's.
#[test]
fn chains_over_both_transports_never_stall() {
    on_hosts(
        6,
        &[("RDMACCL_CREDITS", "2"), ("RDMACCL_TIMEOUT", "60")],
        |rank| rank % 2,
        |mut comm| {
            comm.set_algorithm(Some("ring")).unwrap();
            let mut values = vec![1u32; 300_001];
            for round in 0..10u32 {
                values.fill(1);
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
                assert!(values.iter().all(|value| *value == 6), "round {round}");
                comm.broadcast(&mut values, round % 6).unwrap();
            }
        },
    );
}

#[test]
fn an_aborted_rank_ends_at_once_and_the_other_is_told() {
    let texts = on_hosts(
        2,
        &[],
        |rank| rank,
        |mut comm| {
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                comm.abort_handle().abort();
                return String::new();
            }
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Ended { peer: 0, .. }), "{error}");
            error.to_string()
        },
    );
    assert!(texts[1].contains("aborted"), "{}", texts[1]);
}

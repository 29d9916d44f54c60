//! Plans that know of hosts: ranks of this machine that believe to be on several, and what their calls come to.

use ccl::plan::Placement;
use ccl::{Call, Collective, Communicator, Config, DataType, ReduceOp, UniqueId};

/// Runs ranks as threads, each on the host that `host` names.
fn on_hosts<T: Send>(
    size: u32,
    host: impl Fn(u32) -> u32,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    let vars = [("RDMACCL_SOCKET_IFNAME", "=lo"), ("RDMACCL_NET", "tcp")];
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

const SHAPES: [(u32, u32); 2] = [(2, 2), (2, 3)];
const COUNTS: [usize; 5] = [0, 1, 7, 1023, 50_001];

/// Hierarchical where it can be, and whatever is chosen.
const WISHES: [Option<&str>; 2] = [Some("hierarchical"), None];

/// A number that tells rank and place.
fn value(rank: u32, at: usize) -> i64 {
    i64::from(rank) * 1_000_003 + at as i64
}

fn values(rank: u32, count: usize) -> Vec<i64> {
    (0..count).map(|at| value(rank, at)).collect()
}

/// The sum of all ranks' values at a place.
fn sum(size: u32, at: usize) -> i64 {
    (0..size).map(|rank| value(rank, at)).sum()
}

#[test]
fn every_collective_is_right_on_hosts() {
    for (hosts, locals) in SHAPES {
        let size = hosts * locals;
        on_hosts(
            size,
            |rank| rank / locals,
            |mut comm| {
                assert_eq!(Some(comm.placement()), Placement::even(size, hosts));
                for wish in WISHES {
                    comm.set_algorithm(wish).unwrap();
                    for count in COUNTS {
                        check(&mut comm, size, count);
                    }
                    comm.barrier().unwrap();
                }
            },
        );
    }
}

/// Every collective with blocks of so many elements, in place and not, with first and last roots.
fn check(comm: &mut Communicator, size: u32, count: usize) {
    let (rank, ranks) = (comm.rank(), size as usize);
    let own = values(rank, count);
    let all: Vec<i64> = (0..size).flat_map(|from| values(from, count)).collect();
    let wide = values(rank, ranks * count);
    let mine = rank as usize * count..(rank as usize + 1) * count;
    let sums = |places: std::ops::Range<usize>| places.map(|at| sum(size, at)).collect::<Vec<_>>();

    let mut block = vec![-1; count];
    comm.all_reduce(&own, &mut block, ReduceOp::Sum).unwrap();
    assert_eq!(block, sums(0..count));
    block.copy_from_slice(&own);
    comm.all_reduce_in_place(&mut block, ReduceOp::Sum).unwrap();
    assert_eq!(block, sums(0..count));

    let mut blocks = vec![-1; ranks * count];
    comm.all_gather(&own, &mut blocks).unwrap();
    assert_eq!(blocks, all);
    blocks.fill(-1);
    blocks[mine.clone()].copy_from_slice(&own);
    comm.all_gather_in_place(&mut blocks).unwrap();
    assert_eq!(blocks, all);

    comm.reduce_scatter(&wide, &mut block, ReduceOp::Sum).unwrap();
    assert_eq!(block, sums(mine.clone()));
    blocks.copy_from_slice(&wide);
    comm.reduce_scatter_in_place(&mut blocks, ReduceOp::Sum).unwrap();
    assert_eq!(blocks[mine.clone()], sums(mine.clone()));

    comm.all_to_all(&wide, &mut blocks).unwrap();
    let expected: Vec<i64> = (0..size).flat_map(|from| mine.clone().map(move |at| value(from, at))).collect();
    assert_eq!(blocks, expected);

    for root in [0, size - 1] {
        block.copy_from_slice(&own);
        comm.broadcast(&mut block, root).unwrap();
        assert_eq!(block, values(root, count));
        block.fill(-1);
        comm.reduce(&own, &mut block, ReduceOp::Sum, root).unwrap();
        assert!(rank != root || block == sums(0..count));
        blocks.fill(-1);
        comm.gather(&own, &mut blocks, root).unwrap();
        assert!(rank != root || blocks == all);
        comm.scatter(&wide, &mut block, root).unwrap();
        let expected: Vec<i64> = mine.clone().map(|at| value(root, at)).collect();
        assert_eq!(block, expected);
    }
}

/// Sums whose bits depend on the order in which they are made.
#[test]
fn sums_have_the_same_bits_on_every_rank() {
    for (hosts, locals) in SHAPES {
        let size = hosts * locals;
        for wish in WISHES {
            let results = on_hosts(
                size,
                |rank| rank / locals,
                |mut comm| {
                    comm.set_algorithm(wish).unwrap();
                    let own: Vec<f32> = (0..100_003)
                        .map(|at| 1.0 / (3 + at % 1009) as f32 + comm.rank() as f32 * 1e3)
                        .collect();
                    let mut all = vec![0.0; own.len()];
                    comm.all_reduce(&own, &mut all, ReduceOp::Sum).unwrap();
                    let bits: Vec<u32> = all.iter().map(|x| x.to_bits()).collect();
                    // What stands at two places of a block has the same bits there.
                    assert!(wish.is_none() || bits[..50_000] == bits[1009 * 40..][..50_000]);
                    bits
                },
            );
            assert!(results.iter().all(|bits| *bits == results[0]), "{hosts} x {locals}, {wish:?}");
        }
    }
}

#[test]
fn long_calls_between_hosts_choose_what_crosses_once() {
    let call =
        |collective, count| Call { collective, count, dtype: DataType::F32, op: ReduceOp::Sum, root: 0 };
    let chosen = on_hosts(
        4,
        |rank| rank / 2,
        |mut comm| {
            let calls = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
            let name = |c| comm.explain(&call(c, 4 << 20), false).unwrap().algorithm;
            let names = calls.map(name);
            // And each byte does: rank L of a host talks to rank L of the other one only.
            let mut values = vec![1.0f32; 1 << 20];
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|value| *value == 4.0));
            let (rank, bytes) = (comm.rank(), std::mem::size_of_val(&values[..]) as u64);
            let across = |key: &ccl::LinkKey| key.from == rank && key.to / 2 != rank / 2;
            let sent = |comm: &Communicator| -> Vec<_> {
                comm.counters().into_iter().filter(|(key, _)| across(key)).collect()
            };
            let bytes_of =
                |sent: &[(ccl::LinkKey, ccl::Counters)]| sent.iter().map(|(_, c)| c.bytes).sum::<u64>();
            let reduced = sent(&comm);
            assert!(reduced.iter().all(|(key, _)| key.to % 2 == rank % 2), "{reduced:?}");
            assert_eq!(bytes_of(&reduced), bytes / 2);
            // Of a block for each rank, what belongs to the other host, once for both ranks of this one.
            let mut block = vec![0.0f32; values.len() / 4];
            comm.reduce_scatter(&values, &mut block, ReduceOp::Sum).unwrap();
            assert!(block.iter().all(|value| *value == 16.0));
            assert_eq!(bytes_of(&sent(&comm)) - bytes_of(&reduced), bytes / 4);
            names
        },
    );
    // Halving crosses as seldom in a reduce-scatter.
    let fits = |[reduce, gather, scatter]: [&str; 3]| {
        [reduce, gather] == ["hierarchical"; 2] && ["hierarchical", "halving"].contains(&scatter)
    };
    assert!(chosen.iter().all(|names| *names == chosen[0] && fits(*names)), "{chosen:?}");
    let one_host = on_hosts(
        4,
        |_| 0,
        |mut comm| {
            (comm.placement(), comm.explain(&call(Collective::AllReduce, 4 << 20), false).unwrap().algorithm)
        },
    );
    assert!(one_host.iter().all(|(p, name)| *p == 4.into() && *name != "hierarchical"), "{one_host:?}");
}

#[test]
fn ranks_that_lie_unevenly_count_as_hosts_of_their_own() {
    for hosts in [[0, 0, 1], [0, 1, 0]] {
        on_hosts(
            3,
            |rank| hosts[rank as usize],
            |mut comm| {
                assert_eq!(Some(comm.placement()), Placement::even(3, 3));
                comm.set_algorithm(Some("hierarchical")).unwrap();
                check(&mut comm, 3, 1023);
            },
        );
    }
}

#[test]
fn children_find_hosts_of_their_own() {
    on_hosts(
        4,
        |rank| rank / 2,
        |mut comm| {
            let rank = comm.rank();
            let host = comm.split(Some(rank / 2), 0).unwrap().expect("a member");
            assert_eq!(host.placement(), Placement::one_host(2));
            let mut column = comm.split(Some(rank % 2), 0).unwrap().expect("a member");
            assert_eq!(Some(column.placement()), Placement::even(2, 2));
            let mut all = comm.split(Some(0), 0).unwrap().expect("a member");
            assert_eq!(Some(all.placement()), Placement::even(4, 2));
            check(&mut column, 2, 1023);
            all.set_algorithm(Some("hierarchical")).unwrap();
            check(&mut all, 4, 1023);
        },
    );
}

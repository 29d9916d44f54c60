//! Jobs whose ranks are threads: the good case at several sizes, and each way to fail.

use ccl_core::bootstrap::{Bootstrap, UniqueId};
use ccl_core::config::Config;
use ccl_core::error::{ErrorKind, Result};
use ccl_core::transport::Exchange;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

fn config(vars: &[(&str, &str)]) -> Config {
    Config::from_vars(vars.iter().map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A deadline that passes: only after all have begun that will, also where hundreds of threads want the cores.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(8)
}

/// Runs `ranks` threads that join one job.
fn job<T: Send>(ranks: u32, id: &UniqueId, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let config = config(&[]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (body, config) = (&body, &config);
                scope.spawn(move || body(Bootstrap::join(id, rank, ranks, config, soon()).unwrap()))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn fresh() -> UniqueId {
    UniqueId::create(&config(&[])).unwrap()
}

/// Gathers twice, swaps with the neighbours in a ring, and leaves in order.
fn everything(mut rank: Bootstrap) {
    let (own, ranks) = (rank.rank(), rank.ranks());
    let word = |r: u32| vec![r as u8; 64];
    for _ in 0..2 {
        let all = rank.all_gather(&word(own)).unwrap();
        assert_eq!(all, (0..ranks).map(word).collect::<Vec<_>>());
    }
    assert_eq!(rank.peers().len(), ranks as usize);
    assert_eq!(rank.peers()[own as usize].pid, std::process::id());
    let mut peers: Vec<u32> = [1, ranks - 1, 7 % ranks].iter().map(|d| (own + d) % ranks).collect();
    peers.push((own + ranks - 7 % ranks) % ranks);
    peers.sort_unstable();
    peers.dedup();
    peers.retain(|p| *p != own);
    for turn in 0..2 {
        let blobs: Vec<_> = peers.iter().map(|p| (*p, vec![turn, own as u8, *p as u8])).collect();
        let answers = rank.exchange(soon()).swap(&blobs).unwrap();
        assert_eq!(answers, peers.iter().map(|p| vec![turn, *p as u8, own as u8]).collect::<Vec<_>>());
    }
    rank.check().unwrap();
    rank.barrier().unwrap();
}

#[test]
fn ranks_join_gather_and_swap() {
    for ranks in [1, 2, 3, 5, 8, 22] {
        job(ranks, &fresh(), everything);
    }
}

/// Streams of each pair come in one order at both ends, and carry bytes once both have swapped.
#[test]
fn streams_between_all_pairs() {
    const STREAMS: u16 = 3;
    job(4, &fresh(), |mut rank| {
        let own = rank.rank();
        let peers: Vec<u32> = (0..4).filter(|peer| *peer != own).collect();
        let mut exchange = rank.exchange(soon());
        let wanted: Vec<_> = peers.iter().map(|peer| (*peer, STREAMS)).collect();
        let mut streams = exchange.streams(&wanted).unwrap();
        exchange.swap(&peers.iter().map(|peer| (*peer, Vec::new())).collect::<Vec<_>>()).unwrap();
        for (peer, streams) in peers.iter().zip(&mut streams) {
            assert_eq!(streams.len(), usize::from(STREAMS));
            for (index, stream) in (0..).zip(streams) {
                assert!(stream.nodelay().unwrap());
                stream.set_nonblocking(false).unwrap();
                stream.write_all(&[own as u8, *peer as u8, index]).unwrap();
                let mut heard = [0; 3];
                stream.read_exact(&mut heard).unwrap();
                assert_eq!(heard, [*peer as u8, own as u8, index]);
            }
        }
        let many = exchange.streams(&[(peers[0], 65)]).unwrap_err();
        assert!(matches!(many.kind(), ErrorKind::InvalidArgument { .. }));
        rank.barrier().unwrap();
    });
}

#[test]
fn two_hundred_and_fifty_six_ranks() {
    job(256, &fresh(), everything);
}

#[test]
fn the_longest_words_of_many_ranks() {
    job(40, &fresh(), |mut rank| {
        let all = rank.all_gather(&vec![rank.rank() as u8; 4096]).unwrap();
        assert!(all.iter().enumerate().all(|(r, bytes)| *bytes == vec![r as u8; 4096]));
        assert!(matches!(rank.all_gather(&[0; 4097]).unwrap_err().kind(), ErrorKind::InvalidArgument { .. }));
        rank.barrier().unwrap();
    });
}

#[test]
fn a_rendezvous_needs_no_id() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    // The given port itself is taken, as it is by torchrun's own store.
    let id = UniqueId::from_rendezvous(free.local_addr().unwrap(), b"this job");
    job(3, &id, everything);
}

#[test]
fn absent_ranks_are_named_at_the_deadline() {
    let id = fresh();
    let config = config(&[]);
    let deadline = later();
    let absent = |rank: u32| match Bootstrap::join(&id, rank, 6, &config, deadline).unwrap_err().kind() {
        ErrorKind::Timeout { absent, .. } => absent.clone(),
        other => panic!("{other}"),
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| absent(1));
        let four = scope.spawn(|| absent(4));
        assert_eq!(one.join().unwrap(), [0, 2, 3, 5]);
        assert_eq!(four.join().unwrap(), [0, 2, 3, 5]);
    });
}

#[test]
fn absent_ranks_of_a_gather_are_named() {
    // Who has joined sooner does not wait for the others at the cost of its deadline.
    let joined = Barrier::new(6);
    // Nobody leaves before all are over: the job hands them out.
    job(6, &fresh(), |mut rank| {
        joined.wait();
        let deadline = later();
        if rank.rank() != 3 {
            let error = rank.all_gather_until(b"x", deadline).unwrap_err();
            let ErrorKind::Timeout { absent, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(*absent, [3]);
        }
        rank
    });
}

#[test]
fn absent_ranks_of_a_swap_are_named() {
    job(3, &fresh(), |mut rank| {
        if rank.rank() == 0 {
            let deadline = Instant::now() + Duration::from_millis(200);
            let error = rank.exchange(deadline).swap(&[(2, vec![])]).unwrap_err();
            let ErrorKind::Timeout { absent, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(*absent, [2]);
        }
        rank
    });
}

#[test]
fn a_rank_that_is_excluded_is_lost_to_all_and_learns_it() {
    // Rank 1 is the parent of 8, and the only way from there to the others.
    job(9, &fresh(), |mut rank| {
        rank.barrier().unwrap();
        if rank.rank() == 8 {
            rank.exclude(&[1]);
        }
        let end = soon();
        let error = loop {
            if let Err(error) = rank.check() {
                break error;
            }
            assert!(Instant::now() < end, "rank {} never noticed", rank.rank());
            std::thread::yield_now();
        };
        if rank.rank() == 1 {
            assert!(matches!(error.kind(), ErrorKind::Excluded { .. }), "{error}");
            return;
        }
        let ErrorKind::PeerLost { peer, cause, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((*peer, cause.as_str()), (1, "rank 8 has excluded it"));
        let told = rank.all_gather_until(b"", soon()).unwrap_err();
        assert!(matches!(told.kind(), ErrorKind::PeerLost { peer: 1, .. }), "{told}");
        // Those that are left agree, also now.
        let agreement = rank.agree(!(1 << rank.rank()), &[rank.rank() as u8], soon()).unwrap();
        assert_eq!((agreement.flags, agreement.gone), (!0b1_1111_1101, vec![1]));
        assert_eq!(agreement.blob, [0]);
    });
}

fn join_both(a: (u32, u32), b: (u32, u32), deadline: Instant) -> [Result<Bootstrap>; 2] {
    let id = fresh();
    let config = config(&[]);
    std::thread::scope(|scope| {
        let join = |(rank, ranks)| {
            let (id, config) = (&id, &config);
            scope.spawn(move || Bootstrap::join(id, rank, ranks, config, deadline))
        };
        [join(a), join(b)].map(|t| t.join().unwrap())
    })
}

#[test]
fn a_doubled_rank_is_sent_away() {
    let errors = join_both((0, 2), (0, 2), later()).map(|r| r.unwrap_err().to_string());
    assert_eq!(errors.iter().filter(|e| e.contains("is there already")).count(), 1, "{errors:?}");
    assert_eq!(errors.iter().filter(|e| e.contains("absent ranks: 1")).count(), 1, "{errors:?}");
}

#[test]
fn different_sizes_are_told_to_all() {
    for error in join_both((0, 2), (1, 3), soon()).map(|r| r.unwrap_err().to_string()) {
        assert!(error.contains("as one of 3") && error.contains("of 2"), "{error}");
    }
    let nobody = Bootstrap::join(&fresh(), 2, 2, &config(&[]), soon()).unwrap_err();
    assert!(matches!(nobody.kind(), ErrorKind::InvalidArgument { .. }));
}

#[test]
fn the_id_of_another_job_is_told_apart() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = config(&[]);
    let deadline = later();
    std::thread::scope(|scope| {
        let config = &config;
        let join = |rank: u32, seed: &'static [u8]| {
            scope.spawn(move || {
                let id = UniqueId::from_rendezvous(free, seed);
                Bootstrap::join(&id, rank, 2, config, deadline).unwrap_err().to_string()
            })
        };
        let (ours, other) = (join(0, b"this job"), join(1, b"other job"));
        assert!(ours.join().unwrap().contains("absent ranks: 1"));
        let error = other.join().unwrap();
        assert!(error.contains("rank 0's root service was not reached"), "{error}");
    });
}

#[test]
fn a_port_range_is_kept_and_its_end_told() {
    // Somebody else may take a port that was free a moment ago.
    let one_port = || {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let range = format!("{free}-{free}");
        let narrow = config(&[("RDMACCL_PORT_RANGE", &range), ("RDMACCL_INIT_TIMEOUT", "1")]);
        UniqueId::create(&narrow).map(|id| (free, range, narrow, id))
    };
    let created = (0..9).find_map(|_| one_port().ok());
    let (free, range, narrow, id) = created.unwrap_or_else(|| one_port().unwrap());
    assert!(format!("{id:?}").contains(&format!(":{free}")));
    let error = UniqueId::create(&narrow).unwrap_err().to_string();
    assert!(error.contains(&range) && error.contains("RDMACCL_PORT_RANGE"), "{error}");
}

#[test]
fn strangers_do_not_delay_a_job() {
    let id = fresh();
    let text = format!("{id:?}");
    let port: u16 = text.rsplit_once("127.0.0.1:").unwrap().1.split(']').next().unwrap().parse().unwrap();
    let strangers: Vec<TcpStream> = (0..150)
        .map(|i| {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let words: &[u8] = match i % 3 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\n\r\n",
                _ => b"rdmaccl\x01\x01\x00\x01",
            };
            // It may have been turned away already.
            let _ = stranger.write_all(words);
            stranger
        })
        .collect();
    job(4, &id, everything);
    drop(strangers);
}

#[test]
fn ipv6_alone_is_enough() {
    if TcpListener::bind("[::1]:0").is_err() {
        return; // no IPv6 on this machine
    }
    let config = config(&[("RDMACCL_SOCKET_FAMILY", "6"), ("RDMACCL_SOCKET_IFNAME", "=lo")]);
    let id = UniqueId::create(&config).unwrap();
    assert!(format!("{id:?}").contains("[::1]"));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (id, config) = (&id, &config);
            scope.spawn(move || everything(Bootstrap::join(id, rank, 2, config, soon()).unwrap()));
        }
    });
}

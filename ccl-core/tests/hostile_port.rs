//! Strangers and liars at the bootstrap's ports, over real sockets. A job either goes on as if they were not there, or ends
//! with an error that names what is wrong; and nothing of them stays.

mod hostile;

use ccl_core::bootstrap::{Bootstrap, UniqueId};
use ccl_core::config::Config;
use ccl_core::error::{ErrorKind, Result};
use ccl_core::transport::Exchange;
use hostile::{Impostor, JOIN, STREAM, TREE, connect, hello, root_of, secret_of, version_at};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One test at a time: they count what the process holds.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    one
}

/// Descriptors, and threads of the library: the harness has some too, and starts and ends them.
fn held() -> (usize, usize) {
    let entries = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().flatten();
    let ours = |task: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("rdmaccl-") || name.starts_with("ccl-")
    };
    (entries("fd").count(), entries("task").filter(ours).count())
}

/// Runs `body` and waits until the process holds no more than before.
fn leaving_nothing(body: impl FnOnce()) {
    let before = held();
    body();
    let end = soon();
    while held().0 > before.0 || held().1 > before.1 {
        assert!(Instant::now() < end, "left: {:?}, before: {before:?} (descriptors, threads)", held());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn config() -> Config {
    let vars = [("RDMACCL_SOCKET_IFNAME", "=lo"), ("RDMACCL_SOCKET_FAMILY", "4")];
    Config::from_vars(vars.map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
}

fn fresh() -> UniqueId {
    UniqueId::create(&config()).unwrap()
}

fn join_by(id: &UniqueId, rank: u32, ranks: u32, deadline: Instant) -> Result<Bootstrap> {
    Bootstrap::join(id, rank, ranks, &config(), deadline)
}

/// All ranks of a job as threads; each gathers, swaps with the others, opens streams to them, and leaves.
fn job(id: &UniqueId, ranks: u32) {
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || work(join_by(id, rank, ranks, soon()).unwrap()));
        }
    });
}

fn work(mut joined: Bootstrap) {
    let (own, ranks) = (joined.rank(), joined.ranks());
    for turn in 0..20 {
        let all = joined.all_gather(&[turn, own as u8]).unwrap();
        assert!((0..).zip(&all).all(|(rank, bytes)| *bytes == [turn, rank]), "{all:?}");
    }
    let peers: Vec<_> = (0..ranks).filter(|r| *r != own).map(|r| (r, vec![own as u8])).collect();
    let blobs = joined.exchange(soon()).swap(&peers).unwrap();
    assert!(blobs.iter().zip(&peers).all(|(blob, (peer, _))| *blob == [*peer as u8]));
    let wanted: Vec<_> = peers.iter().map(|(peer, _)| (*peer, 2)).collect();
    let mut exchange = joined.exchange(soon());
    let streams = exchange.streams(&wanted).unwrap();
    exchange.swap(&peers).unwrap();
    for stream in streams.iter().flatten() {
        (&*stream).write_all(&[own as u8]).unwrap();
    }
    for (mut stream, (peer, _)) in
        streams.iter().flat_map(|both| both.iter()).zip(peers.iter().flat_map(|p| [p, p]))
    {
        let mut heard = [0];
        stream.set_nonblocking(false).unwrap();
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, [*peer as u8]);
    }
    joined.barrier().unwrap();
}

/// Something that a stranger may begin with.
fn opening(kind: usize, version: u16) -> Vec<u8> {
    match kind % 9 {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        2 => b"rdmaccl\x01".to_vec(),
        3 => hello(&[7; 32], version, JOIN),
        4 => hello(&[7; 32], version + 1, TREE),
        5 => hello(&[7; 32], version, 200),
        6 => vec![0xff; 100_000],
        7 => hello(&[7; 32], version, STREAM),
        _ => hello(&[7; 32], version, JOIN)[..50].to_vec(),
    }
}

/// Calls at `ports` until it is told to stop: strangers of all kinds, of which up to `crowd` stay connected.
fn besiege(addresses: &[SocketAddr], crowd: usize, version: u16, stop: &AtomicBool) -> usize {
    let mut strangers: Vec<TcpStream> = Vec::new();
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        for address in addresses {
            let Ok(mut stranger) = TcpStream::connect(address) else { continue };
            stranger.set_nonblocking(true).unwrap();
            // It may have been turned away already.
            let _ = stranger.write(&opening(calls, version));
            calls += 1;
            strangers.push(stranger);
        }
        if strangers.len() > crowd {
            strangers.drain(..crowd / 2);
        }
    }
    calls
}

/// Runs `body` while strangers besiege the addresses; at least `least` of them have called in the end.
fn besieged(addresses: &[SocketAddr], least: usize, body: impl FnOnce()) {
    let version = version_at(addresses[0]);
    let (stop, calls) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // So many first, and then as long as it takes.
            let mut strangers = Vec::new();
            for kind in 0..least {
                if let Ok(mut stranger) = TcpStream::connect(addresses[kind % addresses.len()]) {
                    stranger.set_nonblocking(true).unwrap();
                    let _ = stranger.write(&opening(kind, version));
                    strangers.push(stranger);
                }
            }
            calls.store(least, Ordering::Relaxed);
            besiege(addresses, 300, version, &stop);
        });
        body();
        stop.store(true, Ordering::Relaxed);
    });
    assert!(calls.load(Ordering::Relaxed) >= least);
}

#[test]
fn thousands_of_strangers_at_the_root_delay_nobody_and_leave_nothing() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        besieged(&[root_of(&id)], 2000, || job(&id, 4));
    });
}

#[test]
fn strangers_at_the_listeners_of_ranks_hold_up_no_swap_and_no_gather() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let id = &id;
                scope.spawn(move || {
                    let joined = join_by(id, rank, 3, soon()).unwrap();
                    let all: Vec<SocketAddr> = joined.peers().iter().map(|peer| peer.address).collect();
                    match rank {
                        // The others wait for it in the middle of the siege.
                        0 => besieged(&all, 900, || work(joined)),
                        _ => work(joined),
                    }
                });
            }
        });
    });
}

#[test]
fn one_byte_at_a_time_and_silence_end_at_the_same_deadline() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        let (address, version) = (root_of(&id), version_at(root_of(&id)));
        let slow: Vec<_> = [hello(&secret_of(&id), version, JOIN), Vec::new(), b"rdmaccl".to_vec()].into();
        std::thread::scope(|scope| {
            for bytes in slow {
                scope.spawn(move || {
                    let start = Instant::now();
                    let mut stranger = connect(address).unwrap();
                    // A byte in so long that the whole would never be there in time.
                    stranger.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
                    let mut bytes = bytes.into_iter();
                    while let Err(error) = stranger.read_exact(&mut [0]) {
                        match error.kind() {
                            std::io::ErrorKind::WouldBlock => {}
                            _ => return assert!(start.elapsed() > Duration::from_secs(3), "{error}"),
                        }
                        assert!(start.elapsed() < Duration::from_secs(40), "it was never dropped");
                        let _ = bytes.next().map(|byte| stranger.write(&[byte]));
                    }
                    panic!("a byte came for a stranger");
                });
            }
        });
        job(&id, 2);
    });
}

#[test]
fn another_version_is_told_ours_and_has_no_effect() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        let address = root_of(&id);
        let version = version_at(address);
        for other in [0, version + 1, u16::MAX] {
            let mut stranger = connect(address).unwrap();
            stranger.write_all(&hello(&secret_of(&id), other, JOIN)).unwrap();
            let mut answer = Vec::new();
            stranger.read_to_end(&mut answer).unwrap();
            assert_eq!(answer[8..11], [version.to_le_bytes()[0], version.to_le_bytes()[1], 2]);
            assert!(answer[43..].iter().all(|byte| *byte == 0), "a proof for a stranger");
        }
        job(&id, 2);
    });
}

#[test]
fn a_conversation_that_is_said_again_is_not_heard_again() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        let mut liar = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
        liar.join(9, 2, Some(root_of(&id)));
        assert!(liar.refusal().contains("rank 9"));
        let mut replay = connect(root_of(&id)).unwrap();
        replay.write_all(&liar.record).unwrap();
        let mut answer = Vec::new();
        let _ = replay.read_to_end(&mut answer);
        assert_eq!(answer.len(), 59, "more than the answer to a hello");
        job(&id, 2);
    });
}

#[test]
fn a_join_that_cannot_be_is_told_so_and_decides_nothing() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        let here = Some(root_of(&id));
        for (rank, ranks, address, told) in [
            (2, 2, here, "rank 2 (host liar, process 1) says that it is one of 2 ranks"),
            (0, 0, here, "one of 0 ranks"),
            (5, u32::MAX, here, "one of 4294967295 ranks, of which there are 1 to 8192"),
            (u32::MAX, u32::MAX, here, "rank 4294967295"),
            (1, 2, None, "rank 1 (host liar, process 1) has announced no address"),
        ] {
            let mut liar = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
            liar.join(rank, ranks, address);
            let refusal = liar.refusal();
            assert!(refusal.contains(told), "{refusal}");
        }
        job(&id, 2);
    });
}

/// What rank 0 of three is told when this comes as another rank, after it.
fn told(lie: impl FnOnce(&mut Impostor, SocketAddr)) -> String {
    let id = fresh();
    let mut first = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
    first.join(0, 3, Some(root_of(&id)));
    // Let in after that was said, and so heard after it.
    let mut second = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
    lie(&mut second, root_of(&id));
    first.refusal()
}

#[test]
fn lies_at_the_root_end_the_job_with_their_name() {
    let _one = alone();
    leaving_nothing(|| {
        let other_size = told(|liar, at| liar.join(1, 4, Some(at)));
        assert!(other_size.contains("as one of 4") && other_size.contains("as one of 3"), "{other_size}");
        let twice = told(|liar, at| {
            liar.join(1, 3, Some(at));
            liar.join(1, 3, Some(at));
        });
        assert!(twice.contains("rank 1 spoke out of turn"), "{twice}");
        // Who comes second is sent away, and the job goes on.
        let id = fresh();
        let mut ranks = [0; 2].map(|_| {
            let mut rank = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
            rank.join(0, 2, Some(root_of(&id)));
            rank
        });
        let doubled = ranks[1].refusal();
        assert!(doubled.contains("rank 0 (host liar, process 1) is there already"), "{doubled}");
        let mut second = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
        second.join(1, 2, Some(root_of(&id)));
        assert_eq!(second.welcome(), ranks[0].welcome());
    });
}

type Lie = fn(&mut Impostor);

#[test]
fn frames_that_no_rank_sends_are_named_with_their_sender() {
    let _one = alone();
    leaving_nothing(|| {
        let lies: [(&str, Lie); 6] = [
            ("longer than allowed", |liar| liar.say_as_long(u32::MAX, 6, &[0; 4])),
            ("kind", |liar| liar.say(99, &[])),
            ("shorter than it says", |liar| liar.say(3, &u32::MAX.to_le_bytes())),
            ("bytes after the end", |liar| liar.say(6, &[0; 5])),
            ("longer than allowed", |liar| liar.say(4, &[0xff; 60_000])),
            ("wrong MAC", |liar| liar.say_as_long(3, 6, &[0; 4])),
        ];
        for (cause, lie) in lies {
            let text = told(|liar, at| {
                liar.join(1, 3, Some(at));
                lie(liar);
            });
            assert!(text.contains("rank 1 (host liar, process 1) left during initialisation"), "{text}");
            assert!(text.contains(cause), "{cause}: {text}");
        }
    });
}

#[test]
fn one_that_joined_and_never_connects_is_named_at_the_deadline() {
    let _one = alone();
    leaving_nothing(|| {
        let id = fresh();
        let deadline = Instant::now() + Duration::from_secs(8);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| join_by(&id, 0, 2, deadline).unwrap_err());
            let mut liar = Impostor::connect(root_of(&id), &secret_of(&id), JOIN);
            liar.join(1, 2, Some(root_of(&id)));
            let session = liar.welcome();
            let error = honest.join().unwrap();
            let ErrorKind::Timeout { absent, phase, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((&absent[..], phase.as_str()), (&[1][..], "connecting the control tree"));
            assert!(Instant::now() >= deadline && session != secret_of(&id));
        });
    });
}

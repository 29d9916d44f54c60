//! Between processes: the test binary starts itself again as the other ranks.

mod common;

use ccl_core::kernels::{Buffers, Direction, PieceMut};
use ccl_core::transport::conformance::{mesh, receive, send, stress};
use ccl_core::transport::{Fabric, LinkKey, Offer, Refer, Stretch, Transport};
use ccl_transport_shm::{SharedMemory, ShmConfig, ShmTransport};
use common::SocketExchange;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const RANKS: u32 = 3;
const FOREVER: Duration = Duration::from_secs(3600);

/// Starts `test` of this binary again as another rank.
fn start(test: &str, group: &str, rank: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
    // Its harness reports a test of its own; this process does that for both.
    command.stdout(Stdio::null());
    command.env("SHM_TEST_GROUP", group).env("SHM_TEST_RANK", rank.to_string()).spawn().unwrap()
}

/// Runs `rank` in each of `ranks` processes; the first of them is this one.
fn in_processes(test: &str, ranks: u32, rank: impl Fn(u32, &str)) {
    if let Ok(number) = std::env::var("SHM_TEST_RANK") {
        return rank(number.parse().unwrap(), &std::env::var("SHM_TEST_GROUP").unwrap());
    }
    let group = format!("{test}-{}", std::process::id());
    let others: Vec<_> = (1..ranks).map(|rank| start(test, &group, rank)).collect();
    rank(0, &group);
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
}

fn config() -> ShmConfig {
    ShmConfig { slot_bytes: 8192, credits: Some(4), ..ShmConfig::default() }
}

fn open(rank: u32, ranks: u32, channels: u16, exchange: &mut SocketExchange) -> ShmTransport {
    let mut transport = ShmTransport::new(rank, ranks, &config()).unwrap();
    let links: Vec<_> =
        mesh(ranks, channels).into_iter().filter(|l| l.from == rank || l.to == rank).collect();
    transport.connect(&links, exchange).unwrap();
    transport
}

#[test]
fn a_seeded_stress() {
    in_processes("a_seeded_stress", RANKS, |rank, group| {
        let mut exchange = SocketExchange::new(group, rank);
        let mut transport = open(rank, RANKS, 2, &mut exchange);
        stress(&mut transport, rank, RANKS, 300);
        // Channels opened later need no descriptor any more.
        let more: Vec<_> = mesh(RANKS, 3).into_iter().filter(|l| l.from == rank || l.to == rank).collect();
        transport.connect(&more, &mut exchange).unwrap();
        let next = (rank + 1) % RANKS;
        let to = transport.sender(&[next], 2).unwrap();
        assert!(send(&mut transport, to, b"later", 5));
        let from = transport.receiver((rank + RANKS - 1) % RANKS, 2).unwrap();
        let got = loop {
            match receive(&mut transport, from) {
                Some(got) => break got,
                None => transport.park(FOREVER).unwrap(),
            }
        };
        assert_eq!(got, (b"later".to_vec(), 5));
    });
}

/// Each side sleeps until the other has answered: a lost wake-up between processes would stop the test.
#[test]
fn sleepers_are_woken() {
    in_processes("sleepers_are_woken", 2, |rank, group| {
        let mut transport = open(rank, 2, 1, &mut SocketExchange::new(group, rank));
        let peer = 1 - rank;
        let (to, from) = (transport.sender(&[peer], 0).unwrap(), transport.receiver(peer, 0).unwrap());
        for k in 0..500u64 {
            if rank == 0 {
                assert!(send(&mut transport, to, &k.to_le_bytes(), k));
            }
            while transport.peek(from).unwrap().is_none() {
                transport.park(FOREVER).unwrap();
            }
            assert_eq!(receive(&mut transport, from), Some((k.to_le_bytes().to_vec(), k)));
            if rank == 1 {
                assert!(send(&mut transport, to, &k.to_le_bytes(), k));
            }
        }
    });
}

/// A piece in shared memory is read where it lies, nothing of it goes through a slot, and when the memory is freed
/// the reader's mapping goes too. More letters than a mailbox holds cost nothing but slots.
#[test]
fn references_cross_processes() {
    in_processes("references_cross_processes", 2, |rank, group| {
        let mut exchange = SocketExchange::new(group, rank);
        let mut transport = open(rank, 2, 1, &mut exchange);
        if rank == 0 {
            let to = transport.sender(&[1], 0).unwrap();
            let mut memory = SharedMemory::alloc(3 << 20).unwrap();
            for round in 0..3u8 {
                memory.fill(round + 1);
                let piece = Buffers::new(&memory[round.into()..], &mut []).input();
                assert_eq!(transport.refer(to, piece).unwrap(), Refer::Ready);
                transport.publish(to, round.into()).unwrap();
                while !transport.settled(to).unwrap() {
                    transport.park(FOREVER).unwrap();
                }
            }
            exchange.meet(1);
            drop(memory);
            exchange.meet(1);
            exchange.meet(1);
            // Nobody reads the mail meanwhile.
            let rows: Vec<_> = (0..100).map(|_| SharedMemory::alloc(1).unwrap()).collect();
            let mut told = 0;
            for row in &rows {
                let row = Buffers::new(row, &mut []).input();
                if transport.refer(to, row).unwrap() == Refer::Ready {
                    told += 1;
                } else {
                    assert!(transport.reserve(to, 8).unwrap().is_some());
                    transport.publish(to, 0).unwrap();
                    break;
                }
            }
            assert!((1..100).contains(&told), "{told} of 100 letters");
            exchange.meet(1);
            while !transport.settled(to).unwrap() {
                transport.park(FOREVER).unwrap();
            }
        } else {
            let from = transport.receiver(0, 0).unwrap();
            let next = |transport: &mut ShmTransport| loop {
                match receive(transport, from) {
                    Some((bytes, tag)) => break (bytes, tag),
                    None => transport.park(FOREVER).unwrap(),
                }
            };
            for round in 0..3u8 {
                let wanted = vec![round + 1; (3 << 20) - usize::from(round)];
                assert!(next(&mut transport) == (wanted, round.into()), "round {round}");
            }
            let link = transport.counters().into_iter().find(|(link, _)| link.from == 0).unwrap().1;
            assert_eq!((link.pieces, link.referenced, link.bytes), (3, 3, link.referenced_bytes));
            assert_eq!(borrowed_mappings(), 1);
            exchange.meet(0);
            exchange.meet(0);
            transport.park(Duration::ZERO).unwrap();
            assert_eq!(borrowed_mappings(), 0, "the memory was freed");
            exchange.meet(0);
            exchange.meet(0);
            assert_eq!(next(&mut transport), (vec![0; 8], 0));
        }
    });
}

/// What a rank offers another process writes to, and nothing goes through a slot.
#[test]
fn offers_cross_processes() {
    in_processes("offers_cross_processes", 2, |rank, group| {
        const PIECE: usize = 100_000;
        let mut exchange = SocketExchange::new(group, rank);
        let mut transport = open(rank, 2, 1, &mut exchange);
        if rank == 0 {
            let to = transport.sender(&[1], 0).unwrap();
            for round in 0..3u8 {
                exchange.meet(1);
                for k in 0..4 {
                    let mut sinks = [PieceMut::EMPTY];
                    assert_eq!(
                        transport.reserve_offered(to, Stretch::one(PIECE), round.into(), &mut sinks).unwrap(),
                        1
                    );
                    let row = vec![16 * round + k; PIECE];
                    sinks[0].copy_from(Buffers::new(&row, &mut []).input());
                    transport.publish(to, round.into()).unwrap();
                }
            }
            exchange.meet(1);
            assert_eq!(borrowed_mappings(), 2);
        } else {
            let from = transport.receiver(0, 0).unwrap();
            let mut memory = [4 * PIECE, 4 * PIECE + 77].map(|len| SharedMemory::alloc(len).unwrap());
            for round in 0..3u8 {
                // The second twice, from a place further on.
                let skip = 7 * usize::from(round);
                let row = &mut memory[usize::from(round).min(1)][skip..skip + 4 * PIECE];
                let sink = Buffers::new(&[], row).output();
                transport
                    .offer(
                        from,
                        Offer { tag: round.into(), sink, piece: PIECE, direction: Direction::Forwards },
                    )
                    .unwrap();
                exchange.meet(0);
                for k in 0..4 {
                    let arrival = loop {
                        match transport.peek(from).unwrap() {
                            Some(arrival) => break arrival,
                            None => transport.park(FOREVER).unwrap(),
                        }
                    };
                    assert!(arrival.piece.is(sink.slice(usize::from(k) * PIECE, PIECE).as_piece()));
                    transport.release(from).unwrap();
                    let place = skip + usize::from(k) * PIECE;
                    assert!(memory[usize::from(round).min(1)][place..][..PIECE] == [16 * round + k; PIECE]);
                }
            }
            let link = transport.counters().into_iter().find(|(link, _)| link.from == 0).unwrap().1;
            assert_eq!((link.pieces, link.direct, link.direct_bytes), (12, 12, 12 * PIECE as u64));
            exchange.meet(0);
        }
    });
}

/// A rank that withdraws names the one that stands still while it writes, and waits for none that is gone.
#[test]
fn whoever_stands_still_while_it_writes_is_named() {
    const TEST: &str = "whoever_stands_still_while_it_writes_is_named";
    let as_rank = |rank: u32, group: &str| {
        let mut exchange = SocketExchange::new(group, rank);
        let transport = open(rank, 2, 1, &mut exchange);
        (transport, exchange)
    };
    if std::env::var("SHM_TEST_RANK").is_ok() {
        let (mut transport, mut exchange) = as_rank(1, &std::env::var("SHM_TEST_GROUP").unwrap());
        let to = transport.sender(&[0], 0).unwrap();
        exchange.meet(0);
        assert_eq!(transport.reserve_offered(to, Stretch::one(5000), 3, &mut [PieceMut::EMPTY]).unwrap(), 1);
        exchange.meet(0);
        transport.park(FOREVER).unwrap();
        return;
    }
    let group = format!("{TEST}-{}", std::process::id());
    let mut child = start(TEST, &group, 1);
    let (mut transport, mut exchange) = as_rank(0, &group);
    let from = transport.receiver(1, 0).unwrap();
    let mut memory = SharedMemory::alloc(5000).unwrap();
    let sink = Buffers::new(&[], &mut memory).output();
    transport.offer(from, Offer { tag: 3, sink, piece: 5000, direction: Direction::Forwards }).unwrap();
    exchange.meet(1);
    exchange.meet(1);
    assert_eq!(transport.withdraw(), [1]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(transport.withdraw().is_empty());
}

/// Mappings of memory that a peer has lent, in a process that has none of its own.
fn borrowed_mappings() -> usize {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap();
    mappings.lines().filter(|line| line.contains("/memfd:rdmaccl-buffer")).count()
}

/// A killed rank leaves its last pieces readable, and neither a file nor a socket.
#[test]
fn a_killed_process_leaves_nothing() {
    const TEST: &str = "a_killed_process_leaves_nothing";
    let as_rank = |rank: u32, group: &str| {
        let mut exchange = SocketExchange::new(group, rank);
        let transport = open(rank, 2, 1, &mut exchange);
        (transport, exchange)
    };
    if std::env::var("SHM_TEST_RANK").is_ok() {
        let (mut transport, mut exchange) = as_rank(1, &std::env::var("SHM_TEST_GROUP").unwrap());
        let to = transport.sender(&[0], 0).unwrap();
        assert!(send(&mut transport, to, &[7; 5000], 3));
        let mut memory = SharedMemory::alloc(6000).unwrap();
        memory.fill(8);
        assert_eq!(transport.refer(to, Buffers::new(&memory, &mut []).input()).unwrap(), Refer::Ready);
        transport.publish(to, 4).unwrap();
        exchange.meet(0);
        transport.park(FOREVER).unwrap();
        return;
    }
    let group = format!("{TEST}-{}", std::process::id());
    let mut child = start(TEST, &group, 1);
    let (mut transport, mut exchange) = as_rank(0, &group);
    exchange.meet(1);
    let sockets = sockets_of(child.id());
    assert!(sockets.iter().any(|inode| is_unix_socket(inode)));
    child.kill().unwrap();
    child.wait().unwrap();
    let from = transport.receiver(1, 0).unwrap();
    assert_eq!(receive(&mut transport, from), Some((vec![7; 5000], 3)));
    assert_eq!(receive(&mut transport, from), Some((vec![8; 6000], 4)), "its shared memory went with it");
    assert!(!sockets.iter().any(|inode| is_unix_socket(inode)), "a socket is left");
    let named = std::fs::read_dir("/dev/shm").map(|files| {
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().contains("rdmaccl")).count()
    });
    assert_eq!(named.unwrap_or(0), 0);
}

/// The inodes of a process's sockets.
fn sockets_of(process: u32) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    let inode = |link: std::path::PathBuf| {
        let name = link.to_string_lossy().into_owned();
        Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())
    };
    links.filter_map(inode).collect()
}

fn is_unix_socket(inode: &str) -> bool {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    table.lines().any(|line| line.split_whitespace().nth(6) == Some(inode))
}

/// Ranks with different settings, or that open different links, are told so.
#[test]
fn disagreement_is_an_error() {
    in_processes("disagreement_is_an_error", 2, |rank, group| {
        let mut exchange = SocketExchange::new(group, rank);
        let credits = 4 + rank;
        let mut transport =
            ShmTransport::new(rank, 2, &ShmConfig { credits: Some(credits), ..ShmConfig::default() })
                .unwrap();
        let link = LinkKey { from: 0, to: 1, channel: 0 };
        let error = transport.connect(&[link], &mut exchange).unwrap_err().to_string();
        assert!(error.contains("settings must agree"), "{error}");
        let mut transport = ShmTransport::new(rank, 2, &config()).unwrap();
        let link = LinkKey { from: 0, to: 1, channel: rank as u16 };
        let error = transport.connect(&[link], &mut exchange).unwrap_err().to_string();
        assert!(error.contains("both must open the same"), "{error}");
    });
}

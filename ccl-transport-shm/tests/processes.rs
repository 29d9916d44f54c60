//! Between processes: the test binary starts itself again as the other ranks.

mod common;

use ccl_core::transport::conformance::{mesh, receive, send, stress};
use ccl_core::transport::{Fabric, LinkKey, Transport};
use ccl_transport_shm::{ShmConfig, ShmTransport};
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
    ShmConfig { slot_bytes: 8192, credits: 4, ..ShmConfig::default() }
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
            ShmTransport::new(rank, 2, &ShmConfig { credits, ..ShmConfig::default() }).unwrap();
        let link = LinkKey { from: 0, to: 1, channel: 0 };
        let error = transport.connect(&[link], &mut exchange).unwrap_err().to_string();
        assert!(error.contains("settings must agree"), "{error}");
        let mut transport = ShmTransport::new(rank, 2, &config()).unwrap();
        let link = LinkKey { from: 0, to: 1, channel: rank as u16 };
        let error = transport.connect(&[link], &mut exchange).unwrap_err().to_string();
        assert!(error.contains("both must open the same"), "{error}");
    });
}

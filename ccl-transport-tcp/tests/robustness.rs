//! What a peer may do: go, stop in the middle, or send what nobody would.

use ccl_core::error::ErrorKind;
use ccl_core::transport::conformance::{connect, mesh, receive, send, stream_pair};
use ccl_core::transport::{Exchange, Fabric, LinkKey, ReceiverId, SenderId, Transport};
use ccl_core::{Error, Rank, Result};
use ccl_transport_tcp::{TcpConfig, TcpTransport};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

fn config() -> TcpConfig {
    TcpConfig {
        slot_bytes: Some(4096),
        credits: Some(4),
        sockets: 1,
        addresses: vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
        host: "left".into(),
    }
}

/// Stands for rank 1, which the test plays: it wants the same links and says the same words.
struct Puppet {
    theirs: Vec<TcpStream>,
    /// Where its words differ from this rank's: at which byte, and what is there.
    differs: (usize, u8),
}

impl Exchange for Puppet {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let answer = |(_, blob): &(Rank, Vec<u8>)| {
            let mut blob = blob.clone();
            // The rank's number.
            blob[32] = 1;
            blob[self.differs.0] = self.differs.1;
            blob
        };
        Ok(blobs.iter().map(answer).collect())
    }

    fn streams(&mut self, wanted: &[(Rank, u16)]) -> Result<Vec<Vec<TcpStream>>> {
        assert_eq!(wanted, [(1, 1)]);
        let (ours, theirs) = stream_pair();
        self.theirs.push(theirs);
        Ok(vec![vec![ours]])
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(60)
    }
}

/// Rank 0 with a link each way to rank 1, and rank 1's end of the socket.
fn played() -> (TcpTransport, SenderId, ReceiverId, TcpStream) {
    let mut rank = TcpTransport::new(0, 2, &config()).unwrap();
    let mut puppet = Puppet { theirs: Vec::new(), differs: (32, 1) };
    rank.connect(&mesh(2, 1), &mut puppet).unwrap();
    let (to, from) = (rank.sender(&[1], 0).unwrap(), rank.receiver(1, 0).unwrap());
    (rank, to, from, puppet.theirs.remove(0))
}

/// A header as the wire has it.
fn header(kind: u8, channel: u16, [len, number, released]: [u32; 3], tag: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(channel.to_le_bytes());
    [len, number, released].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(tag.to_le_bytes());
    bytes
}

/// Looks until there is something, or an error.
fn wait(rank: &mut TcpTransport, from: ReceiverId) -> Result<()> {
    while rank.peek(from)?.is_none() {
        rank.park(Duration::from_secs(60))?;
    }
    Ok(())
}

fn assert_names_the_peer(error: &Error, what: &str) {
    assert!(matches!(error.kind(), ErrorKind::Transport { transport: "tcp", peer: Some(1), .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(what) && text.contains("127.0.0.1:") && text.contains("on left"), "{text}");
}

#[test]
fn garbage_is_an_error_that_names_the_peer() {
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: left\r\n\r\n".to_vec(), "a header that is none"),
        (header(3, 0, [0, 0, 0], 0), "a header that is none"),
        (header(2, 0, [5, 0, 0], 0), "a header that is none"),
        (header(1, 0, [4097, 0, 0], 0), "longer than a slot"),
        (header(1, 0, [u32::MAX, 0, 0], 0), "longer than a slot"),
        (header(1, 0, [0, 1, 0], 0), "out of order"),
        (header(1, 9, [0, 0, 0], 0), "not open"),
        (header(2, 9, [0, 0, 0], 0), "not open"),
        (header(1, 0, [0, 0, 1], 0), "never sent"),
        (header(2, 0, [0, 0, u32::MAX], 0), "never sent"),
        (
            (0..6).flat_map(|number| header(1, 0, [0, number, 0], 0)).collect(),
            "more pieces than there are credits",
        ),
    ];
    for (bytes, what) in cases {
        let (mut rank, to, from, mut stream) = played();
        stream.write_all(&bytes).unwrap();
        let error = loop {
            if let Err(error) = rank.park(Duration::from_secs(60)) {
                break error;
            }
        };
        assert_names_the_peer(&error, what);
        while rank.peek(from).is_ok_and(|piece| piece.is_some()) {
            rank.release(from).unwrap();
        }
        assert_names_the_peer(&rank.peek(from).unwrap_err(), what);
        assert!(rank.reserve(to, 1).is_err() || rank.publish(to, 0).is_err());
    }
}

/// Right frames with wrong bytes among them, and bytes of no kind: an error or none, and nothing worse.
#[test]
fn no_bytes_do_more_than_end_the_connection() {
    let mut dice = 1u64;
    let mut next = || {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize
    };
    for _ in 0..300 {
        let (mut rank, to, from, mut stream) = played();
        assert!(send(&mut rank, to, b"one", 0));
        let right =
            |number| [header(1, 0, [7, number, 0], 1), vec![1; 7], header(2, 0, [0, 0, 1], 0)].concat();
        let mut bytes: Vec<u8> = (0..3).flat_map(right).collect();
        for _ in 0..1 + next() % 3 {
            let at = next() % bytes.len();
            bytes[at] = next() as u8;
        }
        stream.write_all(&bytes).unwrap();
        drop(stream);
        // The stream ends, so there is an error in the end.
        loop {
            match rank.peek(from) {
                Ok(Some(arrival)) => {
                    assert!(arrival.piece.len() <= 4096);
                    rank.release(from).unwrap();
                }
                Ok(None) => drop(rank.park(Duration::from_secs(60))),
                Err(_) => break,
            }
        }
    }
}

#[test]
fn a_peer_that_goes_is_an_error_after_its_last_piece() {
    let (mut rank, _, from, mut stream) = played();
    stream.write_all(&header(1, 0, [3, 0, 0], 9)).unwrap();
    stream.write_all(b"abc").unwrap();
    // And the beginning of another one.
    stream.write_all(&header(1, 0, [3000, 1, 0], 9)).unwrap();
    stream.write_all(&[7; 1000]).unwrap();
    drop(stream);
    assert_eq!(receive(&mut rank, from), Some((b"abc".to_vec(), 9)));
    assert_names_the_peer(&wait(&mut rank, from).unwrap_err(), "closed its connection");
    assert!(rank.peek(from).is_err(), "still");
}

#[test]
fn writing_to_a_peer_that_is_gone_is_an_error_and_no_signal() {
    let (mut rank, to, from, stream) = played();
    drop(stream);
    let error = (0..10_000).find_map(|_| rank.reserve(to, 1).and_then(|_| rank.publish(to, 0)).err());
    let error = error.expect("a reset is seen sooner or later");
    assert!(matches!(error.kind(), ErrorKind::Transport { peer: Some(1), .. }), "{error}");
    assert!(wait(&mut rank, from).is_err());
}

#[test]
fn a_piece_may_come_byte_by_byte() {
    let (mut rank, to, from, mut stream) = played();
    let bytes: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
    let frames =
        [header(1, 0, [300, 0, 0], 5), bytes.clone(), header(2, 0, [0, 0, 0], 0), header(1, 0, [0, 1, 0], 6)];
    for byte in frames.concat() {
        assert!(rank.peek(from).unwrap().is_none_or(|piece| piece.piece.len() == 300));
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(receive(&mut rank, from), Some((bytes, 5)));
    wait(&mut rank, from).unwrap();
    assert_eq!(receive(&mut rank, from), Some((vec![], 6)));
    assert!(send(&mut rank, to, b"and back", 1));
}

#[test]
fn peers_whose_words_do_not_fit_are_told_apart() {
    for (at, what) in
        [(0, "version"), (8, "settings must agree"), (16, "both must open the same"), (32, "in its place")]
    {
        let mut rank = TcpTransport::new(0, 2, &config()).unwrap();
        let mut puppet = Puppet { theirs: Vec::new(), differs: (at, 77) };
        let error = rank.connect(&mesh(2, 1), &mut puppet).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// What does not fit into the socket waits in slots, in order, and goes on whenever the other end takes something.
#[test]
fn what_a_socket_does_not_take_stays_until_it_does() {
    let config = TcpConfig { slot_bytes: Some(1 << 20), credits: Some(32), ..config() };
    let mut t: Vec<_> = (0..2).map(|rank| TcpTransport::new(rank, 2, &config).unwrap()).collect();
    connect(&mut t, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let piece = |k: u64| vec![k as u8; (1 << 20) - k as usize];
    for k in 0..32 {
        assert!(send(&mut t[0], to, &piece(k), k));
    }
    assert!(!t[0].flush().unwrap(), "no socket holds 32 MiB");
    assert!(t[0].system_calls().short_writes > 0);
    for k in 0..32 {
        let got = loop {
            match receive(&mut t[1], from) {
                Some(got) => break got,
                None => drop(t[0].flush().unwrap()),
            }
        };
        assert!(got == (piece(k), k), "piece {k}");
    }
    assert!(t[0].flush().unwrap());
}

/// Memory of the user goes without a slot, and is the user's again once the kernel has it.
#[test]
fn lent_memory_is_copied_by_the_kernel_alone() {
    let config = TcpConfig { slot_bytes: Some(1 << 20), credits: Some(32), ..config() };
    let mut t: Vec<_> = (0..2).map(|rank| TcpTransport::new(rank, 2, &config).unwrap()).collect();
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let memory: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let piece = ccl_core::kernels::Buffers::new(&memory, &mut []).input();
    for k in 0..32u64 {
        assert_eq!(t[0].refer(to, piece).unwrap(), ccl_core::transport::Refer::Ready);
        t[0].publish(to, k).unwrap();
    }
    assert!(!t[0].settled(to).unwrap(), "no socket holds 32 MiB");
    assert_eq!(t[0].memory(), 0, "no slot was needed");
    for k in 0..32u64 {
        let got = loop {
            match receive(&mut t[1], from) {
                Some(got) => break got,
                None => drop(t[0].settled(to).unwrap()),
            }
        };
        assert!(got == (memory.clone(), k), "piece {k}");
    }
    assert!(t[0].settled(to).unwrap());
    let counted = t[0].counters().into_iter().find(|(link, _)| link.from == 0).unwrap().1;
    assert_eq!((counted.referenced, counted.referenced_bytes), (32, 32 << 20));
    // A call that fails gives its memory back at once: what has not gone never arrives.
    while t[0].refer(to, piece).unwrap() == ccl_core::transport::Refer::Ready {
        t[0].publish(to, 0).unwrap();
    }
    t[0].withdraw();
    let end = loop {
        match t[1].peek(from) {
            Ok(Some(_)) => t[1].release(from).unwrap(),
            Ok(None) => t[1].park(Duration::from_secs(60)).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end.kind(), ErrorKind::Transport { peer: Some(0), .. }), "{end}");
}

/// What was sent before the sender was dropped arrives, whatever lies unread at the sender.
#[test]
fn the_last_words_of_who_leaves_arrive() {
    let config = TcpConfig { slot_bytes: Some(1 << 16), credits: Some(32), ..config() };
    let mut t: Vec<_> = (0..2).map(|rank| TcpTransport::new(rank, 2, &config).unwrap()).collect();
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let unread = t[1].sender(&[0], 0).unwrap();
    assert!(send(&mut t[1], unread, b"nobody looks at this", 0));
    for k in 0..16 {
        assert!(send(&mut t[0], to, &vec![k as u8; 1 << 16], k));
    }
    let mut other = t.pop().unwrap();
    // It waits for what was sent to be taken.
    let leaving = thread::spawn(move || drop(t));
    let _ = other.reserve(unread, 1).and_then(|_| other.publish(unread, 0));
    for k in 0..16 {
        wait(&mut other, from).unwrap();
        assert_eq!(receive(&mut other, from), Some((vec![k as u8; 1 << 16], k)));
    }
    assert!(wait(&mut other, from).is_err());
    leaving.join().unwrap();
}

/// A connection that ends in one direction only ends for the reader.
#[test]
fn half_a_connection_is_none() {
    let (mut rank, to, from, stream) = played();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_names_the_peer(&wait(&mut rank, from).unwrap_err(), "closed its connection");
    while rank.reserve(to, 1).is_ok_and(|slot| slot.is_some()) && rank.publish(to, 0).is_ok() {}
    assert!(rank.reserve(to, 1).is_err(), "who has closed will release nothing");
}

//! Swapping words between test processes: one abstract datagram socket per rank.

// Each test binary uses its part of it.
#![allow(dead_code, unreachable_pub)]

use ccl_core::transport::Exchange;
use ccl_core::{Rank, Result};
use std::collections::{HashMap, VecDeque};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

pub struct SocketExchange {
    group: String,
    rank: Rank,
    socket: UnixDatagram,
    early: HashMap<Rank, VecDeque<Vec<u8>>>,
    deadline: Instant,
}

impl SocketExchange {
    pub fn new(group: &str, rank: Rank) -> SocketExchange {
        let socket = UnixDatagram::bind_addr(&address(group, rank)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        SocketExchange { group: group.into(), rank, socket, early: HashMap::new(), deadline }
    }

    /// Meets a peer: returns when it has called this too.
    pub fn meet(&mut self, peer: Rank) {
        self.swap(&[(peer, Vec::new())]).unwrap();
    }
}

impl Exchange for SocketExchange {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        for (peer, blob) in blobs {
            let letter = [&self.rank.to_le_bytes()[..], blob].concat();
            while self.socket.send_to_addr(&letter, &address(&self.group, *peer)).is_err() {
                assert!(Instant::now() < self.deadline, "rank {peer} did not come");
                std::thread::yield_now();
            }
        }
        let mut answers = Vec::new();
        for (peer, _) in blobs {
            while self.early.entry(*peer).or_default().is_empty() {
                let mut letter = [0; 4100];
                let len = self.socket.recv(&mut letter).unwrap();
                let from = Rank::from_le_bytes(letter[..4].try_into().unwrap());
                self.early.entry(from).or_default().push_back(letter[4..len].to_vec());
            }
            answers.extend(self.early.get_mut(peer).unwrap().pop_front());
        }
        Ok(answers)
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

fn address(group: &str, rank: Rank) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("rdmaccl-test-{group}-{rank}")).unwrap()
}

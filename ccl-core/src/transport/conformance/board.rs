//! The exchange through which transports of one process connect.

use crate::error::{ErrorKind, Result};
use crate::plan::Rank;
use crate::transport::Exchange;
use std::collections::{HashMap, VecDeque};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// An exchange between threads; the board is shared, each rank holds its own.
#[derive(Clone, Debug)]
pub struct Board {
    rank: Rank,
    letters: Arc<(Mutex<Letters>, Condvar)>,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct Letters {
    blobs: HashMap<(Rank, Rank), VecDeque<Vec<u8>>>,
    /// Ends of streams that the other rank has opened.
    streams: HashMap<(Rank, Rank), Vec<TcpStream>>,
}

impl Board {
    /// One for each rank, with a deadline that no healthy test meets.
    pub fn of(ranks: u32) -> Vec<Board> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let letters = Arc::new((Mutex::new(Letters::default()), Condvar::new()));
        (0..ranks).map(|rank| Board { rank, letters: Arc::clone(&letters), deadline }).collect()
    }
}

impl Exchange for Board {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let (letters, came) = &*self.letters;
        let mut letters = letters.lock().unwrap();
        for (peer, blob) in blobs {
            assert!(blob.len() <= 4096, "a blob of {} bytes", blob.len());
            letters.blobs.entry((self.rank, *peer)).or_default().push_back(blob.clone());
        }
        came.notify_all();
        let mut answers = Vec::new();
        for (peer, _) in blobs {
            loop {
                if let Some(answer) = letters.blobs.entry((*peer, self.rank)).or_default().pop_front() {
                    answers.push(answer);
                    break;
                }
                let left = self.deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let (phase, remedy) = ("swapping blobs".to_string(), "look at that rank".to_string());
                    let waited = Duration::from_secs(60);
                    return Err(ErrorKind::Timeout { phase, waited, absent: vec![*peer], remedy }.into());
                }
                letters = came.wait_timeout(letters, left).unwrap().0;
            }
        }
        Ok(answers)
    }

    /// Over loopback: the lower rank of a pair opens both ends.
    fn streams(&mut self, wanted: &[(Rank, u16)]) -> Result<Vec<Vec<TcpStream>>> {
        let (letters, came) = &*self.letters;
        for &(peer, count) in wanted.iter().filter(|(peer, _)| *peer > self.rank) {
            let (own, theirs) = (0..count).map(|_| stream_pair()).unzip();
            let mut letters = letters.lock().unwrap();
            letters.streams.insert((self.rank, peer), own);
            letters.streams.insert((peer, self.rank), theirs);
            came.notify_all();
        }
        let taken = wanted.iter().map(|&(peer, count)| {
            let mut letters = letters.lock().unwrap();
            loop {
                if let Some(streams) = letters.streams.remove(&(self.rank, peer)) {
                    assert_eq!(streams.len(), usize::from(count), "streams to rank {peer}");
                    return streams;
                }
                let left = self.deadline.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "rank {peer} opened no streams");
                letters = came.wait_timeout(letters, left).unwrap().0;
            }
        });
        Ok(taken.collect())
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// Both ends of a connection over loopback, as an exchange gives them.
pub fn stream_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for end in [&near, &far] {
        end.set_nonblocking(true).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (near, far)
}

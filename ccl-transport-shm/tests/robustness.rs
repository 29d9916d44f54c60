//! What happens when ranks come late, go early, or the machine gives less than is asked for.

use ccl_core::ErrorKind;
use ccl_core::transport::conformance::{Board, connect, mesh, receive, send};
use ccl_core::transport::{Exchange, LinkKey, Transport};
use ccl_core::{Rank, Result};
use ccl_transport_shm::{ShmConfig, ShmTransport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const LINK: LinkKey = LinkKey { from: 0, to: 1, channel: 0 };

fn transport(rank: u32, ranks: u32) -> ShmTransport {
    let config = ShmConfig { slot_bytes: 8192, credits: Some(4), ..ShmConfig::default() };
    ShmTransport::new(rank, ranks, &config).unwrap()
}

/// A board that gives its answers when the other end of `go_on` is gone, or after `patience`.
struct Late {
    board: Board,
    go_on: Receiver<()>,
    patience: Duration,
    deadline: Instant,
}

impl Exchange for Late {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let answers = self.board.swap(blobs);
        // Nothing is ever sent: both outcomes mean "go on".
        let _ = self.go_on.recv_timeout(self.patience);
        answers
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// A sender that would be done and gone at once leaves its piece to a receiver that comes late. The receiver waits
/// until the sender is gone, which it must not be yet, and not for ever.
#[test]
fn a_rank_does_not_go_before_the_other_has_come() {
    let mut boards = Board::of(2).into_iter();
    let (mut early_board, late_board) = (boards.next().unwrap(), boards.next().unwrap());
    let (alive, go_on) = channel::<()>();
    let early = thread::spawn(move || {
        let mut t = transport(0, 2);
        t.connect(&[LINK], &mut early_board).unwrap();
        let to = t.sender(&[1], 0).unwrap();
        assert!(send(&mut t, to, b"left behind", 1));
        drop((t, alive));
    });
    let mut t = transport(1, 2);
    let (deadline, patience) = (late_board.deadline(), Duration::from_millis(200));
    t.connect(&[LINK], &mut Late { board: late_board, go_on, patience, deadline }).unwrap();
    early.join().unwrap();
    let from = t.receiver(0, 0).unwrap();
    assert_eq!(receive(&mut t, from), Some((b"left behind".to_vec(), 1)));
}

/// A rank that swapped words and did no more is named when the time is over; and so is the one that gave up.
#[test]
fn the_deadline_names_absent_ranks() {
    let mut boards = Board::of(2).into_iter();
    let (board, absent_board) = (boards.next().unwrap(), boards.next().unwrap());
    let (alive, go_on) = channel::<()>();
    let absent = thread::spawn(move || {
        let mut t = transport(1, 2);
        let (deadline, patience) = (absent_board.deadline(), Duration::from_secs(60));
        let mut exchange = Late { board: absent_board, go_on, patience, deadline };
        t.connect(&[LINK], &mut exchange).unwrap_err().to_string()
    });
    let mut t = transport(0, 2);
    let (_open, go_on) = channel::<()>();
    let (deadline, patience) = (Instant::now() + Duration::from_millis(50), Duration::ZERO);
    let error = t.connect(&[LINK], &mut Late { board, go_on, patience, deadline }).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { absent, .. } if absent[..] == [1]), "{error}");
    drop((t, alive));
    assert!(absent.join().unwrap().contains("rank 0"));
}

/// Default slots and credits, every rank linked to every other: address space only, and memory for what is sent.
#[test]
fn sixty_four_ranks_all_to_all() {
    const RANKS: u32 = 64;
    let mut t: Vec<_> =
        (0..RANKS).map(|rank| ShmTransport::new(rank, RANKS, &ShmConfig::default()).unwrap()).collect();
    connect(&mut t, &mesh(RANKS, 1));
    let piece = |from: u32, to: u32| vec![(from ^ to) as u8; 3000];
    for from in 0..RANKS {
        for to in (0..RANKS).filter(|&to| to != from) {
            let end = t[from as usize].sender(&[to], 0).unwrap();
            assert!(send(&mut t[from as usize], end, &piece(from, to), 7));
        }
    }
    for to in 0..RANKS {
        for from in (0..RANKS).filter(|&from| from != to) {
            let end = t[to as usize].receiver(from, 0).unwrap();
            assert_eq!(receive(&mut t[to as usize], end), Some((piece(from, to), 7)));
        }
    }
}

/// In a process of its own, since the limit holds for all of it.
#[test]
fn tight_address_space_is_an_error_that_says_so() {
    const TEST: &str = "tight_address_space_is_an_error_that_says_so";
    if std::env::var_os("SHM_TEST_TIGHT").is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([TEST, "--exact", "--nocapture"]).env("SHM_TEST_TIGHT", "1");
        assert!(command.stdout(std::process::Stdio::null()).status().unwrap().success());
        return;
    }
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(4 << 30), maximum }).unwrap();
    let error =
        ShmTransport::new(0, 256, &ShmConfig { credits: Some(64), ..ShmConfig::default() }).unwrap_err();
    assert!(error.to_string().contains("address space limit (ulimit -v)"), "{error}");
    assert!(ShmTransport::new(0, 2, &ShmConfig::default()).is_ok());
}

/// In a process of its own, since all of it is counted.
#[test]
fn a_transport_that_goes_gives_its_address_space_back() {
    const TEST: &str = "a_transport_that_goes_gives_its_address_space_back";
    if std::env::var_os("SHM_TEST_ADDRESSES").is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([TEST, "--exact", "--nocapture"]).env("SHM_TEST_ADDRESSES", "1");
        assert!(command.stdout(std::process::Stdio::null()).status().unwrap().success());
        return;
    }
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    // Whole huge pages, and not.
    let once = |slot_bytes: usize| {
        let config = ShmConfig { slot_bytes, ..ShmConfig::default() };
        drop(ShmTransport::new(0, 2, &config).unwrap());
    };
    once(64 << 10);
    let before = mappings();
    (1..20).for_each(|pages| once(pages * 4096));
    assert!(mappings() <= before + 2, "{before} mappings, then {}", mappings());
}

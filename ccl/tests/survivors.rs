//! Deaths of real processes, and going on without them. The test binary starts itself again as the ranks.

// The ranks tell the test by their output.
#![allow(clippy::print_stdout)]

use ccl::{Communicator, Config, ErrorKind, Rank, ReduceOp, UniqueId};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here may take, and no reason to wait for it.
const BOUND: Duration = Duration::from_secs(60);

/// The ranks of a job as processes, killed when it is dropped.
struct Job {
    ranks: Vec<Child>,
}

impl Job {
    /// Starts `test` again as each of `size` ranks, which pretend to be on so many hosts. The runner of the tests is no rank.
    fn start(test: &str, size: u32, hosts: u32) -> Job {
        Job::start_with(test, size, hosts, |_, _| {})
    }

    /// The same, with more variables for each rank.
    fn start_with(test: &str, size: u32, hosts: u32, more: impl Fn(u32, &mut Command)) -> Job {
        let secret = format!("{test}-{}-{:?}", std::process::id(), Instant::now());
        let port = free_port();
        let start = |rank: u32| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
            command.env("RDMACCL_RANK", rank.to_string()).env("RDMACCL_SIZE", size.to_string());
            command.env("RDMACCL_ROOT", format!("127.0.0.1:{port}")).env("RDMACCL_SECRET", &secret);
            command.env("RDMACCL_HOSTID", format!("host-{}", rank % hosts)).env("RDMACCL_NET", "tcp");
            command.env("RDMACCL_SOCKET_IFNAME", "=lo").env("SURVIVORS_RANK", rank.to_string());
            more(rank, &mut command);
            command.stdout(Stdio::piped()).spawn().expect("a process")
        };
        Job { ranks: (0..size).map(start).collect() }
    }

    /// What each rank has said after `: `, by rank; those that were killed may have said nothing.
    fn finish(mut self) -> Vec<Vec<String>> {
        let end = Instant::now() + BOUND;
        while self.ranks.iter_mut().any(|child| child.try_wait().expect("a child").is_none()) {
            assert!(Instant::now() < end, "a rank hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = |child: &mut Child| {
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            lines.filter_map(|line| Some(line.ok()?.split_once("says: ")?.1.to_string())).collect()
        };
        self.ranks.iter_mut().map(said).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: it is a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

/// Runs `rank` if this process is one; otherwise starts all and returns what they said.
fn job(test: &str, size: u32, rank: impl FnOnce(Communicator)) -> Option<Vec<Vec<String>>> {
    job_on_hosts(1, test, size, rank)
}

/// The same, with ranks that pretend to be on so many hosts.
fn job_on_hosts(
    hosts: u32,
    test: &str,
    size: u32,
    rank: impl FnOnce(Communicator),
) -> Option<Vec<Vec<String>>> {
    if std::env::var_os("SURVIVORS_RANK").is_none() {
        return Some(Job::start(test, size, hosts).finish());
    }
    rank(Communicator::from_env().expect("the job"));
    None
}

/// Dies as if by `kill -9`.
fn die() -> ! {
    // SAFETY: it only ends this process.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("nobody survives that")
}

/// The sum of the old ranks' numbers over those that are left, checked on long buffers.
fn check(comm: &mut Communicator, old: Rank, left: &[Rank]) {
    assert_eq!(comm.size() as usize, left.len());
    assert_eq!(left[comm.rank() as usize], old, "the old order");
    let expected: u32 = left.iter().sum();
    for count in [1, 1000, 300_000] {
        let mut sums = vec![old; count];
        comm.all_reduce_in_place(&mut sums, ReduceOp::Sum).expect("all_reduce of those left");
        assert!(sums.iter().all(|sum| *sum == expected));
    }
    let mut all = vec![0; left.len()];
    comm.all_gather(&[old], &mut all).expect("all_gather of those left");
    assert_eq!(all, left);
}

/// Ranks in `dying` die in the middle of calls; the others shrink and go on.
fn some_die(mut comm: Communicator, dying: &[Rank]) {
    let (rank, size) = (comm.rank(), comm.size());
    let mut values = vec![1.0f32; 100_000];
    for call in 0.. {
        if dying.contains(&rank) && call == 3 + rank {
            die();
        }
        if let Err(error) = comm.all_reduce_in_place(&mut values, ReduceOp::Max) {
            let ErrorKind::PeerLost { peer, place, .. } = error.kind() else { panic!("{error}") };
            assert!(dying.contains(peer), "{error}");
            assert!(place.contains("process "), "{error}");
            break;
        }
    }
    // Those whose time had not come when the first one died do it now, before or within the others' shrink.
    if dying.contains(&rank) {
        die();
    }
    assert!(matches!(comm.barrier().expect_err("it is broken").kind(), ErrorKind::Broken(_)));
    let left: Vec<Rank> = (0..size).filter(|rank| !dying.contains(rank)).collect();
    let mut survivors = comm.shrink(&[]).expect("shrink");
    // Some may have died after the first shrink.
    while survivors.size() as usize > left.len() {
        let _ = survivors.barrier();
        survivors = survivors.shrink(&[]).expect("shrink again");
    }
    check(&mut survivors, rank, &left);
    println!("says: went on with {}", survivors.size());
}

fn went_on(said: Option<Vec<Vec<String>>>, dying: &[Rank]) {
    let Some(said) = said else { return };
    let left = said.len() - dying.len();
    for (rank, said) in (0..).zip(&said) {
        match dying.contains(&rank) {
            true => assert!(said.is_empty(), "rank {rank}: {said:?}"),
            false => assert_eq!(*said, [format!("went on with {left}")], "rank {rank}"),
        }
    }
}

#[test]
fn one_dies() {
    went_on(job("one_dies", 4, |comm| some_die(comm, &[2])), &[2]);
}

#[test]
fn the_head_dies() {
    went_on(job("the_head_dies", 4, |comm| some_die(comm, &[0])), &[0]);
}

#[test]
fn one_dies_and_the_others_are_on_other_hosts() {
    let said = job_on_hosts(4, "one_dies_and_the_others_are_on_other_hosts", 4, |comm| some_die(comm, &[2]));
    went_on(said, &[2]);
}

#[test]
fn two_die_on_two_hosts() {
    let said = job_on_hosts(2, "two_die_on_two_hosts", 5, |comm| some_die(comm, &[0, 3]));
    went_on(said, &[0, 3]);
}

#[test]
fn two_die_an_inner_one_and_its_child() {
    went_on(job("two_die_an_inner_one_and_its_child", 7, |comm| some_die(comm, &[1, 5])), &[1, 5]);
}

#[test]
fn all_but_one_die() {
    went_on(job("all_but_one_die", 4, |comm| some_die(comm, &[0, 1, 3])), &[0, 1, 3]);
}

/// A port that a dead rank had is free for anybody: here somebody takes it who takes calls and says nothing.
#[test]
fn one_dies_whose_port_a_stranger_takes_that_never_answers() {
    let test = "one_dies_whose_port_a_stranger_takes_that_never_answers";
    if std::env::var_os("SURVIVORS_RANK").is_some() {
        let mut comm = Communicator::from_env().expect("the job");
        println!("says: here");
        let error = comm.barrier().expect_err("the others never call it");
        assert!(matches!(error.kind(), ErrorKind::PeerLost { peer: 0, .. }), "{error}");
        // Rank 2 was not connected to this one.
        let mut alone = comm.shrink(&[]).expect("shrink");
        check(&mut alone, 1, &[1]);
        println!("says: went on with 1");
        return;
    }
    let port = free_port();
    let mut job = Job::start_with(test, 3, 1, |rank, command| {
        // Shorter than a call to an address may go unanswered.
        command.env("RDMACCL_FREEZE_TIMEOUT", "1").env("RDMACCL_INIT_TIMEOUT", "3");
        command.env("RDMACCL_SOCKET_FAMILY", "4");
        if rank == 2 {
            command.env("RDMACCL_PORT_RANGE", format!("{port}-{port}"));
        }
    });
    let mut outputs: Vec<_> = job
        .ranks
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("piped")).lines())
        .collect();
    for output in &mut outputs {
        let here = output.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("says: here")));
        assert!(here.is_some(), "a rank did not come");
    }
    // Both at once: neither tells anything of the other.
    for rank in [0, 2] {
        signal(&job.ranks[rank], libc::SIGSTOP);
    }
    for rank in [0, 2] {
        job.ranks[rank].kill().expect("a child");
    }
    job.ranks[2].wait().expect("a child");
    let _stranger = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let said: Vec<_> = outputs.remove(1).map_while(Result::ok).collect();
    assert!(said.iter().any(|line| line.ends_with("says: went on with 1")), "{said:?}");
}

#[test]
fn one_dies_while_the_others_shrink() {
    let said = job("one_dies_while_the_others_shrink", 5, |mut comm| {
        let rank = comm.rank();
        match rank {
            1 => die(),
            // At a moment that differs from run to run: before, within or after the shrink.
            3 => {
                let delay = std::process::id() % 20;
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(u64::from(delay)));
                    die();
                });
            }
            _ => {}
        }
        let mut values = [rank];
        while comm.all_reduce_in_place(&mut values, ReduceOp::Max).is_ok() {}
        let mut survivors = comm.shrink(&[]).expect("shrink");
        while survivors.size() > 3 {
            while survivors.all_reduce_in_place(&mut values, ReduceOp::Max).is_ok() {}
            survivors = survivors.shrink(&[]).expect("shrink again");
        }
        check(&mut survivors, rank, &[0, 2, 4]);
        println!("says: went on with 3");
    });
    went_on(said, &[1, 3]);
}

#[test]
fn a_death_between_calls_is_known_without_a_call() {
    let said = job("a_death_between_calls_is_known_without_a_call", 3, |mut comm| {
        let mut order = comm.split(Some(0), 0).expect("split").expect("all of them");
        // So long that its neighbours know where it writes down what it does.
        let start = Instant::now();
        loop {
            let mut goes_on = [u8::from(start.elapsed() < Duration::from_secs(3))];
            comm.broadcast(&mut goes_on, 0).expect("all are there");
            if goes_on == [0] {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The others are out of the call; whether they see the end of this one nobody asks.
        let met = order.barrier();
        if comm.rank() == 1 {
            met.expect("all are there");
            die();
        }
        let health = comm.abort_handle();
        let end = Instant::now() + BOUND;
        let error = loop {
            match health.error() {
                Some(error) => break error,
                None => assert!(Instant::now() < end, "nobody told"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(error.kind(), ErrorKind::PeerLost { peer: 1, .. }), "{error}");
        assert_eq!(comm.lost(), [1]);
        let text = comm.barrier().expect_err("rank 1 is dead").to_string();
        assert!(
            text.contains("rank 1 (process ") && text.contains("its last call was broadcast #"),
            "{text}"
        );
        println!("says: told");
    });
    let Some(said) = said else { return };
    assert_eq!(said, [vec!["told"], vec![], vec!["told"]]);
}

/// Ranks of one process: nobody dies, so that the ends are those that ranks make.
fn on_ranks<T: Send>(size: u32, work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    let config =
        Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())]).expect("right");
    let id = UniqueId::create(&config).expect("an id");
    std::thread::scope(|scope| {
        let rank = |rank: u32| {
            let (config, work) = (config.clone(), &work);
            let builder = Communicator::builder().rank(rank).size(size).unique_id(id).config(config);
            scope.spawn(move || work(&mut builder.build().expect("join")))
        };
        let threads: Vec<_> = (0..size).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn a_revoked_communicator_ends_for_all_and_can_be_shrunk() {
    on_ranks(3, |comm| {
        if comm.rank() == 1 {
            comm.revoke("the loss is not a number");
        } else {
            // Rank 1 never comes to it.
            let error = comm.barrier().expect_err("it is revoked");
            let ErrorKind::Ended { peer: 1, what, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(what, "the loss is not a number");
        }
        assert!(comm.barrier().is_err());
        let rank = comm.rank();
        check(&mut comm.shrink(&[]).expect("shrink"), rank, &[0, 1, 2]);
    });
}

#[test]
fn who_does_not_come_to_an_agreement_is_named_by_the_rank_that_counts() {
    let test = "who_does_not_come_to_an_agreement_is_named_by_the_rank_that_counts";
    if std::env::var_os("SURVIVORS_RANK").is_some() {
        let mut comm = Communicator::from_env().expect("the job");
        if comm.rank() == 2 {
            let health = comm.abort_handle();
            let end = Instant::now() + BOUND;
            while health.error().is_none() {
                assert!(Instant::now() < end, "nobody has revoked it");
                std::thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        let agreed = comm.agree(1);
        if comm.rank() == 1 {
            // An error too, unless rank 2 has left by then.
            return;
        }
        let error = agreed.expect_err("rank 2 does not come");
        let ErrorKind::Timeout { absent, .. } = error.kind() else { panic!("{error}") };
        println!("says: {absent:?}");
        comm.revoke("no agreement");
        return;
    }
    let job = Job::start_with(test, 3, 1, |_, command| {
        command.env("RDMACCL_FREEZE_TIMEOUT", "1").env("RDMACCL_INIT_TIMEOUT", "3");
    });
    assert_eq!(job.finish(), [vec!["[2]".to_string()], vec![], vec![]]);
}

#[test]
fn a_well_communicator_goes_on_after_a_shrink_and_agreements() {
    on_ranks(4, |comm| {
        let rank = comm.rank();
        for round in 0..20u64 {
            let agreement = comm.agree(!(1 << rank) & !round).expect("agree");
            assert_eq!((agreement.flags, agreement.gone), (!0b1111 & !round, vec![]));
        }
        check(&mut comm.shrink(&[]).expect("shrink"), rank, &[0, 1, 2, 3]);
        check(comm, rank, &[0, 1, 2, 3]);
    });
}

#[test]
fn an_excluded_rank_is_left_behind_and_told() {
    on_ranks(4, |comm| {
        let rank = comm.rank();
        if rank == 2 {
            let error = comm.barrier().expect_err("it was left behind");
            return assert!(matches!(error.kind(), ErrorKind::Excluded { .. }), "{error}");
        }
        check(&mut comm.shrink(&[2]).expect("shrink"), rank, &[0, 1, 3]);
    });
}

#[test]
fn joining_can_be_aborted() {
    let config =
        Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())]).expect("right");
    let id = UniqueId::create(&config).expect("an id");
    let mut builder = Communicator::builder().rank(0).size(2).unique_id(id).config(config);
    let abort = builder.abort_handle();
    let joining = std::thread::spawn(move || builder.build());
    // Nobody else comes, so it can be at any place of its joining.
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    abort.abort();
    abort.abort();
    let error = joining.join().expect("no panic").expect_err("it was aborted");
    assert!(matches!(error.kind(), ErrorKind::Aborted), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "not at the deadline");
}

//! Ranks on several hosts: processes that are told on which host they are, with one rank or more each, over TCP.

use crate::common::*;
use crate::cuda::*;
use crate::failures::ended;
use crate::world::*;
use std::ffi::{CString, c_int, c_void};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod pairs;

const CASE: &str = "TEST_CASE";
const IDS: &str = "TEST_IDS";
/// Ranks of each process, and which of them this is.
const COUNTS: &str = "TEST_COUNTS";
const PROCESS: &str = "TEST_PROCESS";
const ALGORITHM: &str = "TEST_ALGORITHM";

/// What a process knows.
struct Host {
    gpus: Gpus,
    /// Numbers of its first rank, of its ranks, and of all.
    first: usize,
    here: usize,
    all: usize,
    ids: Vec<Id>,
}

fn text(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

impl Host {
    fn join() -> Host {
        let counts: Vec<usize> = text(COUNTS).split(',').map(|count| count.parse().unwrap()).collect();
        let own: usize = text(PROCESS).parse().unwrap();
        Host {
            gpus: gpus(1, ""),
            first: counts[..own].iter().sum(),
            here: counts[own],
            all: counts.iter().sum(),
            ids: text(IDS).split(',').map(from_hex).collect(),
        }
    }

    /// The ranks of this host in the communicator of one of the ids, on its device or on none.
    fn comms(&self, id: usize, on_device: bool, config: &Config) -> Vec<Comm> {
        let mut comms = vec![0; self.here];
        if on_device {
            self.gpus.fake.set_device(0);
        }
        ok(cclGroupStart());
        for (rank, comm) in (self.first..).zip(&mut comms) {
            ok(cclCommInitRankConfig(comm, self.all as c_int, self.ids[id], rank as c_int, config));
        }
        ok(cclGroupEnd());
        if on_device {
            self.gpus.fake.leave_device();
        }
        comms
    }
}

/// A process's part in the tests below, which start it in processes of their own; here it does nothing.
#[test]
fn host() {
    let Ok(case) = std::env::var(CASE) else { return };
    let host = Host::join();
    match case.as_str() {
        "calls" => calls(&host),
        "graphs" => graphs(&host),
        "killed" => killed(&host),
        "aborted" => aborted(&host),
        "absent" => absent(&host),
        "differing" => differing(&host),
        "leaving" => leaving(&host),
        "split" => split(&host),
        "mixed" => mixed(&host),
        "uneven" => pairs::uneven(&host),
        "transfers" => pairs::transfers(&host),
        "replays" => pairs::replays(&host),
        "lengths" => pairs::lengths(&host),
        "unsent" => pairs::unsent(&host),
        "abandoned" => pairs::abandoned(&host),
        "posted" => pairs::posted(&host),
        other => panic!("no case {other}"),
    }
}

/// The host of a process, and how many ranks it has.
type Part = (&'static str, usize);

/// One rank on each of two hosts; two on each.
const TWO: [Part; 2] = [("a", 1), ("b", 1)];
const FOUR: [Part; 2] = [("a", 2), ("b", 2)];
/// Hosts of different numbers of ranks.
const THREE: [Part; 2] = [("a", 2), ("b", 1)];
/// The same as a process for each rank, and not host after host.
const APART: [Part; 3] = [("a", 1), ("b", 1), ("a", 1)];

/// Starts all processes, by one algorithm if it is named; with which of them are to fail.
fn run_with(case: &str, parts: &[Part], algorithm: &str, fails: impl Fn(usize) -> bool) {
    let (object, ids) = (object().to_owned(), [hex(&id()), hex(&id())].join(","));
    let counts = parts.iter().map(|(_, count)| count.to_string()).collect::<Vec<_>>().join(",");
    let child = |(process, (host, _)): (usize, &Part)| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "hosts::host", "--nocapture"]).stdout(Stdio::null());
        command.env(KERNELS, &object).env(CASE, case).env(IDS, &ids).env(COUNTS, &counts);
        command.env(PROCESS, process.to_string()).env(ALGORITHM, algorithm);
        // More blocks than a hierarchical all-reduce has lanes.
        command.env("RDMACCL_HOSTID", host).env("RDMACCL_NET", "tcp").env(BLOCKS, "6");
        command.spawn().unwrap()
    };
    let children = parts.iter().enumerate().map(child).collect();
    for (process, status) in ends_of(children).into_iter().enumerate() {
        assert_eq!(
            status.success(),
            !fails(process),
            "{case} {parts:?} {algorithm}, process {process}: {status}"
        );
    }
}

fn run(case: &str, parts: &[Part]) {
    run_with(case, parts, "", |_| false);
}

/// A collective of blocks of `count` elements for `n` ranks, on buffers of so many blocks.
type Collective = (
    &'static str,
    fn(usize) -> (usize, usize),
    fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int,
);

const COLLECTIVES: [Collective; 8] = [
    ("all_reduce", |_| (1, 1), |a, b, n, t, c, s| cclAllReduce(a, b, n, t, SUM, c, s)),
    ("reduce", |_| (1, 1), |a, b, n, t, c, s| cclReduce(a, b, n, t, SUM, 1, c, s)),
    ("broadcast", |_| (1, 1), |a, b, n, t, c, s| cclBroadcast(a, b, n, t, 1, c, s)),
    ("all_gather", |n| (1, n), |a, b, n, t, c, s| cclAllGather(a, b, n, t, c, s)),
    ("reduce_scatter", |n| (n, 1), |a, b, n, t, c, s| cclReduceScatter(a, b, n, t, SUM, c, s)),
    ("all_to_all", |n| (n, n), |a, b, n, t, c, s| cclAlltoAll(a, b, n, t, c, s)),
    ("gather", |n| (1, n), |a, b, n, t, c, s| cclGather(a, b, n, t, 1, c, s)),
    ("scatter", |n| (n, 1), |a, b, n, t, c, s| cclScatter(a, b, n, t, 1, c, s)),
];

/// All collectives by one algorithm give the bits of host memory.
fn calls(host: &Host) {
    let name = CString::new(text(ALGORITHM)).unwrap();
    let config = Config { algorithm: name.as_ptr(), ..CONFIG };
    let (comms, hosts) = (host.comms(0, true, &config), host.comms(1, false, &config));
    let (before, staged) = (launches(&host.gpus), host.gpus.fake.count("cuStreamWaitValue32"));
    on_threads(&comms, |local, comm| {
        let (gpus, reference, rank) = (&host.gpus, hosts[local], host.first + local);
        let queue = gpus.queue(0);
        for (name, blocks, call) in COLLECTIVES {
            for count in [0, 1, 777, 50_001] {
                let (from, into) = blocks(host.all);
                let (input, before) = (floats(from * count, rank), noise(4 * into * count, 9));
                let mut expected = before.clone();
                let (a, b) = (input.as_ptr().cast(), expected.as_mut_ptr().cast());
                ok(call(a, b, count, FLOAT32, reference, 0));
                let (from, into) = (gpus.buffer(0, &input), gpus.buffer(0, &before));
                ok(call(from.send(), into.recv(), count, FLOAT32, comm, queue.handle));
                queue.finish();
                let name = format!("{name} of {count} by {} on rank {rank}", text(ALGORITHM));
                assert!(into.bytes() == expected, "{name}: {}", last_error(comm));
                assert!(from.bytes() == input, "{name} has written its send buffer");
            }
        }
        // Megabytes, in place.
        let long = floats(700_001, rank);
        let mut expected = long.clone();
        let at = expected.as_mut_ptr().cast();
        ok(cclAllReduce(at, at, 700_001, FLOAT32, SUM, reference, 0));
        let at = gpus.buffer(0, &long);
        ok(cclAllReduce(at.send(), at.recv(), 700_001, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        assert!(at.bytes() == expected, "a long all_reduce: {}", last_error(comm));
        assert_eq!(async_error(comm), SUCCESS);
    });
    assert_eq!(launches(&host.gpus) - before, (33 * host.here) as u64, "by kernels");
    assert_eq!(host.gpus.fake.count("cuStreamWaitValue32"), staged, "nothing is staged");
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn all_collectives_between_hosts_give_the_bits_of_host_memory() {
    let cases: [(&[Part], &str); 6] = [
        (&TWO, "oneshot"),
        (&TWO, "ring"),
        (&FOUR, "hierarchical"),
        (&FOUR, "oneshot"),
        (&THREE, "oneshot"),
        (&APART, "oneshot"),
    ];
    for (parts, algorithm) in cases {
        run_with("calls", parts, algorithm, |_| false);
    }
}

/// Graphs with several calls are replayed, and others come in between.
fn graphs(host: &Host) {
    let comms = host.comms(0, true, &CONFIG);
    on_threads(&comms, |local, comm| {
        let (gpus, rank) = (&host.gpus, host.first + local);
        let queue = gpus.queue(0);
        let (a, b) = (gpus.buffer(0, &[0; 40_000]), gpus.buffer(0, &vec![0; 40_000 * host.all]));
        let graph = queue.capture(|| {
            ok(cclAllReduce(a.send(), a.recv(), 10_000, INT32, MAX, comm, queue.handle));
            ok(cclAllGather(a.send(), b.recv(), 10_000, INT32, comm, queue.handle));
        });
        for round in 0..12 {
            let int = |i: usize, rank: usize| ((i * 7919 + rank * 104_729 + round) % 65_537) as i32;
            let own: Vec<u8> = (0..10_000).flat_map(|i| int(i, rank).to_le_bytes()).collect();
            gpus.fake.write(a.at, &own);
            graph.replay();
            queue.finish();
            let most = |i: usize| (0..host.all).map(|rank| int(i, rank)).max().unwrap();
            let most: Vec<u8> = (0..10_000).flat_map(|i| most(i).to_le_bytes()).collect();
            assert!(a.bytes() == most, "round {round}: {}", last_error(comm));
            assert!(b.bytes() == most.repeat(host.all), "round {round}");
            if round % 5 == 0 {
                // Now and then a call comes between, or the proxy has gone to sleep.
                ok(cclAllReduce(a.send(), b.recv(), 7, FLOAT32, SUM, comm, queue.handle));
                queue.finish();
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        assert_eq!(async_error(comm), SUCCESS);
    });
    destroy_all(&comms);
}

#[test]
fn graphs_are_replayed_between_hosts() {
    run("graphs", &TWO);
    run("graphs", &FOUR);
    run("graphs", &[("a", 1), ("b", 1), ("c", 1)]);
}

/// A call that works and changes nothing, and what comes after it on each rank.
fn then(host: &Host, comms: &[Comm], work: impl Fn(usize, Comm, &Buffer<'_>, &Queue<'_>) + Sync) {
    on_threads(comms, |local, comm| {
        let queue = host.gpus.queue(0);
        let at = host.gpus.buffer(0, &vec![1; 40_000]);
        ok(cclAllReduce(at.send(), at.recv(), 50, FLOAT32, MAX, comm, queue.handle));
        queue.finish();
        work(host.first + local, comm, &at, &queue);
        queue.finish();
    });
}

/// The last rank's process dies.
fn killed(host: &Host) {
    let (comms, last) = (host.comms(0, true, &CONFIG), host.all - 1);
    then(host, &comms, |rank, comm, at, queue| {
        if rank == last {
            // Mostly after the others' kernels have begun to wait for it.
            std::thread::sleep(Duration::from_millis(300));
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let code = cclAllReduce(at.send(), at.recv(), 9000, INT32, SUM, comm, queue.handle);
        assert!([SUCCESS, REMOTE_ERROR].contains(&code), "{}", last_error(0));
        let text = ended(comm);
        assert!(text.contains(&format!("rank {last}")), "{text}");
        assert_eq!(async_error(comm), REMOTE_ERROR);
        queue.finish();
        // Those that are left go on.
        let mut rest = 0;
        ok(cclCommShrink(comm, std::ptr::null(), 0, &mut rest, std::ptr::null(), 0));
        let before = launches(&host.gpus);
        host.gpus.fake.write(at.at, &(rank as u64).to_le_bytes());
        ok(cclAllReduce(at.send(), at.recv(), 1, UINT64, SUM, rest, queue.handle));
        queue.finish();
        assert_eq!(at.bytes()[..8], ((last * (last - 1) / 2) as u64).to_le_bytes(), "{}", last_error(rest));
        assert!(last == 1 || launches(&host.gpus) > before, "by kernels");
        ok(cclCommDestroy(rest));
    });
    destroy_all(&comms);
}

#[test]
fn a_killed_rank_of_another_host_is_named() {
    run_with("killed", &TWO, "", |process| process == 1);
    run_with("killed", &THREE, "", |process| process == 1);
    run_with("killed", &[("a", 1), ("b", 1), ("b", 1)], "", |process| process == 2);
}

/// The last rank aborts while the others' kernels wait for it.
fn aborted(host: &Host) {
    let config = Config { timeout_ms: 60_000, ..CONFIG };
    let (comms, last) = (host.comms(0, true, &config), host.all - 1);
    let hosts = host.comms(1, false, &config);
    let begin = Instant::now();
    then(host, &comms, |rank, comm, at, queue| {
        let order = hosts[rank - host.first];
        if rank == last {
            ok(cclBarrier(order, 0));
            // Mostly after the others' kernels have begun to wait for it.
            std::thread::sleep(Duration::from_millis(200));
            ok(cclCommAbort(comm));
            return;
        }
        ok(cclAllReduce(at.send(), at.recv(), 9000, INT32, SUM, comm, queue.handle));
        ok(cclBarrier(order, 0));
        let text = ended(comm);
        assert!(text.contains(&format!("rank {last}")) && text.contains("abort"), "{text}");
        queue.finish();
        ok(cclCommDestroy(comm));
    });
    assert!(begin.elapsed() < Duration::from_secs(40), "not by the deadline");
    destroy_all(&hosts);
}

#[test]
fn an_abort_ends_the_kernels_of_other_hosts() {
    run("aborted", &THREE);
}

/// The last rank makes no second call.
fn absent(host: &Host) {
    let config = Config { timeout_ms: 60_000, ..CONFIG };
    let (comms, last) = (host.comms(0, true, &config), host.all - 1);
    let order = Order::default();
    then(host, &comms, |rank, comm, at, queue| {
        if rank == 0 {
            // Whose deadline it is: the others have made all calls that there will be.
            order.after(host.here - 1);
            ok(cclCommSetTimeout(comm, 5000));
        }
        if rank != last {
            ok(cclAllReduce(at.send(), at.recv(), 9000, INT32, SUM, comm, queue.handle));
            order.done();
        }
        let text = ended(comm);
        assert!(text.contains(&format!("rank {last} never entered all_reduce #1")), "{text}");
    });
    destroy_all(&comms);
}

#[test]
fn an_absent_rank_of_another_host_is_named_after_the_deadline() {
    run("absent", &THREE);
}

/// The last rank's call has another operator.
fn differing(host: &Host) {
    let config = Config { timeout_ms: 60_000, ..CONFIG };
    let (comms, last) = (host.comms(0, true, &config), host.all - 1);
    let begin = Instant::now();
    then(host, &comms, |rank, comm, at, queue| {
        let op = if rank == last { MAX } else { SUM };
        ok(cclAllReduce(at.send(), at.recv(), 500, INT32, op, comm, queue.handle));
        let text = ended(comm);
        assert!(text.contains("all_reduce #1") && text.contains("the operator"), "{text}");
    });
    assert!(begin.elapsed() < Duration::from_secs(40), "not by the deadline");
    destroy_all(&comms);
}

#[test]
fn ranks_of_several_hosts_that_differ_are_told_at_once() {
    run("differing", &TWO);
}

/// All ranks but the last one leave at once; it has done its calls, and is not disturbed.
fn leaving(host: &Host) {
    let (comms, last) = (host.comms(0, true, &CONFIG), host.all - 1);
    then(host, &comms, |rank, comm, at, queue| {
        ok(cclReduce(at.send(), at.recv(), 10_000, FLOAT32, SUM, last as c_int, comm, queue.handle));
        if rank == last {
            // The root of a call to which the others have given all that they had to give.
            std::thread::sleep(Duration::from_millis(1500));
            queue.finish();
            assert_eq!(async_error(comm), SUCCESS, "{}", last_error(comm));
            let one = f32::from_le_bytes([1; 4]);
            let sum = (1..host.all).fold(one, |sum, _| sum + one);
            assert!(at.bytes() == (0..10_000).flat_map(|_| sum.to_le_bytes()).collect::<Vec<_>>());
        }
        ok(cclCommDestroy(comm));
    });
}

#[test]
fn who_leaves_first_disturbs_nobody() {
    run("leaving", &TWO);
    run("leaving", &THREE);
}

/// The last rank is on no device: calls go through the host.
fn mixed(host: &Host) {
    let is_last = host.first + host.here == host.all;
    let (comms, before) = (host.comms(0, !is_last, &CONFIG), launches(&host.gpus));
    on_threads(&comms, |local, comm| {
        let mut value = (host.first + local) as u64 + 1;
        let expected = (1..=host.all as u64).sum::<u64>();
        if is_last {
            let at = (&raw mut value).cast::<c_void>();
            ok(cclAllReduce(at, at, 1, UINT64, SUM, comm, 0));
        } else {
            let (queue, at) = (host.gpus.queue(0), host.gpus.buffer(0, &value.to_le_bytes()));
            ok(cclAllReduce(at.send(), at.recv(), 1, UINT64, SUM, comm, queue.handle));
            queue.finish();
            value = u64::from_le_bytes(at.bytes().try_into().unwrap());
        }
        assert_eq!(value, expected, "{}", last_error(comm));
    });
    assert_eq!(launches(&host.gpus), before, "without kernels");
    destroy_all(&comms);
}

#[test]
fn hosts_with_and_without_devices_work_together() {
    run("mixed", &THREE);
}

/// Communicators that are split off, each over all hosts.
fn split(host: &Host) {
    let comms = host.comms(0, true, &CONFIG);
    on_threads(&comms, |local, comm| {
        let (rank, mut child) = (host.first + local, 0);
        ok(cclCommSplit(comm, local as c_int, 0, &mut child, std::ptr::null()));
        let (queue, before) = (host.gpus.queue(0), launches(&host.gpus));
        let at = host.gpus.buffer(0, &(rank as u64).to_le_bytes());
        for of in [child, comm, child] {
            ok(cclAllReduce(at.send(), at.recv(), 1, UINT64, SUM, of, queue.handle));
        }
        queue.finish();
        // 0 + 2 or 1 + 3, then all of these, then two of that.
        assert_eq!(at.bytes(), 24u64.to_le_bytes(), "{}", last_error(child));
        assert!(launches(&host.gpus) >= before + 3);
        ok(cclCommDestroy(child));
    });
    destroy_all(&comms);
}

#[test]
fn communicators_that_are_split_off_have_kernels_between_hosts() {
    run("split", &FOUR);
}

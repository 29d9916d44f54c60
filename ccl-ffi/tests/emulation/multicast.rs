//! One-shot all-reduces by multicast: the bits of host memory where all ranks have it, and the same without where one has not.

use crate::calls::{TYPES, elements};
use crate::common::*;
use crate::cuda::*;
use crate::world::*;
use std::ffi::c_int;
use std::process::{Command, Stdio};

/// The setting.
const NVLS: &str = "RDMACCL_NVLS";
/// What devices say that have it.
const ABLE: &str = "attribute 132 1; attribute 103 1;";
/// A length that is one-shot's, and a multiple of nothing.
const COUNT: usize = 16_411;
/// How such a call is named.
const BY_MULTICAST: &str = "one-shot by multicast on devices";
const PROD: c_int = 1;

/// Sets it, or takes it back. Whoever does has a world of devices, for which other tests that read it wait.
fn want(_gpus: &Gpus, is_wanted: bool) {
    // SAFETY: as above; Rust's own readers are locked out.
    unsafe {
        match is_wanted {
            true => std::env::set_var(NVLS, "on"),
            false => std::env::remove_var(NVLS),
        }
    }
}

/// Ranks on devices of their own that want it.
fn wanting<const N: usize>(gpus: &Gpus) -> [Comm; N] {
    want(gpus, true);
    let usual = std::env::var(BLOCKS).unwrap();
    // With fewer blocks than ranks there are no kernels.
    // SAFETY: as in `want`.
    unsafe { std::env::set_var(BLOCKS, N.max(4).to_string()) };
    let comms = on_devices(gpus);
    // SAFETY: as above.
    unsafe { std::env::set_var(BLOCKS, usual) };
    want(gpus, false);
    comms
}

/// What a rank says of multicast, and how its last call was made.
fn said(comm: Comm) -> (String, String) {
    let kernels = &dump(comm)["state"]["kernels"];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    (text(&kernels["multicast"]), text(&kernels["last"]["algorithm"]))
}

/// A sum of floats of all ranks is that of host memory.
fn sum_is_right(gpus: &Gpus, rank: usize, (comm, host): (Comm, Comm)) {
    let (device, queue) = (rank as u32, gpus.queue(rank as u32));
    let (input, mut expected) = (floats(COUNT, rank), vec![0; 4 * COUNT]);
    ok(cclAllReduce(input.as_ptr().cast(), expected.as_mut_ptr().cast(), COUNT, FLOAT32, SUM, host, 0));
    let (from, into) = (gpus.buffer(device, &input), gpus.buffer(device, &vec![0; 4 * COUNT]));
    ok(cclAllReduce(from.send(), into.recv(), COUNT, FLOAT32, SUM, comm, queue.handle));
    queue.finish();
    assert!(into.bytes() == expected, "rank {rank}: {}", last_error(comm));
}

/// Sums and products of every type that one-shot does, of odd lengths, from and to any place.
fn calls_are_right<const N: usize>(script: &str) {
    let gpus = gpus(N as u32, &format!("{ABLE} {script}"));
    let before = gpus.fake.count("multicast stores");
    let (comms, hosts) = (wanting::<N>(&gpus), reference::<N>());
    on_threads(&comms, |rank, comm| {
        let (device, queue) = (rank as u32, gpus.queue(rank as u32));
        for (of, op) in [(TYPES[6], SUM), (TYPES[7], SUM), (TYPES[7], PROD), (TYPES[9], PROD)] {
            // Packets in between: all of them count the same epochs.
            let packets = if N < 5 { 64 << 10 } else { 16 << 10 };
            for (bytes, at, to) in [(65_538, 0, 0), (1000, 4, 2), (70_000, 2, 4), (83_334, 8, 16)] {
                let (bytes, at, to) = (bytes / of.1 * of.1, at / of.1 * of.1, to / of.1 * of.1);
                let (input, mut expected) = (elements(bytes / of.1, of, rank), vec![0; bytes]);
                let count = bytes / of.1;
                ok(cclAllReduce(
                    input.as_ptr().cast(),
                    expected.as_mut_ptr().cast(),
                    count,
                    of.0,
                    op,
                    hosts[rank],
                    0,
                ));
                let (from, into) = (
                    gpus.buffer(device, &vec![7; bytes + at]),
                    gpus.buffer(device, &vec![7; bytes + to + 3]),
                );
                gpus.fake.write(from.at + at, &input);
                ok(cclAllReduce(from.offset(at), into.offset(to), count, of.0, op, comm, queue.handle));
                queue.finish();
                let name = format!("{count} of type {} by operator {op}", of.0);
                let found = into.bytes();
                assert!(found[to..to + bytes] == expected, "{name} on rank {rank}: {}", last_error(comm));
                assert!(found[..to].iter().chain(&found[to + bytes..]).all(|byte| *byte == 7), "{name}");
                assert_eq!(said(comm).1 == BY_MULTICAST, bytes > packets, "{name}: {}", said(comm).1);
                // In place.
                ok(cclAllReduce(from.offset(at), from.offset(at), count, of.0, op, comm, queue.handle));
                queue.finish();
                assert!(from.bytes()[at..] == expected, "{name} in place on rank {rank}");
            }
        }
        assert_eq!((said(comm).0.as_str(), async_error(comm)), ("on", SUCCESS));
    });
    assert!(gpus.fake.count("multicast stores") > before);
    assert_eq!(gpus.fake.count("would wait"), 0);
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn calls_by_multicast_have_the_bits_of_host_memory() {
    calls_are_right::<3>("delay 5 200");
    calls_are_right::<4>("");
    calls_are_right::<8>("");
}

#[test]
fn graphs_of_them_are_replayed() {
    const N: usize = 3;
    let gpus = gpus(N as u32, &format!("{ABLE} delay 6 100"));
    let comms = wanting::<N>(&gpus);
    on_threads(&comms, |rank, comm| {
        let (device, queue) = (rank as u32, gpus.queue(rank as u32));
        let (from, into) = (gpus.buffer(device, &[0; 4 * COUNT]), gpus.buffer(device, &[0; 4 * COUNT]));
        gpus.fake.begin_capture(queue.handle);
        ok(cclAllReduce(from.send(), into.recv(), COUNT, FLOAT32, SUM, comm, queue.handle));
        let graph = gpus.fake.end_capture(queue.handle);
        for round in 0..7 {
            gpus.fake.write(from.at, &floats(COUNT, rank + round));
            gpus.fake.launch_graph(device, graph, queue.handle);
            queue.finish();
            let inputs: [_; N] = std::array::from_fn(|rank| floats(COUNT, rank + round));
            let float = |bytes: &[u8], i: usize| {
                f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes"))
            };
            let sum = |i: usize| inputs[1..].iter().fold(float(&inputs[0], i), |sum, of| sum + float(of, i));
            let found = into.bytes();
            assert!((0..COUNT).all(|i| float(&found, i).to_bits() == sum(i).to_bits()), "round {round}");
        }
        gpus.fake.destroy_graph(graph);
        assert_eq!(said(comm).0, "on");
    });
    destroy_all(&comms);
}

/// Ranks that want multicast have none, and say why; their calls are right.
fn without<const N: usize>(devices: u32, script: &str, why: &[&str]) {
    let gpus = gpus(devices, &format!("{ABLE} {script}"));
    let before = gpus.fake.count("multicast stores");
    let (comms, hosts) = (wanting::<N>(&gpus), reference::<N>());
    for comm in comms {
        let (reason, _) = said(comm);
        assert!(why.iter().all(|word| reason.contains(word)), "{script}: {reason}");
    }
    on_threads(&comms, |rank, comm| {
        if devices as usize >= N {
            sum_is_right(&gpus, rank, (comm, hosts[rank]));
            assert_eq!(said(comm).1, "one-shot on devices", "{script}");
        }
    });
    assert_eq!(gpus.fake.count("multicast stores"), before);
    assert_eq!(gpus.fake.count("would wait"), 0, "{script}");
    // Nothing of what was begun is left.
    let [bound, unbound] = ["cuMulticastBindMem", "cuMulticastUnbind"].map(|name| gpus.fake.count(name));
    assert!(unbound <= bound, "{script}");
    destroy_all(&comms);
    destroy_all(&hosts);
}

#[test]
fn where_one_rank_fails_all_do_without() {
    for function in [
        "cuMulticastGetGranularity",
        "cuMulticastCreate",
        "cuMulticastAddDevice",
        "cuMulticastBindMem",
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemRetainAllocationHandle",
    ] {
        without::<3>(3, &format!("fail {function} code=2"), &["rank ", function, "(2)"]);
    }
    // The last call of a kind: that of the object, when two ranks have bound and mapped theirs.
    for function in ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        without::<3>(3, &format!("fail {function} code=2 nth=6"), &["rank ", function, "(2)"]);
    }
    for function in ["cuMulticastAddDevice", "cuMulticastBindMem"] {
        without::<3>(3, &format!("fail {function} code=2 nth=3"), &["rank ", function, "(2)"]);
    }
}

#[test]
fn what_has_no_multicast_is_found_before() {
    without::<3>(3, "attribute 132 0 device=1", &["rank 1", "device 1", "Multicast"]);
    without::<3>(3, "attribute 103 0", &["rank 0", "PosixFileDescriptors"]);
    without::<2>(2, "", &["rank 0", "one peer"]);
    without::<3>(1, "", &["rank 0", "share a device"]);
}

#[test]
fn it_is_used_only_where_all_ranks_want_it() {
    const N: usize = 3;
    let gpus = gpus(N as u32, ABLE);
    let hosts = reference::<N>();
    for unwilling in [vec![0, 1, 2], vec![2]] {
        let (id, mut comms) = (id(), [0; N]);
        ok(cclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            want(&gpus, !unwilling.contains(&rank));
            gpus.fake.set_device(rank as u32);
            ok(cclCommInitRank(comm, N as c_int, id, rank as c_int));
            gpus.fake.leave_device();
        }
        ok(cclGroupEnd());
        want(&gpus, false);
        on_threads(&comms, |rank, comm| {
            sum_is_right(&gpus, rank, (comm, hosts[rank]));
            let (reason, way) = said(comm);
            let is_right = if unwilling.contains(&rank) {
                reason == "off"
            } else {
                reason.contains("rank 2") && reason.contains("RDMACCL_NVLS=off")
            };
            assert!(is_right && way == "one-shot on devices", "rank {rank}: {reason}, {way}");
        });
        destroy_all(&comms);
    }
    assert_eq!(gpus.fake.count("cuMulticastCreate"), 0);
    destroy_all(&hosts);
}

const ID: &str = "TEST_MULTICAST_ID";
const RANK: &str = "TEST_MULTICAST_RANK";
const SCRIPT: &str = "TEST_MULTICAST_SCRIPT";
const RANKS: usize = 3;

/// A rank's part in the test below, which starts it in processes of their own; here it does nothing.
#[test]
fn rank() {
    let Ok(text) = std::env::var(ID) else { return };
    let rank = std::env::var(RANK).unwrap().parse::<usize>().unwrap();
    let script = std::env::var(SCRIPT).unwrap();
    let gpus = gpus(RANKS as u32, &format!("{ABLE} {script}"));
    let mut comm = 0;
    gpus.fake.set_device(rank as u32);
    ok(cclCommInitRank(&mut comm, RANKS as c_int, from_hex(&text), rank as c_int));
    gpus.fake.leave_device();
    let (device, queue) = (rank as u32, gpus.queue(rank as u32));
    let (from, into) = (gpus.buffer(device, &[0; 4 * COUNT]), gpus.buffer(device, &[0; 4 * COUNT]));
    for round in 0..5 {
        let inputs: [_; RANKS] = std::array::from_fn(|rank| floats(COUNT, 10 * round + rank));
        gpus.fake.write(from.at, &inputs[rank]);
        ok(cclAllReduce(from.send(), into.recv(), COUNT, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        let float = |bytes: &[u8], i: usize| f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        let sum = |i: usize| inputs[1..].iter().fold(float(&inputs[0], i), |sum, of| sum + float(of, i));
        let found = into.bytes();
        assert!((0..COUNT).all(|i| float(&found, i).to_bits() == sum(i).to_bits()), "round {round}");
    }
    let (reason, way) = said(comm);
    let stores = gpus.fake.count("multicast stores");
    if script.is_empty() {
        assert_eq!((reason.as_str(), way.as_str()), ("on", BY_MULTICAST));
        assert_eq!(stores as usize, 5 * (4 * COUNT).div_ceil(16), "each vector once");
    } else {
        assert!(
            reason.contains("rank 1: ") && way == "one-shot on devices" && stores == 0,
            "{reason}, {way}"
        );
    }
    assert_eq!(gpus.fake.count("would wait"), 0);
    ok(cclCommDestroy(comm));
}

/// Starts all ranks, the second one with a script of its own.
fn processes(script: &str) {
    let object = object().to_owned();
    let id = hex(&id());
    let child = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "multicast::rank", "--nocapture"]);
        command.env(KERNELS, &object).env(ID, &id).env(RANK, rank.to_string()).env(NVLS, "on");
        // The others know by the last word that one fails.
        command.env(SCRIPT, if rank == 1 || script.is_empty() { script } else { "attribute 16 132" });
        // What goes wrong is on the other stream.
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    for (rank, status) in ends_of((0..RANKS).map(child).collect()).into_iter().enumerate() {
        assert!(status.success(), "rank {rank}: {status}");
    }
}

#[test]
fn processes_store_to_each_others_memory() {
    processes("");
    for function in ["cuMemImportFromShareableHandle", "cuMulticastAddDevice", "cuMulticastBindMem"] {
        processes(&format!("fail {function} code=801"));
    }
    processes("attribute 132 0");
    // A driver is opened once in a process: one that is older, and one that is not whole.
    processes("version 12000");
    processes("missing cuMulticastBindMem");
}

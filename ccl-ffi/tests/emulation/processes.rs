//! Ranks as processes, which share device memory by CUDA IPC.

use crate::common::*;
use crate::cuda::*;
use crate::failures::ended;
use crate::registered::{COUNT, register, until_mapped};
use crate::world::*;
use std::ffi::c_int;
use std::process::{Command, Stdio};
use std::ptr::{null, with_exposed_provenance_mut};
use std::time::Duration;

const RANKS: usize = 3;
const ID: &str = "TEST_ID";
const RANK: &str = "TEST_RANK";
const KILLED: &str = "TEST_KILLED";
const SCRIPT: &str = "TEST_SCRIPT";
const WAITS_IN: &str = "TEST_WAITS_IN";

/// A rank's part in the tests below, which start it in processes of their own; here it does nothing.
#[test]
fn rank() {
    let Ok(text) = std::env::var(ID) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, killed) = (number(RANK), number(KILLED));
    let id = from_hex(&text);
    let script = std::env::var(SCRIPT).unwrap_or_default();
    let gpus = gpus(1, &script);
    let mut comm = 0;
    gpus.fake.set_device(0);
    ok(cclCommInitRank(&mut comm, RANKS as c_int, id, rank as c_int));
    gpus.fake.leave_device();
    let queue = gpus.queue(0);
    let (at, all) = (gpus.buffer(0, &[0; 4000]), gpus.buffer(0, &[0; 12_000]));
    for round in 0..5 {
        gpus.fake.write(at.at, &noise(4000, 10 * round + rank));
        ok(cclAllGather(at.send(), all.recv(), 4000, 1, comm, queue.handle));
        ok(cclAllReduce(at.send(), at.recv(), 1000, UINT32, MAX, comm, queue.handle));
        queue.finish();
        let inputs: Vec<_> = (0..RANKS).map(|rank| noise(4000, 10 * round + rank)).collect();
        assert!(all.bytes() == inputs.concat(), "round {round}");
        let int = |bytes: &[u8], i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        let most = |i: usize| inputs.iter().map(|input| int(input, i)).max().unwrap();
        assert!((0..1000).all(|i| int(&at.bytes(), i) == most(i)), "round {round}");
        // Round the ring, and as much to each rank as its number says.
        let (next, last) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        gpus.fake.write(at.at, &inputs[rank]);
        ok(cclGroupStart());
        ok(cclSend(at.send(), 3000, 1, next as c_int, comm, queue.handle));
        ok(cclRecv(all.recv(), 3000, 1, last as c_int, comm, queue.handle));
        ok(cclGroupEnd());
        queue.finish();
        assert!(all.bytes()[..3000] == inputs[last][..3000], "round {round}");
        let (sent, received) = ([round, 100, 900], [[round, 100, 900][rank]; RANKS]);
        let (s, r) = (sent.as_ptr(), received.as_ptr());
        ok(cclAlltoAllv(at.send(), s, null(), all.recv(), r, null(), 1, comm, queue.handle));
        queue.finish();
        let from = [0, round, round + 100][rank];
        let right: Vec<u8> = inputs.iter().flat_map(|input| input[from..][..received[0]].to_vec()).collect();
        assert!(all.bytes()[..right.len()] == right, "round {round}");
    }
    assert!(launches(&gpus) >= 10, "by kernels");
    if killed == usize::MAX {
        on_registered(&gpus, rank, comm, &queue);
    }
    let opened = ["cuIpcOpenMemHandle", "cuMemImportFromShareableHandle"].map(|name| gpus.fake.count(name));
    // Those of the arenas, and of what was registered.
    let times = if killed == usize::MAX { 4 } else { 2 };
    assert_eq!(opened, if script.is_empty() { [times, 0] } else { [0, times] }, "others' memory");
    if killed < RANKS {
        // All have looked at what the calls before have brought. Whoever is still in this one may see its end.
        cclBarrier(comm, queue.handle);
        queue.finish();
    }
    if rank == killed {
        // Mostly after the others' kernels have begun to wait for it.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    if killed < RANKS {
        // Refused where the death is known before.
        let code = match std::env::var(WAITS_IN).unwrap().as_str() {
            "receive" => cclRecv(at.recv(), 1000, FLOAT32, killed as c_int, comm, queue.handle),
            _ => cclAllReduce(at.send(), at.recv(), 1000, FLOAT32, SUM, comm, queue.handle),
        };
        assert!([SUCCESS, REMOTE_ERROR].contains(&code), "{}", last_error(0));
        let text = ended(comm);
        queue.finish();
        assert!(!text.contains("had made no call"), "{text}");
        assert!(text.contains(&format!("rank {killed}")), "{text}");
        assert_eq!(async_error(comm), REMOTE_ERROR);
    }
    ok(cclCommDestroy(comm));
}

const UINT32: c_int = 3;

/// Calls on a registered buffer of a kind that the driver gives to other processes; of the other kind none is registered.
fn on_registered(gpus: &Gpus, rank: usize, comm: Comm, queue: &Queue<'_>) {
    let len = (4 * COUNT).next_multiple_of(1 << 16);
    let has_ipc = std::env::var(SCRIPT).unwrap().is_empty();
    let (plain, piece) = (gpus.buffer(0, &vec![0; len]), gpus.fake.alloc_virtual(0, len, !has_ipc));
    let (good, bad) = if has_ipc { (plain.at, piece) } else { (piece, plain.at) };
    let mut none = 0;
    assert_ne!(cclCommRegister(comm, with_exposed_provenance_mut(bad), len, &mut none), SUCCESS);
    assert!(last_error(0).contains("gives to no other process"), "{}", last_error(0));
    let (at, live) = (with_exposed_provenance_mut(good), gpus.fake.live());
    let own = register(comm, at, len);
    let call = || {
        gpus.fake.write(good, &floats(COUNT, rank));
        ok(cclAllReduce(at, at, COUNT, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        let of = |rank: usize, i: usize| float(&floats(i + 1, rank), i);
        let bytes = gpus.fake.read(good, 4 * COUNT);
        for i in [0, 1, COUNT / 3, COUNT - 1] {
            let sum = (1..RANKS).fold(of(0, i), |sum, rank| sum + of(rank, i));
            assert!(bytes[4 * i..4 * i + 4] == sum.to_le_bytes(), "element {i}");
        }
    };
    until_mapped(comm, call);
    ok(cclBarrier(comm, queue.handle));
    queue.finish();
    ok(cclCommDeregister(comm, own));
    // No peer has it any more, though this rank may have theirs.
    gpus.fake.free_virtual(piece, len);
    drop(plain);
    assert_eq!(gpus.fake.count("freed while open"), 0);
    wait_for("the end of what peers had registered", || gpus.fake.live() <= live);
}

/// Starts all ranks, with a script; each has so long. What the others of one that is killed wait in.
fn run(killed: usize, waits_in: &str, script: &str) {
    let object = object().to_owned();
    let id = hex(&id());
    let child = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::rank", "--nocapture"]);
        command
            .env(KERNELS, &object)
            .env(ID, &id)
            .env(RANK, rank.to_string())
            .env(WAITS_IN, waits_in)
            .env(SCRIPT, script);
        // What goes wrong is on the other stream; this one has the harness's own lines, which would be counted.
        command.env(KILLED, killed.to_string()).stdout(Stdio::null()).spawn().unwrap()
    };
    for (rank, status) in ends_of((0..RANKS).map(child).collect()).into_iter().enumerate() {
        assert_eq!(status.success(), rank != killed, "rank {rank}: {status}");
    }
}

#[test]
fn processes_make_calls_on_each_others_memory() {
    run(usize::MAX, "", "");
}

/// No memory of `cuMemAlloc` for other processes, but file descriptors.
const DESCRIPTORS: &str = "fail cuIpcGetMemHandle code=801 times=1000; attribute 103 1";

#[test]
fn where_there_is_no_legacy_ipc_arenas_are_opened_by_descriptors() {
    run(usize::MAX, "", DESCRIPTORS);
    run(1, "all_reduce", DESCRIPTORS);
}

#[test]
fn a_killed_process_ends_the_kernels_of_the_others() {
    run(1, "all_reduce", "");
    run(1, "receive", "");
}

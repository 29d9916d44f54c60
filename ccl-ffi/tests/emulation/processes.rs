//! Ranks as processes, which share device memory by CUDA IPC.

use crate::common::*;
use crate::cuda::*;
use crate::failures::ended;
use crate::world::*;
use std::ffi::c_int;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const ID: &str = "TEST_ID";
const RANK: &str = "TEST_RANK";
const KILLED: &str = "TEST_KILLED";

/// A rank's part in the tests below, which start it in processes of their own; here it does nothing.
#[test]
fn rank() {
    let Ok(hex) = std::env::var(ID) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, killed) = (number(RANK), number(KILLED));
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let id = Id { bytes: std::array::from_fn(byte) };
    let gpus = gpus(1, "");
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
    }
    assert!(launches(&gpus) >= 10, "by kernels");
    if rank == killed {
        // Mostly after the others' kernels have begun to wait for it.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    if killed < RANKS {
        // Refused where the death is known before.
        let code = cclAllReduce(at.send(), at.recv(), 1000, FLOAT32, SUM, comm, queue.handle);
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

/// Starts all ranks; each has so long.
fn run(killed: usize) {
    let object = object().to_owned();
    let id: String = id().bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::rank", "--nocapture"]);
        command.env(KERNELS, &object).env(ID, &id).env(RANK, rank.to_string());
        // What goes wrong is on the other stream; this one has the harness's own lines, which would be counted.
        command.env(KILLED, killed.to_string()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..RANKS).map(child).collect();
    let deadline = Instant::now() + PATIENCE;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let status = status.unwrap_or_else(|| panic!("rank {rank} is not done"));
        assert_eq!(status.success(), rank != killed, "rank {rank}: {status}");
    }
}

#[test]
fn processes_make_calls_on_each_others_memory() {
    run(usize::MAX);
}

#[test]
fn a_killed_process_ends_the_kernels_of_the_others() {
    run(1);
}

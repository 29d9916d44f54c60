//! Calls on device memory that cannot be, and those that go wrong: clear errors, and no stream that waits for ever.

#![allow(clippy::print_stdout)] // what is skipped is said

mod common;
mod cuda;
use ccl_fake_cuda::{Fake, Memory};
use common::*;
use cuda::*;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

const DEVICE_ERROR: i32 = 1;

/// Of 4 floats.
fn reduce(from: usize, into: usize, comm: Comm, stream: Stream) -> i32 {
    let (from, into): (*const c_void, *mut c_void) =
        (with_exposed_provenance(from), with_exposed_provenance_mut(into));
    cclAllReduce(from, into, 4, FLOAT32, SUM, comm, stream)
}

#[test]
fn buffers_and_streams_that_do_not_fit_are_refused_by_name() {
    let gpus = Gpus::new(2, "");
    let comms = init_all::<2>();
    let comm = comms[0];
    let (first, second) = (gpus.buffer(0, &[0; 16]), gpus.buffer(1, &[0; 16]));
    let queues = [gpus.queue(0), gpus.queue(1)];
    let (host, plain) = (stream(), [0f32; 4]);
    let plain = plain.as_ptr().expose_provenance();
    let managed = gpus.fake.alloc(Memory::Managed, 0, 16);
    let freed = gpus.fake.alloc(Memory::Device, 0, 16);
    gpus.fake.free(Memory::Device, freed);
    for (from, into, stream, words) in [
        (
            first.at,
            second.at,
            queues[0].handle,
            "sendbuff, memory of device 0, and recvbuff is memory of device 1",
        ),
        (first.at, first.at, queues[1].handle, "is memory of device 0, and the stream is of device 1"),
        (first.at, first.at, host, "is memory of device 0, and the stream is a host stream"),
        (plain, first.at, queues[0].handle, "is ordinary host memory, and the other buffer is on a device"),
        (plain, first.at, 0, "is ordinary host memory, and the other buffer is on a device"),
        (first.at, plain, 0, "recvbuff"),
        (plain, plain, queues[0].handle, "is ordinary host memory, and the stream is a CUDA stream"),
        (managed, managed, queues[0].handle, "is managed memory"),
        (managed, managed, 0, "is managed memory"),
        (managed, managed, host, "is managed memory"),
        (freed, freed, queues[0].handle, "is no memory: freed, or never allocated"),
        (freed, freed, 0, "is no memory: freed, or never allocated"),
        (freed, freed, host, "is no memory: freed, or never allocated"),
        (first.at, first.at, 0xdead0, "0xdead0 is no stream"),
    ] {
        let code = reduce(from, into, comm, stream);
        let text = last_error(0);
        let words: Vec<_> = words.split(", ").collect();
        assert!(
            code == INVALID_ARGUMENT && words.iter().all(|words| text.contains(words)),
            "{words:?}: {text}"
        );
    }
    let text = (cclCommRegister(comm, first.recv(), 16, &mut 0), last_error(0));
    assert!(text.0 == INVALID_USAGE && text.1.contains("memory of device 0"), "{}", text.1);
    // Nothing of all that has begun.
    on_threads(&comms, |_, comm| ok(all_reduce(&mut [1.0], comm, 0)));
    gpus.fake.free(Memory::Managed, managed);
    ok(cclHostStreamDestroy(host));
    destroy_all(&comms);
}

#[test]
fn a_stream_that_captures_a_graph_is_refused() {
    let gpus = Gpus::new(1, "");
    let comms = init_all::<1>();
    let (queue, buffer) = (gpus.queue(0), gpus.buffer(0, &floats(4, 0)));
    gpus.fake.capture(queue.handle, true);
    refused(reduce(buffer.at, buffer.at, comms[0], queue.handle), INVALID_USAGE, "captures a graph");
    gpus.fake.capture(queue.handle, false);
    ok(reduce(buffer.at, buffer.at, comms[0], queue.handle));
    queue.finish();
    assert_eq!(buffer.bytes(), floats(4, 0));
    destroy_all(&comms);
}

#[test]
fn groups_that_mix_memory_or_streams_are_refused_whole() {
    let gpus = Gpus::new(1, "");
    let comms = init_all::<1>();
    let (queues, buffer) = ([gpus.queue(0), gpus.queue(0)], gpus.buffer(0, &floats(4, 0)));
    let mut host = [1f32; 4];
    ok(cclGroupStart());
    ok(reduce(buffer.at, buffer.at, comms[0], queues[0].handle));
    ok(all_reduce(&mut host, comms[0], 0));
    refused(cclGroupEnd(), INVALID_USAGE, "on host memory and others on device memory");
    ok(cclGroupStart());
    ok(reduce(buffer.at, buffer.at, comms[0], queues[0].handle));
    ok(reduce(buffer.at, buffer.at, comms[0], queues[1].handle));
    refused(cclGroupEnd(), INVALID_USAGE, "several CUDA streams");
    destroy_all(&comms);
}

#[test]
fn a_second_device_of_a_communicator_is_refused() {
    let gpus = Gpus::new(2, "");
    let comms = init_all::<1>();
    let (queue, first, second) = (gpus.queue(0), gpus.buffer(0, &[0; 16]), gpus.buffer(1, &[0; 16]));
    ok(reduce(first.at, first.at, comms[0], queue.handle));
    queue.finish();
    refused(reduce(second.at, second.at, comms[0], 0), INVALID_USAGE, "on device 1, after calls on device 0");
    destroy_all(&comms);
}

/// Two ranks that are in a call when work on the device goes wrong: both hear of it, and both streams run on.
#[test]
fn work_that_goes_wrong_in_a_call_ends_it_for_all() {
    for nth in [1, 4, 9] {
        let gpus = Gpus::new(1, &format!("spoil code=700 nth={nth}"));
        let comms = init_all::<2>();
        let count = (12 << 20) / 4;
        let queues = [gpus.queue(0), gpus.queue(0)];
        let buffers = [0, 1].map(|rank| gpus.buffer(0, &floats(count, rank)));
        on_threads(&comms, |rank, comm| {
            let at = buffers[rank].recv();
            let code = cclAllReduce(at, at, count, FLOAT32, SUM, comm, queues[rank].handle);
            // It may have gone wrong while the second rank was still enqueuing; or the first was told before, and has aborted.
            let text = [last_error(0), last_error(comm)].join("; ");
            let is_told = code == REMOTE_ERROR && text.contains("has aborted");
            assert!(is_told || [SUCCESS, DEVICE_ERROR].contains(&code), "{code}: {text}");
            if code == SUCCESS {
                // What comes after the host's part is over is the stream's to tell.
                let told_by_stream = || nth > 1 && gpus.fake.synchronize(0, queues[rank].handle) == 700;
                wait_for("an error", || async_error(comm) != SUCCESS || told_by_stream());
                let text = last_error(comm);
                // Or the other rank was told first, and has aborted.
                let tells = ["CUDA_ERROR_ILLEGAL_ADDRESS (700)", "has aborted"];
                assert!(
                    async_error(comm) == SUCCESS || tells.iter().any(|tell| text.contains(tell)),
                    "{text}"
                );
            } else {
                ok(cclCommAbort(comm));
            }
        });
        comms.iter().for_each(|comm| _ = cclCommAbort(*comm));
    }
}

#[test]
fn a_call_that_cannot_be_enqueued_fails_at_once_and_holds_no_stream() {
    // Some fail before anything is on its way: then the next call goes well.
    let failures = [
        ("cuStreamWaitValue32", 2, false),
        ("cuMemcpyAsync", 3, false),
        ("cuEventRecord", 4, false),
        ("cuMemHostAlloc", 3, true),
        ("cuEventCreate", 9, true),
    ];
    for (function, nth, goes_on) in failures {
        let gpus = Gpus::new(1, "");
        let comms = init_all::<1>();
        let count = (12 << 20) / 4;
        let (queue, buffer) = (gpus.queue(0), gpus.buffer(0, &floats(count, 0)));
        gpus.fake.run(&format!("fail {function} code=2 nth={nth}"));
        let call = || cclAllReduce(buffer.send(), buffer.recv(), count, FLOAT32, SUM, comms[0], queue.handle);
        refused(call(), DEVICE_ERROR, function);
        assert!(last_error(0).contains("CUDA_ERROR_OUT_OF_MEMORY (2)"));
        queue.finish();
        if goes_on {
            ok(call());
            queue.finish();
        } else {
            refused(call(), DEVICE_ERROR, function);
        }
        // The communicator is well on host memory.
        ok(all_reduce(&mut [1.0], comms[0], 0));
        destroy_all(&comms);
    }
}

#[test]
fn an_abort_lets_the_stream_run_on_whoever_is_waited_for() {
    let gpus = Gpus::new(1, "");
    let gate = gpus.fake.alloc(Memory::Pinned, 0, 64);
    // A peer that never comes; then work of the program's own that has not ended.
    for is_gated in [false, true] {
        let comms = init_all::<2>();
        let (queue, buffer) = (gpus.queue(0), gpus.buffer(0, &floats(4, 0)));
        gpus.fake.write(gate, &[0; 4]);
        if is_gated {
            gpus.fake.wait_value(0, queue.handle, gate, 1);
        }
        ok(reduce(buffer.at, buffer.at, comms[0], queue.handle));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!queue.is_done());
        ok(cclCommAbort(comms[0]));
        gpus.fake.write(gate, &1u32.to_le_bytes());
        queue.finish();
        wait_for("the end on the peer", || async_error(comms[1]) == REMOTE_ERROR);
        ok(cclCommAbort(comms[1]));
    }
    gpus.fake.free(Memory::Pinned, gate);
}

#[test]
fn a_peer_that_does_not_come_is_an_error_and_the_stream_runs_on() {
    let gpus = Gpus::new(1, "");
    let comms = init_all::<2>();
    let (queue, buffer) = (gpus.queue(0), gpus.buffer(0, &floats(4, 0)));
    ok(cclCommSetTimeout(comms[0], 200));
    ok(reduce(buffer.at, buffer.at, comms[0], queue.handle));
    queue.finish();
    wait_for("an error", || async_error(comms[0]) == REMOTE_ERROR);
    assert!(last_error(comms[0]).contains('1'), "{}", last_error(comms[0]));
    comms.iter().for_each(|comm| ok(cclCommAbort(*comm)));
}

/// Runs a test of this file alone, in a process with other variables. Whether this is that process.
fn is_alone(test: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "TEST_THAT_IS_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env_remove("RDMACCL_CUDA")
        .env(MARK, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(why) = text.lines().find(|line| line.contains("skipped:")) {
        println!("{why}");
    }
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[test]
fn a_named_driver_that_is_not_there_ends_the_start() {
    if !is_alone(
        "a_named_driver_that_is_not_there_ends_the_start",
        &[("RDMACCL_CUDA", "/nonexistent/libcuda.so")],
    ) {
        return;
    }
    let mut comms = [0; 1];
    refused(
        cclCommInitAll(comms.as_mut_ptr(), 1, std::ptr::null()),
        INVALID_USAGE,
        "/nonexistent/libcuda.so cannot be opened",
    );
}

#[test]
fn an_old_driver_that_is_named_ends_the_start_with_both_versions() {
    let library = Fake::library();
    let library = library.to_str().unwrap();
    if !is_alone(
        "an_old_driver_that_is_named_ends_the_start_with_both_versions",
        &[("RDMACCL_CUDA", library), ("RDMACCL_FAKE_CUDA", "version 11080")],
    ) {
        return;
    }
    let mut comms = [0; 1];
    let code = cclCommInitAll(comms.as_mut_ptr(), 1, std::ptr::null());
    refused(code, INVALID_USAGE, "is of CUDA 11.8; a driver of CUDA 12.0 or newer is needed");
}

#[test]
fn too_much_pinned_memory_is_refused_with_the_variable() {
    let library = Fake::library();
    let library = library.to_str().unwrap();
    if !is_alone(
        "too_much_pinned_memory_is_refused_with_the_variable",
        &[("RDMACCL_CUDA", library), ("RDMACCL_STAGING_BYTES", "1M")],
    ) {
        return;
    }
    let gpus = Gpus::new(1, "");
    let comms = init_all::<1>();
    let (queue, buffer) = (gpus.queue(0), gpus.buffer(0, &[1; 2 << 20]));
    let call = |count| cclAllGather(buffer.send(), buffer.recv(), count, 0, comms[0], queue.handle);
    refused(call(2 << 20), INVALID_USAGE, "RDMACCL_STAGING_BYTES");
    ok(call(1 << 10));
    queue.finish();
    destroy_all(&comms);
}

#[test]
fn a_stream_without_a_driver_says_that_there_is_none() {
    if !is_alone("a_stream_without_a_driver_says_that_there_is_none", &[]) {
        return;
    }
    let comms = init_all::<1>();
    let mut buffer = [1f32];
    if ccl_has_driver() {
        println!("skipped: this machine has a CUDA driver, to which the stream would go");
        return destroy_all(&comms);
    }
    refused(
        all_reduce(&mut buffer, comms[0], 0x7000),
        INVALID_ARGUMENT,
        "is no stream of the host, and CUDA streams cannot be used: ",
    );
    assert!(last_error(0).contains("libcuda.so.1 cannot be opened"), "{}", last_error(0));
    destroy_all(&comms);
}

/// Where the loader finds it.
fn ccl_has_driver() -> bool {
    [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib64/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
    ]
    .iter()
    .any(|file| std::path::Path::new(file).exists())
}

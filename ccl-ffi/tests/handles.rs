//! Handles that are no longer, or never were, what they should be.

mod common;
use common::*;

#[test]
fn a_communicator_is_null_foreign_freed_or_a_stream() {
    let comms = init_all::<1>();
    let stream = stream();
    let buffer = [0u8; 8];
    refused(cclBarrier(0, 0), INVALID_ARGUMENT, "NULL communicator");
    for foreign in [stream, buffer.as_ptr() as usize, 1, usize::MAX, comms[0] + (1 << 14)] {
        refused(cclBarrier(foreign, 0), INVALID_ARGUMENT, "no communicator");
        refused(cclBarrier(foreign, stream), INVALID_ARGUMENT, "no communicator");
        refused(cclCommAbort(foreign), INVALID_ARGUMENT, "no communicator");
        refused(cclCommDestroy(foreign), INVALID_ARGUMENT, "no communicator");
        refused(cclCommGetAsyncError(foreign, &mut 0), INVALID_ARGUMENT, "no communicator");
    }
    ok(cclBarrier(comms[0], 0));
    destroy_all(&comms);
    refused(cclCommDestroy(comms[0]), INVALID_ARGUMENT, "not destroyed");
    refused(cclCommAbort(comms[0]), INVALID_ARGUMENT, "not destroyed");
    refused(cclCommCount(comms[0], &mut 0), INVALID_ARGUMENT, "not destroyed");
    ok(cclHostStreamDestroy(stream));
}

#[test]
fn a_stream_is_null_foreign_freed_or_a_communicator() {
    let comms = init_all::<1>();
    let stream = stream();
    refused(cclHostStreamSynchronize(0), INVALID_ARGUMENT, "NULL stream");
    for foreign in [comms[0], 1, usize::MAX, stream + (1 << 14)] {
        refused(cclBarrier(comms[0], foreign), INVALID_ARGUMENT, "no stream");
        refused(cclHostStreamQuery(foreign), INVALID_ARGUMENT, "no stream");
        refused(cclHostStreamWait(foreign, 1), INVALID_ARGUMENT, "no stream");
        refused(cclHostStreamDestroy(foreign), INVALID_ARGUMENT, "no stream");
    }
    refused(cclHostStreamWait(stream, -1), INVALID_ARGUMENT, "timeout_ms = -1");
    ok(cclBarrier(comms[0], stream));
    ok(cclHostStreamDestroy(stream));
    refused(cclHostStreamDestroy(stream), INVALID_ARGUMENT, "not destroyed");
    refused(cclBarrier(comms[0], stream), INVALID_ARGUMENT, "not destroyed");
    destroy_all(&comms);
}

/// Slots are used again; their old handles stay dead.
#[test]
fn an_old_handle_is_not_the_new_thing_in_its_place() {
    let mut old = Vec::new();
    for _ in 0..20 {
        let comms = init_all::<1>();
        for comm in &old {
            refused(cclBarrier(*comm, 0), INVALID_ARGUMENT, "no communicator");
        }
        ok(cclBarrier(comms[0], 0));
        destroy_all(&comms);
        old.push(comms[0]);
    }
}

/// Of threads that destroy the same handle, one does it.
#[test]
fn one_of_many_destroys() {
    for _ in 0..50 {
        let comm = init_all::<1>()[0];
        let destroyed = std::sync::atomic::AtomicUsize::new(0);
        on_threads(&[comm; 4], |_, comm| match cclCommDestroy(comm) {
            SUCCESS => drop(destroyed.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
            code => assert_eq!(code, INVALID_ARGUMENT),
        });
        assert_eq!(destroyed.into_inner(), 1);
    }
}

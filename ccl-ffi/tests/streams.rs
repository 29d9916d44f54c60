//! Calls on streams: their order, their errors, and what a stream tells.

mod common;
use common::*;

#[test]
fn calls_are_made_in_the_order_of_issue_whatever_the_stream() {
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let streams = [stream(), stream(), stream()];
        let mut buffer = [1f32];
        // Each doubles what the one before has left. The ranks use different streams.
        for call in 0..20 {
            ok(all_reduce(&mut buffer, comm, streams[(call * (rank + 1)) % 3]));
        }
        // Without a stream, after all that were issued.
        ok(all_reduce(&mut buffer, comm, 0));
        assert_eq!(buffer[0], (1 << 21) as f32);
        for stream in streams {
            ok(cclHostStreamSynchronize(stream));
            ok(cclHostStreamQuery(stream));
            ok(cclHostStreamDestroy(stream));
        }
    });
    destroy_all(&comms);
}

#[test]
fn a_stream_tells_that_a_peer_has_not_come() {
    let comms = init_all::<2>();
    let stream = stream();
    let (mut a, mut b) = ([1f32; 100], [2f32; 100]);
    ok(all_reduce(&mut a, comms[0], stream));
    assert_eq!(cclHostStreamQuery(stream), IN_PROGRESS);
    assert_eq!(cclHostStreamWait(stream, 1), IN_PROGRESS);
    assert_eq!(async_error(comms[0]), SUCCESS);
    ok(all_reduce(&mut b, comms[1], 0));
    ok(cclHostStreamWait(stream, i32::MAX));
    assert_eq!((a, b), ([3.0; 100], [3.0; 100]));
    ok(cclHostStreamDestroy(stream));
    destroy_all(&comms);
}

#[test]
fn arguments_are_refused_at_once() {
    let comms = init_all::<2>();
    let stream = stream();
    let mut buffer = [0f32; 8];
    let at = buffer.as_mut_ptr();
    let reduce = |send: *const f32, recv: *mut f32| {
        cclAllReduce(send.cast(), recv.cast(), 4, FLOAT32, SUM, comms[0], stream)
    };
    refused(reduce(std::ptr::null(), at), INVALID_ARGUMENT, "sendbuff is NULL");
    refused(reduce(at, at.wrapping_add(1)), INVALID_ARGUMENT, "overlap");
    refused(cclBroadcast(at.cast(), at.cast(), 4, FLOAT32, 2, comms[0], stream), INVALID_ARGUMENT, "root 2");
    refused(cclAllReduce(at.cast(), at.cast(), 4, 99, SUM, comms[0], stream), INVALID_ARGUMENT, "type 99");
    refused(
        cclAllReduce(at.cast(), at.cast(), 4, FLOAT32, 99, comms[0], stream),
        INVALID_ARGUMENT,
        "operator 99",
    );
    ok(cclHostStreamSynchronize(stream));
    assert_eq!(async_error(comms[0]), SUCCESS);
    ok(cclHostStreamDestroy(stream));
    destroy_all(&comms);
}

#[test]
fn an_error_comes_out_of_the_stream_and_of_the_communicator() {
    let comms = init_all::<2>();
    let streams = [stream(), stream()];
    let mut buffers = [[1f32; 100], [1f32; 100]];
    let [a, b] = &mut buffers;
    ok(all_reduce(&mut a[..100], comms[0], streams[0]));
    ok(all_reduce(&mut b[..50], comms[1], streams[1])); // another count: another call
    for (stream, comm) in streams.into_iter().zip(comms) {
        let code = cclHostStreamSynchronize(stream);
        assert_eq!(code, REMOTE_ERROR, "{}", last_error(0));
        ok(cclHostStreamSynchronize(stream)); // it was reported
        assert_eq!(async_error(comm), REMOTE_ERROR);
        assert!(last_error(comm).contains("rank"), "{}", last_error(comm));
        let mut buffer = [0f32];
        refused(all_reduce(&mut buffer, comm, 0), INVALID_USAGE, "unusable since");
        ok(all_reduce(&mut buffer, comm, stream));
        assert_eq!(cclHostStreamDestroy(stream), INVALID_USAGE);
    }
    destroy_all(&comms);
}

/// What callbacks were told, in order.
type Told = std::sync::Mutex<Vec<(std::ffi::c_int, String)>>;

extern "C" fn tell(result: std::ffi::c_int, data: *mut std::ffi::c_void) {
    // SAFETY: every test that adds this gives a `Told` that lives until its stream is destroyed.
    let told = unsafe { &*data.cast::<Told>() };
    let words = if result == SUCCESS { String::new() } else { last_error(0) };
    told.lock().unwrap().push((result, words));
}

#[test]
fn a_callback_is_called_in_order_with_the_result_of_the_calls_before_it() {
    let comms = init_all::<2>();
    let told: [Told; 2] = Default::default();
    on_threads(&comms, |rank, comm| {
        let stream = stream();
        let mut buffer = [1f32; 4];
        let data = (&raw const told[rank]).cast_mut().cast();
        let add = || ok(cclHostStreamAddCallback(stream, Some(tell), data));
        ok(all_reduce(&mut buffer, comm, stream));
        add();
        ok(all_reduce(&mut buffer[..4 - rank], comm, stream)); // another count: an error
        ok(all_reduce(&mut buffer, comm, stream)); // and one that follows from it
        add();
        add();
        assert_eq!(cclHostStreamDestroy(stream), REMOTE_ERROR); // after the callbacks
    });
    for told in told {
        let told = told.into_inner().unwrap();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!((&told[0], &told[2]), (&(SUCCESS, String::new()), &(SUCCESS, String::new())));
        assert!(told[1].0 == REMOTE_ERROR && told[1].1.contains("rank"), "{told:?}");
    }
    destroy_all(&comms);
}

#[test]
fn destroying_a_stream_waits_for_its_calls() {
    let comms = init_all::<2>();
    let mut results = [[0f32; 4]; 2];
    std::thread::scope(|scope| {
        for (comm, buffer) in comms.into_iter().zip(&mut results) {
            scope.spawn(move || {
                let stream = stream();
                buffer.fill(1.0);
                for _ in 0..30 {
                    ok(cclBarrier(comm, stream));
                }
                ok(all_reduce(buffer, comm, stream));
                ok(cclHostStreamDestroy(stream));
            });
        }
    });
    assert_eq!(results, [[2.0; 4]; 2]);
    destroy_all(&comms);
}

/// Destroying or finalizing a communicator waits for what was issued on it.
#[test]
fn a_communicator_ends_after_its_calls() {
    let comms = init_all::<2>();
    on_threads(&comms, |_, comm| {
        let stream = stream();
        let mut buffer = [1f32; 4];
        for _ in 0..10 {
            ok(all_reduce(&mut buffer, comm, stream));
        }
        ok(cclCommFinalize(comm));
        assert_eq!(buffer, [1024.0; 4]);
        refused(all_reduce(&mut buffer, comm, 0), INVALID_USAGE, "finalized");
        refused(all_reduce(&mut buffer, comm, stream), INVALID_USAGE, "finalized");
        refused(cclCommFinalize(comm), INVALID_USAGE, "finalized");
        ok(cclCommDestroy(comm));
        ok(cclHostStreamDestroy(stream));
    });
}

/// A group over two streams of a rank: it begins when both have come to it, and both wait for its end.
#[test]
fn a_group_joins_streams() {
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let streams = [stream(), stream()];
        let (mut a, mut b, mut c) = ([1f32], [1f32], [1f32]);
        for round in 1..=20 {
            ok(all_reduce(&mut a, comm, streams[0]));
            ok(cclGroupStart());
            ok(all_reduce(&mut a, comm, streams[rank]));
            ok(all_reduce(&mut b, comm, streams[1 - rank]));
            ok(cclGroupEnd());
            ok(all_reduce(&mut c, comm, streams[1]));
            if round % 5 == 0 {
                ok(cclGroupStart());
                ok(cclBarrier(comm, streams[1]));
                ok(cclBarrier(comm, 0)); // the caller waits as well
                ok(cclGroupEnd());
                assert_eq!((a[0], b[0], c[0]), (4f32.powi(round), 2f32.powi(round), 2f32.powi(round)));
            }
        }
        streams.into_iter().for_each(|stream| ok(cclHostStreamDestroy(stream)));
    });
    destroy_all(&comms);
}

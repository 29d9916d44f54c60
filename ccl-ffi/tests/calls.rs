//! Transfers, blocks of different lengths, operators that were made.

mod common;
use common::*;
use std::ptr::{null, null_mut};

const COUNTS: [usize; 3] = [2, 0, 3];

/// What rank `from` has for rank `to`, item `i`.
fn item(from: usize, to: usize, i: usize) -> i32 {
    (100 * from + 10 * to + i) as i32
}

/// On the calling thread, and on a stream.
fn both_ways(comm: Comm, test: impl Fn(Comm, Stream, &dyn Fn())) {
    test(comm, 0, &|| ());
    let stream = stream();
    test(comm, stream, &|| ok(cclHostStreamSynchronize(stream)));
    ok(cclHostStreamDestroy(stream));
}

#[test]
fn all_gather_v_in_place_and_with_gaps() {
    let comms = init_all::<3>();
    on_threads(&comms, |rank, comm| {
        both_ways(comm, |comm, stream, done| {
            let own: Vec<_> = (0..COUNTS[rank]).map(|i| item(rank, 0, i)).collect();
            let mut recv = [-1; 9];
            let places = [6usize, 5, 1];
            let (send, at) = (own.as_ptr().cast(), recv.as_mut_ptr());
            let counts = COUNTS.as_ptr();
            ok(cclAllGatherV(send, own.len(), at.cast(), counts, places.as_ptr(), INT32, comm, stream));
            done();
            assert_eq!(recv, [-1, 200, 201, 202, -1, -1, 0, 1, -1]);
            recv[..5]
                .copy_from_slice(&[0, 1, 200, 201, 202].map(|v| if v / 100 == rank as i32 { v } else { -1 }));
            let own_place = at.wrapping_add([0, 2, 2][rank]);
            ok(cclAllGatherV(own_place.cast(), own.len(), at.cast(), counts, null(), INT32, comm, stream));
            done();
            assert_eq!(recv[..5], [0, 1, 200, 201, 202]);
        });
    });
    destroy_all(&comms);
}

#[test]
fn reduce_scatter_v_gives_each_its_block() {
    let comms = init_all::<3>();
    on_threads(&comms, |rank, comm| {
        both_ways(comm, |comm, stream, done| {
            let send: [i32; 5] = std::array::from_fn(|i| (rank + 1) as i32 * (i as i32 + 1));
            let mut recv = [-1; 3];
            let at = recv.as_mut_ptr().cast();
            ok(cclReduceScatterV(send.as_ptr().cast(), at, COUNTS.as_ptr(), INT32, SUM, comm, stream));
            done();
            assert_eq!(recv, [[6, 12, -1], [-1; 3], [18, 24, 30]][rank]);
        });
    });
    destroy_all(&comms);
}

#[test]
fn all_to_all_v_gather_v_and_scatter_v() {
    let comms = init_all::<3>();
    on_threads(&comms, |rank, comm| {
        both_ways(comm, |comm, stream, done| {
            // Rank i sends i + j items to rank j.
            let counts: [usize; 3] = std::array::from_fn(|peer| rank + peer);
            let send: Vec<_> = (0..3).flat_map(|to| (0..rank + to).map(move |i| item(rank, to, i))).collect();
            let wanted: Vec<_> =
                (0..3).flat_map(|of| (0..of + rank).map(move |i| item(of, rank, i))).collect();
            let mut recv = vec![-1; wanted.len()];
            let (from, into) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
            let all = counts.as_ptr();
            ok(cclAlltoAllv(from, all, null(), into, all, null(), INT32, comm, stream));
            done();
            assert_eq!(recv, wanted);

            let own: Vec<_> = (0..COUNTS[rank]).map(|i| item(rank, 1, i)).collect();
            let mut recv = [-1; 5];
            let counts = if rank == 1 { COUNTS.as_ptr() } else { null() };
            let into = if rank == 1 { recv.as_mut_ptr().cast() } else { null_mut() };
            ok(cclGatherV(own.as_ptr().cast(), own.len(), into, counts, null(), INT32, 1, comm, stream));
            done();
            assert_eq!(recv, if rank == 1 { [10, 11, 210, 211, 212] } else { [-1; 5] });

            let mut back = [-1; 3];
            let (from, into) = (into.cast_const(), back.as_mut_ptr().cast());
            ok(cclScatterV(from, counts, null(), into, COUNTS[rank], INT32, 1, comm, stream));
            done();
            assert_eq!(back, [[10, 11, -1], [-1; 3], [210, 211, 212]][rank]);
        });
    });
    destroy_all(&comms);
}

#[test]
fn overlapping_and_disagreeing_blocks_are_refused() {
    let comms = init_all::<3>();
    let comm = comms[0];
    let stream = stream();
    let mut buffer = [0i32; 20];
    let at = buffer.as_mut_ptr();
    for stream in [0, stream] {
        let gather = |send: *const i32, count, places: &[usize; 3]| {
            cclAllGatherV(
                send.cast(),
                count,
                at.cast(),
                COUNTS.as_ptr(),
                places.as_ptr(),
                INT32,
                comm,
                stream,
            )
        };
        let send = at.wrapping_add(10);
        refused(gather(send, 2, &[1, 0, 2]), INVALID_ARGUMENT, "blocks of recvbuff overlap");
        refused(gather(send, 1, &[0, 2, 2]), INVALID_ARGUMENT, "sends itself 1 elements and receives 2");
        refused(gather(send, 2, &[0, 2, 9]), INVALID_ARGUMENT, "overlap");
        refused(gather(send, 2, &[0, 2, usize::MAX]), INVALID_ARGUMENT, "2^63");
        refused(gather(null(), 2, &[0, 2, 2]), INVALID_ARGUMENT, "NULL");
        let counts = null();
        let code = cclAllGatherV(send.cast(), 2, at.cast(), counts, null(), INT32, comm, stream);
        refused(code, INVALID_ARGUMENT, "counts array of recvbuff is NULL");
    }
    ok(cclHostStreamSynchronize(stream));
    ok(cclHostStreamDestroy(stream));
    destroy_all(&comms);
}

#[test]
fn transfers_keep_their_order() {
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        both_ways(comm, |comm, stream, done| {
            let peer = 1 - rank as i32;
            let mut words = [[7u64; 300], [8; 300]];
            for word in &mut words {
                match rank {
                    0 => ok(cclSend(word.as_ptr().cast(), 300, UINT64, peer, comm, stream)),
                    _ => {
                        word.fill(0);
                        ok(cclRecv(word.as_mut_ptr().cast(), 300, UINT64, peer, comm, stream));
                    }
                }
            }
            done();
            assert_eq!(words, [[7; 300], [8; 300]]);
            refused(cclSend(null(), 0, UINT64, 2, comm, stream), INVALID_ARGUMENT, "peer 2");
        });
    });
    destroy_all(&comms);
}

#[test]
fn an_operator_is_made_for_its_communicator() {
    let comms = init_all::<2>();
    on_threads(&comms, |rank, comm| {
        let (factor, mut op) = (rank as f32 + 2.0, -1);
        ok(cclRedOpCreatePreMulSum(&mut op, (&raw const factor).cast(), FLOAT32, 1, comm));
        assert_eq!(op, ccl_ffi::cclRedOp_t::cclNumOps as i32);
        both_ways(comm, |comm, stream, done| {
            let mut buffer = [10f32];
            let at = buffer.as_mut_ptr().cast();
            ok(cclAllReduce(at, at, 1, FLOAT32, op, comm, stream));
            done();
            assert_eq!(buffer, [50.0]);
        });
        let at = [0f32].as_mut_ptr().cast();
        refused(cclAllReduce(at, at, 1, FLOAT32, op + 1, comm, 0), INVALID_ARGUMENT, "operator 9");
        refused(cclRedOpDestroy(MAX, comm), INVALID_ARGUMENT, "operator 2");
        ok(cclRedOpDestroy(op, comm));
        refused(cclRedOpDestroy(op, comm), INVALID_ARGUMENT, "operator 8");
        refused(cclAllReduce(at, at, 1, FLOAT32, op, comm, 0), INVALID_ARGUMENT, "operator 8");
        let scalar = (&raw const factor).cast();
        refused(cclRedOpCreatePreMulSum(&mut op, scalar, FLOAT32, 0, comm), INVALID_USAGE, "device memory");
        refused(cclRedOpCreatePreMulSum(&mut op, null(), FLOAT32, 1, comm), INVALID_ARGUMENT, "NULL");
        ok(cclBarrier(comm, 0));
    });
    destroy_all(&comms);
}

#[test]
fn a_probe_tells_what_has_come() {
    let comms = init_all::<2>();
    let turn = std::sync::Barrier::new(2);
    on_threads(&comms, |rank, comm| {
        let probe = || {
            let mut arrived = -1;
            ok(cclProbe(comm, 1 - rank as i32, &mut arrived));
            arrived
        };
        let mut word = [rank as u64];
        assert_eq!(probe(), 0, "before the link is open");
        for _ in 0..3 {
            match rank {
                0 => {
                    ok(cclSend(word.as_ptr().cast(), 1, UINT64, 1, comm, 0));
                    turn.wait();
                }
                _ => {
                    ok(cclRecv(word.as_mut_ptr().cast(), 1, UINT64, 0, comm, 0));
                    turn.wait();
                    assert_eq!(word, [0]);
                    assert_eq!(probe(), 0, "it has been taken");
                }
            }
            turn.wait();
            if rank == 0 {
                ok(cclSend(word.as_ptr().cast(), 1, UINT64, 1, comm, 0));
            } else {
                while probe() == 0 {
                    std::thread::yield_now();
                }
                ok(cclRecv(word.as_mut_ptr().cast(), 1, UINT64, 0, comm, 0));
            }
            turn.wait();
        }
        refused(cclProbe(comm, 2, &mut 0), INVALID_ARGUMENT, "rank 2 in a communicator of 2");
        refused(cclProbe(comm, -1, &mut 0), INVALID_ARGUMENT, "peer");
        refused(cclProbe(comm, 0, std::ptr::null_mut()), INVALID_ARGUMENT, "NULL");
    });
    destroy_all(&comms);
}

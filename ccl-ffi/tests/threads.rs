//! Many threads, several communicators, everything at once. `SOAK_SECONDS` says for how long, two by default.

mod common;
use common::*;
use std::time::{Duration, Instant};

fn soak() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

/// Eight threads are the ranks of four communicators. Every round has calls without a stream, on streams and in groups;
/// rank 0 says when it is over.
#[test]
fn eight_threads_by_four_communicators() {
    let jobs = [init_all::<8>(), init_all::<8>(), init_all::<8>(), init_all::<8>()];
    let begin = Instant::now();
    on_threads(&[0; 8], |rank, _| {
        let comms = jobs.map(|job| job[rank]);
        let streams = [stream(), stream()];
        let mut go_on = [1f32];
        for round in 1.. {
            let mut buffers = [[1f32; 37]; 4];
            for ((place, comm), buffer) in comms.iter().copied().enumerate().zip(&mut buffers) {
                ok(all_reduce(buffer, comm, streams[place % 2]));
            }
            streams.iter().for_each(|stream| ok(cclHostStreamSynchronize(*stream)));
            assert_eq!(buffers, [[8.0; 37]; 4]);

            let (mut sums, own, mut theirs) = ([[1f32; 5]; 4], [rank as f32], [-1f32]);
            ok(cclGroupStart());
            for place in 0..4 {
                // Each rank in an order of its own.
                let place = (place + rank) % 4;
                ok(all_reduce(&mut sums[place], comms[place], if round % 2 == 0 { 0 } else { streams[0] }));
            }
            ok(cclSend(own.as_ptr().cast(), 1, FLOAT32, (rank as i32 + 1) % 8, comms[0], 0));
            ok(cclRecv(theirs.as_mut_ptr().cast(), 1, FLOAT32, (rank as i32 + 7) % 8, comms[0], 0));
            ok(cclGroupEnd());
            ok(cclHostStreamSynchronize(streams[0]));
            assert_eq!((sums, theirs), ([[8.0; 5]; 4], [((rank + 7) % 8) as f32]));

            go_on[0] = if rank == 0 && begin.elapsed() < soak() { 1.0 } else { 0.0 };
            ok(all_reduce(&mut go_on, comms[3], 0));
            if go_on[0] == 0.0 {
                break;
            }
        }
        streams.into_iter().for_each(|stream| ok(cclHostStreamDestroy(stream)));
    });
    jobs.iter().for_each(|job| destroy_all(job));
}

/// Two ranks with four threads each, which all issue the same calls on all communicators: whose call meets whose does
/// not matter then, but all must be made one at a time.
#[test]
fn threads_share_a_rank() {
    const ROUNDS: usize = 100;
    let jobs = [init_all::<2>(), init_all::<2>()];
    on_threads(&[0; 8], |thread, _| {
        let stream = stream();
        for round in 0..ROUNDS {
            for job in &jobs {
                let mut buffer = [1f32; 16];
                let on = if round % 3 == 0 { stream } else { 0 };
                ok(all_reduce(&mut buffer, job[thread % 2], on));
                ok(cclHostStreamSynchronize(stream));
                assert_eq!(buffer, [2.0; 16]);
            }
        }
        ok(cclHostStreamDestroy(stream));
    });
    let calls = |comm| {
        let mut properties = Properties {
            size: size_of::<Properties>(),
            rank: 0,
            ranks: 0,
            host_ranks: 0,
            unreachable_peers: 0,
            memory_bytes: 0,
            calls: 0,
            transports: [0; 64],
        };
        ok(cclCommGetProperties(comm, &mut properties));
        properties.calls
    };
    for job in jobs {
        assert_eq!(job.map(calls), [4 * ROUNDS as u64; 2]);
        destroy_all(&job);
    }
}

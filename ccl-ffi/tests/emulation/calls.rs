//! Every call gives the bits of host memory.

use crate::common::*;
use crate::cuda::*;
use crate::world::*;

#[test]
fn an_all_reduce_is_one_kernel_on_the_callers_stream() {
    let gpus = gpus(1, "");
    let comms = on_devices::<2>(&gpus);
    let before = launches(&gpus);
    on_threads(&comms, |rank, comm| {
        let queue = gpus.queue(0);
        let (from, into) = (gpus.buffer(0, &floats(100, rank)), gpus.buffer(0, &noise(400, 9)));
        ok(cclAllReduce(from.send(), into.recv(), 100, FLOAT32, SUM, comm, queue.handle));
        queue.finish();
        let sum = |i: usize| {
            let at = |bytes: Vec<u8>| f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
            at(floats(100, 0)) + at(floats(100, 1))
        };
        let expected: Vec<u8> = (0..100).flat_map(|i| sum(i).to_le_bytes()).collect();
        assert!(into.bytes() == expected, "rank {rank}");
        assert_eq!(async_error(comm), SUCCESS);
        let mut device = -1;
        ok(cclCommDevice(comm, &mut device));
        assert_eq!(device, 0);
    });
    assert_eq!(launches(&gpus) - before, 2);
    destroy_all(&comms);
}

//! A job of two hundred ranks in one process.

use ccl::{Communicator, ReduceOp, run_together};

const RANKS: u32 = 200;

#[test]
fn two_hundred_threads_make_collectives_and_transfers() {
    let ranks = Communicator::local(RANKS).expect("two hundred ranks");
    let work = |mut comm: Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut sum = [0u32; 3];
        comm.all_reduce(&[rank, 1, rank % 7], &mut sum, ReduceOp::Sum).expect("all_reduce");
        assert_eq!(sum[..2], [size * (size - 1) / 2, size]);
        let mut all = vec![0u32; size as usize];
        comm.all_gather(&[rank * 3], &mut all).expect("all_gather");
        assert!((0..size).zip(&all).all(|(r, got)| *got == r * 3));
        let mut got = [0u32];
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        comm.batch().receive(&mut got, previous).send(&[rank], next).run().expect("a ring of transfers");
        assert_eq!(got, [previous]);
        comm
    };
    let mut ranks: Vec<Communicator> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // The same job, driven by one thread.
    let mut sums = vec![[0u64]; RANKS as usize];
    let batches = ranks.iter_mut().zip(&mut sums);
    let batches = batches.map(|(comm, sum)| comm.batch().all_reduce(&[2u64], sum, ReduceOp::Max)).collect();
    run_together(batches).expect("two hundred ranks on one thread");
    assert!(sums.iter().all(|sum| *sum == [2]));
}

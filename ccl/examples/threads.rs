//! Four ranks as threads of one process: `cargo run --example threads`.

#![allow(clippy::print_stdout)] // an example talks to people

use ccl::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let ranks = Communicator::local(4)?;
    let threads: Vec<_> = ranks.into_iter().map(|comm| std::thread::spawn(move || work(comm))).collect();
    for thread in threads {
        thread.join().expect("no rank panics")?;
    }
    Ok(())
}

fn work(mut comm: Communicator) -> Result<()> {
    // Everybody contributes a gradient, everybody gets the mean.
    let mut gradient = vec![comm.rank() as f32; 1 << 20];
    comm.all_reduce_in_place(&mut gradient, ReduceOp::Avg)?;
    assert!(gradient.iter().all(|g| *g == 1.5));

    // Everybody gets everybody's rank.
    let mut ranks = vec![0; comm.size() as usize];
    comm.all_gather(&[comm.rank()], &mut ranks)?;
    if comm.rank() == 0 {
        println!("mean {} over ranks {ranks:?}", gradient[0]);
    }
    Ok(())
}

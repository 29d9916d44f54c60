//! `small_all_reduce RANKS TIMES`: all-reduces of 8 bytes between threads, and nothing else: what the counts in
//! `cargo xtask counts` are taken of.

use ccl::{Communicator, ReduceOp, Result};
use std::thread;

fn work(mut comm: Communicator, times: u64) -> Result<f64> {
    let send = [f64::from(comm.rank())];
    let mut sum = [0.0];
    for _ in 0..times {
        comm.all_reduce(&send, &mut sum, ReduceOp::Sum)?;
    }
    Ok(sum[0])
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(ranks)), Some(Ok(times))) = (arguments.next(), arguments.next()) else {
        return Err("usage: small_all_reduce RANKS TIMES".into());
    };
    let expected = (0..ranks).sum::<u64>() as f64;
    let mut ranks = Communicator::local(u32::try_from(ranks)?)?.into_iter();
    let first = ranks.next().ok_or("no ranks")?;
    let others: Vec<_> = ranks.map(|comm| thread::spawn(move || work(comm, times))).collect();
    let mut sums = vec![work(first, times)?];
    for other in others {
        sums.push(other.join().map_err(|_| "a rank panicked")??);
    }
    if sums.iter().any(|&sum| sum != expected) {
        return Err(format!("sums {sums:?}, not {expected}").into());
    }
    Ok(())
}

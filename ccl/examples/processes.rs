//! One rank per process, as a launcher starts them:
//!
//! ```text
//! mpirun -n 4 target/debug/examples/processes
//! torchrun --no-python --nproc-per-node 4 target/debug/examples/processes
//! ```
//!
//! or by hand, with one line per rank: `RDMACCL_ROOT=127.0.0.1:29400 RDMACCL_SIZE=2 RDMACCL_RANK=0 …`.

#![allow(clippy::print_stdout)] // an example talks to people

use ccl::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut sum = [0_u64];
    comm.all_reduce(&[u64::from(comm.rank()) + 1], &mut sum, ReduceOp::Sum)?;
    println!("rank {} of {}: {}", comm.rank(), comm.size(), sum[0]);
    Ok(())
}

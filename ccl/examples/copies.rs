//! `copies --collective C --algorithm A --ranks N --bytes B --memory ordinary|mapped --place in|out --calls K`: K calls of N threads, each
//! with B bytes in the larger of its input and output.
//!
//! It prints what memory the calls move data through, a line for each piece: `buffer` or `slots`, its first byte and its
//! length, all whole pages. So who watches all loads and stores, as `cargo xtask counts` does, knows how often a byte was copied.

// A command-line program talks to people.
#![allow(clippy::print_stdout)]

use ccl::{Buffers, Call, Collective, Communicator, DataType, ReduceOp, SharedMemory};
use std::error::Error;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Barrier;
use std::thread;

const USAGE: &str = "usage: copies --collective C --algorithm A --ranks N --bytes B --memory ordinary|mapped --place in|out --calls K";
/// Nothing else lies on the pages of a buffer.
const PAGE: usize = 4096;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What all ranks do.
struct Work {
    call: Call,
    algorithm: String,
    mapped: bool,
    in_place: bool,
    calls: u64,
    together: Barrier,
}

/// Zeroed memory of either kind.
enum Memory {
    /// A page longer than it has to be. Of 128 KiB and more nobody writes the zeros: they are the kernel's pages.
    Ordinary(Vec<u8>),
    Mapped(SharedMemory),
}

impl Memory {
    fn new(mapped: bool, bytes: usize) -> Outcome<Memory> {
        let bytes = bytes.next_multiple_of(PAGE);
        Ok(match mapped {
            true => Memory::Mapped(SharedMemory::alloc(bytes)?),
            false => Memory::Ordinary(vec![0; bytes + PAGE]),
        })
    }

    /// Whole pages.
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Ordinary(bytes) => {
                let (at, len) = (bytes.as_ptr().align_offset(PAGE), bytes.len() - PAGE);
                &mut bytes[at..][..len]
            }
            Memory::Mapped(memory) => memory,
        }
    }
}

impl Work {
    fn run(&self, mut comm: Communicator) -> Outcome<()> {
        let (call, ranks, rank) = (&self.call, comm.size(), comm.rank());
        let bytes = |blocks: u32| blocks as usize * call.count * call.dtype.size();
        let input = bytes(call.collective.input_blocks(ranks, rank, call.root));
        let output = bytes(call.collective.output_blocks(ranks, rank, call.root));
        let mut memory = [Memory::new(self.mapped, input.max(output))?, Memory::new(self.mapped, output)?];
        let [send, recv] = memory.each_mut().map(Memory::bytes);
        for buffer in [&send, &recv] {
            println!("buffer {:p} {}", buffer.as_ptr(), buffer.len());
        }
        // In place the smaller of the two is the rank's own block of the larger.
        let place = |part: usize, whole: usize| -> Range<usize> {
            let first = if part < whole { rank as usize * part } else { 0 };
            first..first + part
        };
        comm.set_algorithm(Some(&self.algorithm))?;
        for _ in 0..self.calls {
            let buffers = match self.in_place {
                true => Buffers::in_place(send, place(input, output), place(output, input)),
                false => Buffers::new(&send[..input], &mut recv[..output]),
            };
            comm.run(call, buffers)?;
        }
        // They are shown while all ranks still have them.
        self.together.wait();
        let shown = if rank == 0 { show_slots() } else { Ok(()) };
        self.together.wait();
        shown
    }
}

/// What ranks share to send through, as the kernel lists it.
fn show_slots() -> Outcome<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines().filter(|line| line.contains("/memfd:rdmaccl ")) {
        let (first, end) =
            line.split(' ').next().and_then(|range| range.split_once('-')).ok_or("odd maps")?;
        let (first, end) = (u64::from_str_radix(first, 16)?, u64::from_str_radix(end, 16)?);
        println!("slots {first:#x} {}", end - first);
    }
    Ok(())
}

fn option<T: FromStr>(name: &str) -> Outcome<T> {
    let mut arguments = std::env::args().skip_while(|word| word != name).skip(1);
    let value = arguments.next().and_then(|word| word.parse().ok());
    value.ok_or_else(|| USAGE.into())
}

/// Whether an option has the first of two values.
fn is_first(name: &str, [first, second]: [&str; 2]) -> Outcome<bool> {
    let value: String = option(name)?;
    if value == first || value == second { Ok(value == first) } else { Err(USAGE.into()) }
}

fn main() -> Outcome<()> {
    let collective: Collective = option("--collective")?;
    let (ranks, bytes): (u32, usize) = (option("--ranks")?, option("--bytes")?);
    let blocks = collective.input_blocks(ranks, 0, 0).max(collective.output_blocks(ranks, 0, 0));
    let count = bytes / blocks as usize / size_of::<f32>();
    let work = Work {
        call: Call { collective, count, dtype: DataType::F32, op: ReduceOp::Sum, root: 0 },
        algorithm: option("--algorithm")?,
        mapped: is_first("--memory", ["mapped", "ordinary"])?,
        in_place: is_first("--place", ["in", "out"])?,
        calls: option("--calls")?,
        together: Barrier::new(ranks as usize),
    };
    let ranks = Communicator::local(ranks)?;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work.run(comm))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a rank panicked")?)
    })
}

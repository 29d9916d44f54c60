//! One rank's part of a call: its buffers, and what they must hold afterwards.

use crate::random::mix;
use crate::step::{Draw, What};
use crate::value;
use ccl::{Blocks, Buffers, Call, Collective, Communicator, Operation, Rank, SharedMemory};
use std::ops::{Deref, DerefMut, Range};

/// What no call writes is recognisable afterwards.
const UNTOUCHED: u8 = 0xa5;

pub(crate) struct Job {
    draw: Draw,
    ranks: u32,
    rank: Rank,
    memory: Memory,
    /// What the receive buffer must hold.
    wanted: Vec<u8>,
}

/// In bytes.
enum Memory {
    Apart(Bytes, Bytes),
    Shared { bytes: Bytes, input: Range<usize>, output: Range<usize> },
}

enum Bytes {
    Private(Vec<u8>),
    Mapped(SharedMemory),
}

impl Bytes {
    /// So many bytes; private ones where the system gives no others.
    fn of(len: usize, mapped: bool) -> Bytes {
        let memory = if mapped && len > 0 { SharedMemory::alloc(len).ok() } else { None };
        let mut bytes = memory.map_or_else(|| Bytes::Private(vec![0; len]), Bytes::Mapped);
        bytes.fill(UNTOUCHED);
        bytes
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Private(bytes) => bytes,
            Bytes::Mapped(memory) => memory,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Private(bytes) => bytes,
            Bytes::Mapped(memory) => memory,
        }
    }
}

impl Job {
    /// The part of `rank` among so many.
    pub(crate) fn new(draw: &Draw, ranks: u32, rank: Rank) -> Job {
        let size = draw.dtype.size();
        let of = Side { draw, ranks, root: draw.root % ranks };
        let input: Vec<u8> = (0..of.inputs(rank)).flat_map(|block| of.sent(rank, block)).collect();
        let wanted: Vec<u8> = (0..of.outputs(rank)).flat_map(|block| of.received(rank, block)).collect();
        let block = rank as usize * draw.count * size;
        let both = of.inputs(rank) > 0 && of.outputs(rank) > 0;
        let places = match draw.what {
            What::Even(collective) if draw.in_place && both => Some(match collective {
                Collective::AllGather | Collective::Gather => (block..block + input.len(), 0..wanted.len()),
                Collective::ReduceScatter | Collective::Scatter => {
                    (0..input.len(), block..block + wanted.len())
                }
                _ => (0..input.len(), 0..wanted.len()),
            }),
            _ => None,
        };
        let memory = match places {
            Some((from, into)) => {
                let mut bytes = Bytes::of(from.end.max(into.end), draw.mapped);
                bytes[from.clone()].copy_from_slice(&input);
                Memory::Shared { bytes, input: from, output: into }
            }
            None => {
                let mut from = Bytes::of(input.len(), draw.mapped);
                from.copy_from_slice(&input);
                Memory::Apart(from, Bytes::of(wanted.len(), draw.mapped))
            }
        };
        Job { draw: draw.clone(), ranks, rank, memory, wanted }
    }

    /// Makes the call alone.
    pub(crate) fn run(&mut self, comm: &mut Communicator) -> ccl::Result<()> {
        let (what, call, blocks) = (self.draw.what, self.call(), self.blocks());
        match what {
            What::Even(_) => comm.run(&call, self.view()),
            What::Uneven(_) => comm.run_uneven(&call, &blocks, self.view()),
            What::Shift => {
                let operations = self.operations();
                let mut batch = comm.batch();
                operations.into_iter().for_each(|operation| batch.push(operation));
                batch.run()
            }
        }
    }

    /// The call, for a group.
    pub(crate) fn operations(&mut self) -> Vec<Operation<'_>> {
        let (call, blocks) = (self.call(), self.blocks());
        let Draw { dtype, count, root, what, .. } = self.draw;
        let (ranks, rank) = (self.ranks, self.rank);
        let view = self.view();
        match what {
            What::Even(_) => vec![Operation::collective(call, view)],
            What::Uneven(_) => vec![Operation::uneven(call, blocks, view)],
            What::Shift => {
                let by = root % ranks;
                vec![
                    Operation::send((rank + by) % ranks, dtype, count, view),
                    Operation::receive((rank + ranks - by) % ranks, dtype, count, view),
                ]
            }
        }
    }

    /// Compares the receive buffer with what it must hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let got: &[u8] = match &self.memory {
            Memory::Apart(_, bytes) => bytes,
            Memory::Shared { bytes, output, .. } => &bytes[output.clone()],
        };
        let wrong = got.iter().zip(&self.wanted).position(|(got, wanted)| got != wanted);
        match wrong {
            None => Ok(()),
            Some(at) => Err(format!(
                "rank {} of {}: byte {at} is {:#04x} instead of {:#04x} in {:?}",
                self.rank, self.ranks, got[at], self.wanted[at], self.draw
            )),
        }
    }

    fn call(&self) -> Call {
        let Draw { what, count, dtype, op, root, .. } = self.draw;
        let collective = match what {
            What::Even(collective) | What::Uneven(collective) => collective,
            What::Shift => Collective::SendRecv,
        };
        let root = if collective.rooted() { root % self.ranks } else { 0 };
        Call { collective, count, dtype, op, root }
    }

    fn blocks(&self) -> Blocks {
        let of = Side { draw: &self.draw, ranks: self.ranks, root: self.draw.root % self.ranks };
        let packed =
            |many: u32, len: &dyn Fn(u32) -> usize| Blocks::packed(&(0..many).map(len).collect::<Vec<_>>());
        Blocks {
            input: packed(of.inputs(self.rank), &|block| of.input_len(self.rank, block)),
            output: packed(of.outputs(self.rank), &|block| of.output_len(self.rank, block)),
        }
    }

    fn view(&mut self) -> Buffers<'_> {
        match &mut self.memory {
            Memory::Apart(from, into) => Buffers::new(from, into),
            Memory::Shared { bytes, input, output } => {
                Buffers::in_place(bytes, input.clone(), output.clone())
            }
        }
    }
}

/// What a draw means for each rank.
struct Side<'d> {
    draw: &'d Draw,
    ranks: u32,
    root: Rank,
}

impl Side<'_> {
    fn inputs(&self, rank: Rank) -> u32 {
        match self.draw.what {
            What::Even(collective) | What::Uneven(collective) => {
                collective.input_blocks(self.ranks, rank, self.root)
            }
            What::Shift => 1,
        }
    }

    fn outputs(&self, rank: Rank) -> u32 {
        match self.draw.what {
            What::Even(collective) | What::Uneven(collective) => {
                collective.output_blocks(self.ranks, rank, self.root)
            }
            What::Shift => 1,
        }
    }

    fn input_len(&self, rank: Rank, block: u32) -> usize {
        match self.draw.what {
            What::Uneven(Collective::AllGather | Collective::Gather) => self.draw.length(rank, 0),
            _ => self.draw.length(rank, block),
        }
    }

    fn output_len(&self, rank: Rank, block: u32) -> usize {
        match self.draw.what {
            What::Uneven(Collective::ReduceScatter | Collective::Scatter) => self.draw.length(0, rank),
            _ => self.draw.length(block, rank),
        }
    }

    fn seed(&self, rank: Rank, block: u32) -> u64 {
        mix(self.draw.seed, u64::from(rank) << 32 | u64::from(block))
    }

    fn sent(&self, rank: Rank, block: u32) -> Vec<u8> {
        let op = self.draw.what.reduces().then_some(self.draw.op);
        value::block(self.draw.dtype, op, self.seed(rank, block), self.input_len(rank, block))
    }

    fn received(&self, rank: Rank, block: u32) -> Vec<u8> {
        let reduced = |of: u32| {
            let seeds: Vec<_> = (0..self.ranks).map(|from| self.seed(from, of)).collect();
            value::reduced(self.draw.dtype, self.draw.op, &seeds, self.output_len(rank, block))
        };
        match self.draw.what {
            What::Even(collective) | What::Uneven(collective) => match collective {
                Collective::AllReduce | Collective::Reduce => reduced(0),
                Collective::ReduceScatter => reduced(rank),
                Collective::Broadcast => self.sent(self.root, 0),
                Collective::AllGather | Collective::Gather => self.sent(block, 0),
                Collective::AllToAll => self.sent(block, rank),
                Collective::Scatter | Collective::SendRecv => self.sent(self.root, rank),
            },
            What::Shift => self.sent((rank + self.ranks - self.root) % self.ranks, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::step::Step;
    use std::thread;

    /// What the arithmetic here says, the library does; and another byte is noticed.
    #[test]
    fn calls_give_what_is_wanted_and_a_wrong_byte_is_found() {
        for ranks in 1..=4 {
            let mut random = Random::new(11, u64::from(ranks));
            let mut script: Vec<_> = (0..60).map(|_| Step::draw(&mut random, ranks)).collect();
            script.retain(|step| matches!(step, Step::Calls(draws) if draws.len() == 1));
            let planted = thread::scope(|scope| {
                let on_rank = |mut comm: Communicator| {
                    let mut planted = 0;
                    for step in &script {
                        let Step::Calls(draws) = step else { continue };
                        let mut job = Job::new(&draws[0], ranks, comm.rank());
                        job.run(&mut comm).unwrap();
                        job.check().unwrap();
                        if let Some(byte) = job.wanted.last_mut() {
                            *byte ^= 1;
                            job.check().unwrap_err();
                            planted += 1;
                        }
                    }
                    planted
                };
                let ranks = Communicator::local(ranks).unwrap().into_iter();
                let threads: Vec<_> = ranks.map(|comm| scope.spawn(move || on_rank(comm))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>()
            });
            assert!(planted > 10, "{planted}");
        }
    }
}

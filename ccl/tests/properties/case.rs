//! A case: the calls of one group, with every rank's memory before and after.

use crate::value::{self, Value};
use ccl::{Blocks, Buffers, Call, Collective, DataType, Operation, ReduceOp};
use std::ops::Range;

/// What a case is drawn from; any numbers make a valid case.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) kind: u8,
    pub(crate) dtype: usize,
    pub(crate) op: usize,
    pub(crate) count: usize,
    pub(crate) root: u32,
    pub(crate) in_place: bool,
    pub(crate) seed: u64,
    /// Lengths of uneven blocks, and who sends to whom.
    pub(crate) lengths: Vec<usize>,
}

/// One call of a group, on all ranks.
pub(crate) struct Job {
    what: What,
    dtype: DataType,
    /// Each rank's operator: factors differ.
    ops: Vec<ReduceOp>,
    root: u32,
    pub(crate) members: Vec<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Even(Collective, usize),
    Uneven(Collective),
    Transfer { from: u32, to: u32, count: usize },
}

/// One rank's part.
pub(crate) struct Memory {
    blocks: Blocks,
    /// The one buffer, or the send and the receive buffer.
    buffers: Vec<Vec<u8>>,
    /// Where the send buffer lies in the first buffer, and the receive buffer in the last.
    input: Range<usize>,
    output: Range<usize>,
    /// What the last buffer holds afterwards; `None`: what it held before.
    wanted: Vec<Option<Value>>,
}

/// What no call writes is recognisable afterwards.
const UNTOUCHED: u8 = 0xa5;

fn mix(seed: u64, word: u64) -> u64 {
    let x = (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

fn at(block: usize, count: usize) -> Range<usize> {
    block * count..(block + 1) * count
}

impl Job {
    /// The calls that a draw stands for, on so many ranks.
    pub(crate) fn of(draw: &Draw, ranks: u32) -> Vec<Job> {
        let dtype = DataType::ALL[draw.dtype % DataType::ALL.len()];
        let ops: Vec<ReduceOp> = Job::operators(draw, dtype, ranks);
        let root = draw.root % ranks;
        let even = |collective| {
            let blocks = |rank| {
                let side = |blocks: u32| (0..blocks as usize).map(|b| at(b, draw.count)).collect();
                Blocks {
                    input: side(Collective::input_blocks(collective, ranks, rank, root)),
                    output: side(Collective::output_blocks(collective, ranks, rank, root)),
                }
            };
            let blocks = (0..ranks).map(blocks).collect();
            vec![Job::new(What::Even(collective, draw.count), dtype, &ops, root, blocks, draw)]
        };
        let uneven = |collective| {
            let blocks = (0..ranks).map(|rank| Job::uneven(draw, collective, ranks, rank, root)).collect();
            vec![Job::new(What::Uneven(collective), dtype, &ops, root, blocks, draw)]
        };
        match draw.kind % 14 {
            kind @ 0..8 => even(Collective::ALL[kind as usize]),
            8 => uneven(Collective::AllGather),
            9 => uneven(Collective::ReduceScatter),
            10 => uneven(Collective::AllToAll),
            11 => uneven(Collective::Gather),
            12 => uneven(Collective::Scatter),
            _ => {
                // A pattern of transfers; a cycle of them would wait for ever if they were made one by one.
                let transfers = draw.lengths.iter().enumerate().map(|(i, count)| {
                    let word = mix(draw.seed, i as u64);
                    let (from, to) =
                        ((word % u64::from(ranks)) as u32, ((word >> 20) % u64::from(ranks)) as u32);
                    let blocks = |rank| Blocks {
                        input: Vec::from_iter((rank == from).then(|| at(0, *count))),
                        output: Vec::from_iter((rank == to).then(|| at(0, *count))),
                    };
                    let what = What::Transfer { from, to, count: *count };
                    let apart = Draw { in_place: false, seed: word, ..draw.clone() };
                    Job::new(what, dtype, &ops, from, (0..ranks).map(blocks).collect(), &apart)
                });
                transfers.collect()
            }
        }
    }

    fn operators(draw: &Draw, dtype: DataType, ranks: u32) -> Vec<ReduceOp> {
        let premultiplied = |rank: u64| ReduceOp::PreMulSum(value::factor(dtype, mix(draw.seed, rank)).0);
        let fit: Vec<_> = ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok()).collect();
        match fit.get(draw.op % (fit.len() + 1)) {
            // The mean of floats rounds, unless it is a division by a power of two.
            Some(ReduceOp::Avg) if dtype.is_float() && !ranks.is_power_of_two() => {
                vec![ReduceOp::Sum; ranks as usize]
            }
            Some(op) => vec![*op; ranks as usize],
            None => (0..u64::from(ranks)).map(premultiplied).collect(),
        }
    }

    fn uneven(draw: &Draw, collective: Collective, ranks: u32, rank: u32, root: u32) -> Blocks {
        let length = |from: u32, to: u32| {
            // In place the two blocks of a pair are of one length.
            let (from, to) = if draw.in_place { (from.min(to), from.max(to)) } else { (from, to) };
            match draw.lengths.len() {
                0 => 0,
                n => draw.lengths[mix(draw.seed, u64::from(from * 64 + to)) as usize % n],
            }
        };
        // Blocks in descending order with gaps, or ascending without.
        let place = |lengths: Vec<usize>| {
            let gap = (draw.seed % 3) as usize;
            let mut blocks = vec![0..0; lengths.len()];
            let mut end = 0;
            let mut put = |block: usize| {
                blocks[block] = end + gap..end + gap + lengths[block];
                end += gap + lengths[block];
            };
            match gap {
                0 => (0..lengths.len()).for_each(&mut put),
                _ => (0..lengths.len()).rev().for_each(&mut put),
            }
            blocks
        };
        let each = |f: &dyn Fn(u32) -> usize| place((0..ranks).map(f).collect());
        let own = |len: usize| vec![at(0, len)];
        match collective {
            Collective::AllGather => {
                Blocks { input: own(length(rank, 0)), output: each(&|from| length(from, 0)) }
            }
            Collective::ReduceScatter => {
                Blocks { input: each(&|to| length(to, 0)), output: own(length(rank, 0)) }
            }
            Collective::AllToAll => {
                Blocks { input: each(&|to| length(rank, to)), output: each(&|from| length(from, rank)) }
            }
            Collective::Gather => Blocks {
                input: own(length(rank, 0)),
                output: if rank == root { each(&|from| length(from, 0)) } else { Vec::new() },
            },
            _ => Blocks {
                input: if rank == root { each(&|to| length(to, 0)) } else { Vec::new() },
                output: own(length(rank, 0)),
            },
        }
    }

    fn new(
        what: What,
        dtype: DataType,
        ops: &[ReduceOp],
        root: u32,
        blocks: Vec<Blocks>,
        draw: &Draw,
    ) -> Job {
        let factors: Vec<Value> =
            (0..ops.len() as u64).map(|rank| value::factor(dtype, mix(draw.seed, rank)).1).collect();
        // What each rank sends, block by block.
        let sent = |rank: usize, block: usize| -> Vec<Value> {
            let len = blocks[rank].input[block].len();
            let word = |i: usize| mix(draw.seed, (rank << 40 | block << 32 | i) as u64);
            (0..len).map(|i| value::draw(dtype, ops[rank], word(i))).collect()
        };
        let reduced = |block: usize| -> Vec<Value> {
            let all: Vec<_> = (0..blocks.len()).map(|rank| sent(rank, block)).collect();
            let terms = |i: usize| all.iter().map(|of| of[i]).collect::<Vec<_>>();
            (0..all[0].len()).map(|i| value::reduce(dtype, ops[0], &terms(i), &factors)).collect()
        };
        let received = |rank: usize, block: usize| -> Vec<Value> {
            let root = root as usize;
            match what {
                What::Transfer { .. } => sent(root, 0),
                What::Even(collective, _) | What::Uneven(collective) => match collective {
                    Collective::AllReduce | Collective::Reduce => reduced(0),
                    Collective::ReduceScatter => reduced(rank),
                    Collective::Broadcast => sent(root, 0),
                    Collective::AllGather | Collective::Gather => sent(block, 0),
                    Collective::AllToAll => sent(block, rank),
                    Collective::Scatter => sent(root, rank),
                    Collective::SendRecv => unreachable!("it is no collective"),
                },
            }
        };
        let size = dtype.size();
        let end = |side: &[Range<usize>]| side.iter().map(|b| b.end).max().unwrap_or(0);
        let member = |(rank, of): (usize, &Blocks)| {
            let (reads, writes) = (end(&of.input), end(&of.output));
            let shared = draw.in_place && !of.input.is_empty() && !of.output.is_empty();
            // Where the one lies in the other.
            let (input, output) = match what {
                What::Even(Collective::AllGather | Collective::Gather, _)
                | What::Uneven(Collective::AllGather | Collective::Gather)
                    if shared =>
                {
                    (of.output[rank].clone(), 0..writes)
                }
                What::Even(Collective::ReduceScatter | Collective::Scatter, _)
                | What::Uneven(Collective::ReduceScatter | Collective::Scatter)
                    if shared =>
                {
                    (0..reads, of.input[rank].clone())
                }
                _ => (0..reads, 0..writes),
            };
            let lengths = if shared { vec![input.end.max(output.end)] } else { vec![reads, writes] };
            let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|len| vec![UNTOUCHED; len * size]).collect();
            for (block, range) in of.input.iter().enumerate() {
                for (i, value) in sent(rank, block).into_iter().enumerate() {
                    let at = (input.start + range.start + i) * size;
                    buffers[0][at..at + size].copy_from_slice(&value::encode(dtype, value));
                }
            }
            let mut wanted = vec![None; lengths[lengths.len() - 1]];
            for (block, range) in of.output.iter().enumerate() {
                for (i, value) in received(rank, block).into_iter().enumerate() {
                    wanted[output.start + range.start + i] = Some(value);
                }
            }
            let bytes = |range: Range<usize>| range.start * size..range.end * size;
            Memory { blocks: of.clone(), buffers, input: bytes(input), output: bytes(output), wanted }
        };
        let members = blocks.iter().enumerate().map(member).collect();
        Job { what, dtype, ops: ops.to_vec(), root, members }
    }

    /// Whether an algorithm may be asked to do it.
    pub(crate) fn allows(&self, algorithm: &str) -> bool {
        let ranks = self.members.len() as u32;
        match self.what {
            What::Even(collective, _) | What::Uneven(collective) => {
                let able = ccl::algorithm_does(algorithm, collective, ranks, false);
                !able || ccl::algorithm_does(algorithm, collective, ranks, true)
            }
            What::Transfer { .. } => true,
        }
    }

    /// The call of every rank, by rank: none where a rank has no part in it, two where it sends to itself.
    pub(crate) fn operations(&mut self) -> Vec<Vec<Operation<'_>>> {
        let Job { what, dtype, ops, root, members } = self;
        let (what, dtype, root) = (*what, *dtype, *root);
        let mut all = Vec::new();
        for ((memory, op), rank) in members.iter_mut().zip(ops).zip(0..) {
            let Memory { blocks, buffers, input, output, .. } = memory;
            let count = if let What::Even(_, count) = what { count } else { 0 };
            let call = |collective: Collective| {
                let root = if collective.rooted() { root } else { 0 };
                Call { collective, count, dtype, op: *op, root }
            };
            let (first, last) = buffers.split_at_mut(1);
            let view = match last {
                [] => Buffers::in_place(&mut first[0], input.clone(), output.clone()),
                [recv, ..] => Buffers::new(&first[0], recv),
            };
            all.push(match what {
                What::Even(collective, _) => vec![Operation::collective(call(collective), view)],
                What::Uneven(collective) => vec![Operation::uneven(call(collective), blocks.clone(), view)],
                What::Transfer { from, to, count } => {
                    let send = (rank == from).then(|| Operation::send(to, dtype, count, view));
                    let receive = (rank == to).then(|| Operation::receive(from, dtype, count, view));
                    send.into_iter().chain(receive).collect()
                }
            });
        }
        all
    }

    /// Compares every rank's memory with what plain arithmetic says.
    pub(crate) fn check(&self) -> Result<(), String> {
        let size = self.dtype.size();
        for (rank, memory) in self.members.iter().enumerate() {
            let Some(buffer) = memory.buffers.last() else { continue };
            let single = memory.buffers.len() == 1;
            for (i, (bytes, wanted)) in buffer.chunks_exact(size).zip(&memory.wanted).enumerate() {
                let good = match wanted {
                    Some(wanted) => value::same(value::decode(self.dtype, bytes), *wanted),
                    // In place, the input may lie here, and no longer be needed.
                    None => single || bytes.iter().all(|byte| *byte == UNTOUCHED),
                };
                if !good {
                    return Err(format!(
                        "{:?} of {} by {:?}: element {i} on rank {rank} of {} is {:?} instead of {wanted:?}",
                        self.what,
                        self.dtype,
                        self.ops[0],
                        self.members.len(),
                        value::decode(self.dtype, bytes)
                    ));
                }
            }
        }
        Ok(())
    }
}

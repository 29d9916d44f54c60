//! A line of the table as work: where its data lies, how it is done, and what must come of it.

use crate::buffers::Layout;
use crate::data::{self, Inputs};
use ccl::device::{DeviceBuffers, DeviceCall};
use ccl::{Blocks, Buffers, Call, Collective, Communicator, DataType, Operation, ReduceOp, Result};

/// What one rank does in one line.
pub(crate) struct Work {
    rank: u32,
    ranks: u32,
    call: Call,
    /// Where blocks of different lengths lie; the same in both buffers.
    blocks: Option<Blocks>,
    bytes: u64,
}

impl Work {
    /// For buffers of at most `size` bytes: those of the larger side, as in nccl-tests.
    pub(crate) fn new(
        collective: Collective,
        is_uneven: bool,
        (rank, ranks): (u32, u32),
        size: u64,
        dtype: DataType,
        op: ReduceOp,
        root: u32,
    ) -> Work {
        let blocks = match collective {
            Collective::SendRecv => 1,
            _ => {
                let input = collective.input_blocks(ranks, root, root);
                input.max(collective.output_blocks(ranks, root, root)) as usize
            }
        };
        let elements = size as usize / dtype.size();
        let count = elements / blocks;
        let call = Call { collective, count, dtype, op, root };
        if is_uneven {
            let blocks = Blocks::packed(&uneven(elements, rank, ranks));
            let blocks = Some(Blocks { input: blocks.clone(), output: blocks });
            return Work { rank, ranks, call, blocks, bytes: (elements * dtype.size()) as u64 };
        }
        Work { rank, ranks, call, blocks: None, bytes: (count * dtype.size() * blocks) as u64 }
    }

    /// Its arguments.
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// The size that the table shows.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The algorithm of what leaves no choice.
    pub(crate) fn only_algorithm(&self) -> Option<&'static str> {
        match (self.call.collective, &self.blocks) {
            (Collective::SendRecv, _) => Some("transfer"),
            (_, Some(_)) => Some("exchange"),
            _ => None,
        }
    }

    /// Where the data lies.
    pub(crate) fn layout(&self) -> Layout {
        let block = self.call.count * self.call.dtype.size();
        match self.call.collective {
            Collective::SendRecv => Layout::whole(block),
            _ if self.blocks.is_some() => Layout::whole(self.bytes as usize),
            collective => Layout::new(collective, self.ranks, self.rank, self.call.root, block),
        }
    }

    /// Does it once.
    pub(crate) fn run(&self, comm: &mut Communicator, buffers: Buffers<'_>) -> Result<()> {
        let Call { collective, count, dtype, .. } = self.call;
        if let Some(blocks) = &self.blocks {
            return comm.run_uneven(&self.call, blocks, buffers);
        }
        if collective == Collective::SendRecv {
            let mut batch = comm.batch();
            batch.push(Operation::send(self.next(), dtype, count, buffers));
            batch.push(Operation::receive(self.previous(), dtype, count, buffers));
            return batch.run();
        }
        comm.run(&self.call, buffers)
    }

    /// The calls that do it on device memory.
    pub(crate) fn on_device<'m>(&self, buffers: DeviceBuffers<'m>) -> Vec<DeviceCall<'m>> {
        let Call { collective, count, dtype, .. } = self.call;
        if let Some(blocks) = &self.blocks {
            return vec![DeviceCall::uneven(self.call, blocks.clone(), buffers)];
        }
        if collective == Collective::SendRecv {
            return DeviceCall::exchange((self.next(), self.previous()), dtype, count, buffers).into();
        }
        vec![DeviceCall::collective(self.call, buffers)]
    }

    /// What every rank sends.
    pub(crate) fn inputs(&self, seed: u64) -> Inputs {
        let Call { collective, dtype, op, root, count } = self.call;
        let op = collective.reduces().then_some(op);
        // Every rank's data repeats alike, also that of ranks which send nothing themselves.
        let elements = match self.blocks {
            Some(_) => self.bytes as usize / dtype.size(),
            None => count * collective.input_blocks(self.ranks, root, root) as usize,
        };
        Inputs::new(dtype, op, self.ranks, seed, elements)
    }

    /// Elements of the receive buffer that are not what they must be.
    pub(crate) fn wrong(&self, output: &[u8], inputs: &Inputs) -> u64 {
        if output.is_empty() {
            return 0;
        }
        let Call { collective, dtype, op, root, count } = self.call;
        let element = dtype.size();
        let block = count * element;
        let mine = self.rank as usize * block;
        let is = |period: &[u8], first| data::count_wrong(output, period, first, element);
        if let Some(blocks) = &self.blocks {
            return self.wrong_blocks(output, inputs, blocks);
        }
        let parts = || (0u32..).zip(output.chunks_exact(block));
        match collective {
            Collective::AllReduce | Collective::Reduce => is(&inputs.reduced(op), 0),
            Collective::ReduceScatter => is(&inputs.reduced(op), mine),
            Collective::Broadcast => is(&inputs.of(root), 0),
            Collective::Scatter => is(&inputs.of(root), mine),
            Collective::SendRecv => is(&inputs.of(self.previous()), 0),
            Collective::AllGather | Collective::Gather => {
                parts().map(|(from, part)| data::count_wrong(part, &inputs.of(from), 0, element)).sum()
            }
            Collective::AllToAll => {
                parts().map(|(from, part)| data::count_wrong(part, &inputs.of(from), mine, element)).sum()
            }
        }
    }

    /// Block `from` of an uneven all-to-all begins where that rank's blocks before this rank's end.
    fn wrong_blocks(&self, output: &[u8], inputs: &Inputs, blocks: &Blocks) -> u64 {
        let element = self.call.dtype.size();
        let elements = self.bytes as usize / element;
        let wrong = |(from, block): (u32, &std::ops::Range<usize>)| {
            let theirs = Blocks::packed(&uneven(elements, from, self.ranks));
            let part = &output[block.start * element..block.end * element];
            data::count_wrong(part, &inputs.of(from), theirs[self.rank as usize].start * element, element)
        };
        (0u32..).zip(&blocks.output).map(wrong).sum()
    }

    fn next(&self) -> u32 {
        (self.rank + 1) % self.ranks
    }

    fn previous(&self) -> u32 {
        (self.rank + self.ranks - 1) % self.ranks
    }
}

/// How many of a rank's elements are for each rank: 1, 2, … n shares in an order of its own. Two ranks have the same
/// number for each other, as calls in place want it, and every rank sends and receives `elements`.
fn uneven(elements: usize, rank: u32, ranks: u32) -> Vec<usize> {
    let n = ranks as usize;
    let shares = n * (n + 1) / 2;
    let count = |peer: u32| {
        let place = (rank as usize + peer as usize) % n;
        let rest = if place == n - 1 { elements % shares } else { 0 };
        elements / shares * (place + 1) + rest
    };
    (0..ranks).map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_counts_agree_between_two_ranks_differ_within_one_and_use_everything() {
        for ranks in [1, 2, 3, 4, 7, 16] {
            for elements in [0, 1, 5, 1000, 65_537] {
                let all: Vec<_> = (0..ranks).map(|rank| uneven(elements, rank, ranks)).collect();
                for (i, counts) in all.iter().enumerate() {
                    assert_eq!(counts.iter().sum::<usize>(), elements, "n={ranks}");
                    assert!(counts.iter().enumerate().all(|(j, count)| *count == all[j][i]), "n={ranks}");
                }
            }
            let mut counts = uneven(1000, 0, ranks);
            counts.dedup();
            assert_eq!(counts.len(), ranks as usize, "no two blocks of a rank are of one length");
        }
    }

    #[test]
    fn sizes_are_those_of_the_larger_side() {
        let work =
            |collective, uneven| Work::new(collective, uneven, (1, 4), 1000, DataType::F32, ReduceOp::Sum, 0);
        let of = |collective| work(collective, false);
        assert_eq!((of(Collective::AllReduce).bytes(), of(Collective::AllReduce).call().count), (1000, 250));
        assert_eq!((of(Collective::AllToAll).bytes(), of(Collective::AllToAll).call().count), (992, 62));
        assert_eq!((of(Collective::SendRecv).bytes(), of(Collective::SendRecv).call().count), (1000, 250));
        let uneven = work(Collective::AllToAll, true);
        assert_eq!((uneven.bytes(), uneven.call().count, uneven.layout().input), (1000, 62, 1000));
    }

    #[test]
    fn a_wrong_element_of_an_uneven_block_is_seen() {
        let (ranks, rank) = (3, 1);
        let work = Work::new(Collective::AllToAll, true, (rank, ranks), 400, DataType::I32, ReduceOp::Sum, 0);
        let inputs = work.inputs(9);
        let blocks = |rank| Blocks::packed(&uneven(100, rank, ranks));
        let mut output = vec![0; 400];
        for (from, own) in (0u32..).zip(blocks(rank)) {
            let theirs = &blocks(from)[rank as usize];
            output[4 * own.start..4 * own.end]
                .copy_from_slice(&inputs.of(from)[4 * theirs.start..4 * theirs.end]);
        }
        assert_eq!(work.wrong(&output, &inputs), 0);
        for index in [0, 99] {
            output[4 * index] ^= 1;
        }
        assert_eq!(work.wrong(&output, &inputs), 2);
    }
}

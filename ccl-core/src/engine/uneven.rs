//! Blocks of different lengths: the v-collectives.

use super::layout;
use super::task::Span;
use crate::error::{Error, Result};
use crate::plan::{Collective, Rank, Spec};
use std::ops::Range;

/// The blocks of one rank's buffers, in elements: one range for each block that [`Collective`] says the
/// buffer has, in the order of the ranks.
///
/// | collective | `input` | `output` | who knows |
/// | --- | --- | --- | --- |
/// | `AllGather` | this rank's block | n blocks | every rank gives the same lengths |
/// | `ReduceScatter` | n blocks | this rank's block | every rank gives the same lengths |
/// | `AllToAll` | n blocks | n blocks | block j of rank i's input is as long as block i of rank j's output |
/// | `Gather` | this rank's block | n blocks at the root | the root's block i is as long as rank i's |
/// | `Scatter` | n blocks at the root | this rank's block | the same |
///
/// Ranks may leave gaps and need not ascend. Blocks of the output do not overlap. The other collectives have no
/// uneven form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// Blocks of the send buffer.
    pub input: Vec<Range<usize>>,
    /// Blocks of the receive buffer.
    pub output: Vec<Range<usize>>,
}

impl Blocks {
    /// Blocks of these lengths side by side.
    pub fn packed(counts: &[usize]) -> Vec<Range<usize>> {
        let mut at = 0usize;
        let next = |count: &usize| {
            let start = at;
            at = at.saturating_add(*count);
            start..at
        };
        counts.iter().map(next).collect()
    }
}

/// A block in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: usize,
    pub(super) len: usize,
    /// The length of its parts, all but the last ones.
    pub(super) part: usize,
}

impl Extent {
    /// The bytes of one part.
    pub(super) fn span(&self, part: u32) -> Span {
        let from = (part as usize * self.part).min(self.len);
        Span { at: self.at + from, len: (self.len - from).min(self.part) }
    }
}

/// [`Blocks`], checked and in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uneven {
    input: Box<[Extent]>,
    output: Box<[Extent]>,
    pairwise: bool,
}

impl Uneven {
    pub(super) fn new(spec: &Spec, rank: Rank, blocks: &Blocks, element: usize) -> Result<Uneven> {
        let Spec { collective, ranks, root, parts, .. } = *spec;
        let pairwise = match collective {
            Collective::AllGather | Collective::ReduceScatter => false,
            Collective::AllToAll | Collective::Gather | Collective::Scatter => true,
            _ => {
                return Err(Error::invalid(
                    format!("blocks of different lengths in {collective}"),
                    "all_gather, reduce_scatter, all_to_all, gather and scatter take them",
                ));
            }
        };
        let side = |ranges: &[Range<usize>], wanted: u32, what: &str| {
            if ranges.len() != wanted as usize {
                return Err(Error::invalid(
                    format!("{} blocks of the {what} buffer in {collective} on rank {rank}", ranges.len()),
                    format!("this rank has {wanted}"),
                ));
            }
            let extent = |range: &Range<usize>| {
                let bytes = |elements: usize| elements.checked_mul(element);
                let (at, end) = (bytes(range.start)?, bytes(range.end)?);
                let len = end.checked_sub(at).filter(|_| end <= isize::MAX as usize)?;
                // An empty one may be said to lie behind the end of the buffer.
                let at = if len == 0 { 0 } else { at };
                Some(Extent { at, len, part: layout::part(len, parts, element)? })
            };
            let checked = ranges.iter().map(|range| {
                extent(range).ok_or_else(|| {
                    Error::invalid(
                        format!("block {range:?} of the {what} buffer in {collective} on rank {rank}"),
                        "a range of elements that ascends and ends before 2^63 bytes",
                    )
                })
            });
            checked.collect::<Result<Box<[Extent]>>>()
        };
        let input = side(&blocks.input, collective.input_blocks(ranks, rank, root), "send")?;
        let output = side(&blocks.output, collective.output_blocks(ranks, rank, root), "receive")?;
        if let Some((one, other)) = overlap(&output) {
            return Err(Error::invalid(
                format!(
                    "blocks {one} and {other} of the receive buffer overlap in {collective} on rank {rank}"
                ),
                "give each block a place of its own",
            ));
        }
        let uneven = Uneven { input, output, pairwise };
        uneven.agree(spec, rank)?;
        Ok(uneven)
    }

    /// What this rank keeps must be as long in the one buffer as in the other.
    fn agree(&self, spec: &Spec, rank: Rank) -> Result<()> {
        let own = |blocks: &[Extent]| match blocks {
            [] => None,
            [one] => Some(one.len),
            all => Some(all[rank as usize].len),
        };
        match (own(&self.input), own(&self.output)) {
            (Some(sends), Some(receives)) if sends != receives => Err(Error::invalid(
                format!(
                    "rank {rank} sends itself {sends} bytes and receives {receives} in {}",
                    spec.collective
                ),
                "the block that a rank keeps has one length",
            )),
            _ => Ok(()),
        }
    }

    #[inline]
    pub(super) fn input(&self, block: u32) -> &Extent {
        &self.input[block as usize]
    }

    #[inline]
    pub(super) fn output(&self, block: u32) -> &Extent {
        &self.output[block as usize]
    }

    #[inline]
    pub(super) fn is_pairwise(&self) -> bool {
        self.pairwise
    }

    pub(super) fn longest_block(&self) -> usize {
        self.all().map(|extent| extent.len).max().unwrap_or(0)
    }

    pub(super) fn longest_part(&self) -> usize {
        self.all().map(|extent| extent.part.min(extent.len)).max().unwrap_or(0)
    }

    pub(super) fn input_bytes(&self) -> usize {
        end(&self.input)
    }

    pub(super) fn output_bytes(&self) -> usize {
        end(&self.output)
    }

    /// Offset and length of the one block that a reduction writes.
    pub(super) fn result(&self) -> (usize, usize) {
        self.output.first().map_or((0, 0), |block| (block.at, block.len))
    }

    fn all(&self) -> impl Iterator<Item = &Extent> {
        self.input.iter().chain(&self.output)
    }
}

/// Where the last block ends. Empty blocks lie nowhere.
fn end(blocks: &[Extent]) -> usize {
    blocks.iter().filter(|b| b.len > 0).map(|b| b.at + b.len).max().unwrap_or(0)
}

/// Two blocks that share a byte.
fn overlap(blocks: &[Extent]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].len > 0).collect();
    order.sort_unstable_by_key(|&i| blocks[i].at);
    let pair = order.windows(2).find(|pair| {
        let (one, next) = (blocks[pair[0]], blocks[pair[1]]);
        next.at < one.at + one.len
    })?;
    Some((pair[0].min(pair[1]), pair[0].max(pair[1])))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // buffers of one block
mod tests {
    use super::*;

    fn uneven(collective: Collective, rank: Rank, blocks: &Blocks) -> Result<Uneven> {
        Uneven::new(&Spec::new(collective, 3, 1, 1), rank, blocks, 4)
    }

    #[test]
    fn blocks_are_counted_measured_and_kept_apart() {
        let packed = Blocks::packed(&[2, 0, 5]);
        assert_eq!(packed, [0..2, 2..2, 2..7]);
        let gather = Blocks { input: vec![0..5], output: packed.clone() };
        let made = uneven(Collective::AllGather, 2, &gather).expect("valid");
        assert_eq!((made.input_bytes(), made.output_bytes()), (20, 28));
        assert_eq!((made.longest_block(), made.longest_part()), (20, 20));
        assert!(!made.is_pairwise());
        let behind = Blocks { output: vec![0..2, 9..9, 2..7], ..gather.clone() };
        let behind = uneven(Collective::AllGather, 2, &behind).expect("valid");
        assert_eq!((behind.output_bytes(), behind.output(1).span(0)), (28, Span { at: 0, len: 0 }));
        let refused = [
            uneven(Collective::AllGather, 1, &gather),
            uneven(Collective::AllReduce, 2, &gather),
            uneven(Collective::AllGather, 2, &Blocks { output: vec![0..2, 1..3, 7..12], ..gather.clone() }),
            uneven(Collective::AllGather, 2, &Blocks { output: packed[..2].to_vec(), ..gather.clone() }),
            uneven(Collective::AllGather, 2, &Blocks { input: vec![0..usize::MAX], ..gather.clone() }),
            #[allow(clippy::reversed_empty_ranges)] // what a caller may get wrong
            uneven(Collective::Gather, 0, &Blocks { input: vec![5..2], output: vec![] }),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        let leaf =
            uneven(Collective::Gather, 0, &Blocks { input: vec![3..8], output: vec![] }).expect("valid");
        assert_eq!((leaf.input_bytes(), leaf.output_bytes(), leaf.is_pairwise()), (32, 0, true));
    }
}

//! A call, ready to be launched: all of it that does not change from one time to the next.

use super::arena::{Arena, CREDITS};
use super::choice::Way;
use super::store::Chunk;
use crate::program::{self, Geometry, Program, ProgramError, Rule};
use crate::sys::Function;
use ccl_core::communicator::Call;
use ccl_core::engine::{Layout, mix};
use ccl_core::flight::CallState;
use ccl_core::plan::{Placement, Rank, Spec};
use ccl_core::simd::Buffers;
use ccl_core::{Error, Result};
use std::sync::Arc;

/// Pieces are no shorter where one block can do more.
const LEAST_TILE: usize = 8 << 10;
/// Blocks of a call by packets at most.
const PACKET_BLOCKS: usize = 8;
/// Bytes that a thread of a one-shot call has at least, as long as one block has them.
const THREAD_BYTES: usize = 64;

/// What is the same for all calls of a communicator on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) rank: Rank,
    pub(super) placement: Placement,
    /// Blocks of a kernel at most, of all ranks at the same time on their devices.
    pub(super) blocks: u32,
    pub(super) threads: u32,
    /// The user's wish.
    pub(super) tile_bytes: Option<usize>,
    pub(super) arena: Arena,
}

/// A call's kernel, and what it is told but for the buffers.
pub(super) struct Prepared {
    pub(super) way: Way,
    pub(super) rule: Rule,
    /// The rank's part of the plan, if it is one.
    pub(super) program: Option<Program>,
    pub(super) blocks: u32,
    /// What all ranks of the call must agree on.
    pub(super) tag: u32,
    layout: Layout,
    pub(super) about: CallState,
}

/// One that is on the device.
pub(super) struct Placed {
    pub(super) call: Prepared,
    pub(super) function: Function,
    pub(super) finish: Option<Function>,
    /// Addresses of the program and of its wires.
    pub(super) program: u64,
    pub(super) wires: u64,
    /// Keeps them.
    pub(super) _chunk: Option<Arc<Chunk>>,
}

impl Prepared {
    pub(super) fn new(call: &Call, wanted: Option<&'static str>, terms: &Terms) -> Result<Prepared> {
        let Call { collective, count, dtype, op, root } = *call;
        let Terms { rank, placement, arena, .. } = *terms;
        let rule = if collective.reduces() { Rule::new(dtype, op, placement.ranks)? } else { Rule::copies() };
        let way = Way::of(call, placement, &rule, wanted)?;
        let bytes = count.saturating_mul(dtype.size());
        let threads = terms.threads as usize;
        let mut hash = mix(0, collective as u64);
        for word in [
            count as u64,
            dtype as u64,
            if collective.reduces() { u64::from(op.code()) + 1 } else { 0 },
            root.into(),
        ] {
            hash = mix(hash, word);
        }
        let whole = Spec::placed(collective, placement, root, 1);
        let (layout, program, blocks) = match way {
            Way::Packets => {
                let blocks = bytes.div_ceil(8 * threads).clamp(1, PACKET_BLOCKS);
                (Layout::new(&whole, rank, count, dtype, arena.slot_bytes)?, None, blocks)
            }
            Way::OneShot => {
                let blocks = bytes.div_ceil(THREAD_BYTES * threads).max(1);
                (Layout::new(&whole, rank, count, dtype, arena.slot_bytes)?, None, blocks)
            }
            Way::Plan(algorithm) => {
                let parts = algorithm.parts(collective, placement).unwrap_or(1);
                let spec = Spec::placed(collective, placement, root, parts);
                let lanes = (0..placement.ranks).map(|rank| algorithm.program(&spec, rank).lanes.len());
                let lanes = lanes.max().unwrap_or(1).max(1) as u32;
                if lanes > terms.blocks {
                    let what = format!(
                        "{} for {collective} on {} ranks has {lanes} lanes, and {} thread blocks are sure to run at once",
                        algorithm.name(),
                        placement.ranks,
                        terms.blocks
                    );
                    return Err(Error::unsupported(
                        what,
                        "choose another algorithm, or let fewer ranks share a device",
                    ));
                }
                let most = (terms.blocks / lanes).min(arena.shares);
                let part = bytes.div_ceil(parts as usize);
                let tile = terms.tile_bytes.unwrap_or(part.div_ceil(most as usize).max(LEAST_TILE));
                let tile = tile.next_multiple_of(64).min(arena.slot_bytes);
                let shares = (part.div_ceil(tile) as u32).clamp(1, most);
                let layout = Layout::new(&spec, rank, count, dtype, tile)?;
                let geometry = Geometry { slot_bytes: arena.slot_bytes, credits: CREDITS, shares };
                let program = Program::encode(&algorithm.program(&spec, rank), &layout, geometry);
                let program = program.map_err(refused)?;
                if program.scratch_bytes() > 0 {
                    let what = format!("{} for {collective}, which has scratch memory", algorithm.name());
                    return Err(Error::unsupported(what, "choose another algorithm"));
                }
                let words = [tile as u64, shares.into()];
                hash = words.into_iter().fold(hash, mix);
                let workers = program.workers();
                (layout, Some(program), workers)
            }
        };
        let name = way.name();
        hash = name.bytes().fold(hash, |hash, byte| mix(hash, byte.into()));
        let tag = (hash ^ hash >> 32) as u32;
        let about = CallState {
            name: collective.name().into(),
            count: count as u64,
            dtype: dtype.name().into(),
            op: collective.reduces().then(|| op.to_string()),
            root: collective.rooted().then_some(root),
            algorithm: name,
            bytes: layout.input_bytes().max(layout.output_bytes()) as u64,
            fingerprint: tag.into(),
            ..CallState::default()
        };
        let blocks = (blocks as u32).min(terms.blocks).max(1);
        Ok(Prepared { way, rule, program, blocks, tag, layout, about })
    }

    /// Refuses buffers that are no call's.
    pub(super) fn check(&self, buffers: &Buffers<'_>) -> Result<()> {
        self.layout.check(buffers)
    }

    /// Bytes of the receive buffer.
    pub(super) fn output_bytes(&self) -> usize {
        self.layout.output_bytes()
    }

    /// The module and the kernel that make it.
    pub(super) fn kernel(&self) -> (&'static program::Module, &'static str) {
        let family = self.rule.family();
        let (module, kernel) = match self.way {
            Way::Packets => (program::Module::all_reduce(family), "rdmaccl_packets"),
            Way::OneShot => (program::Module::all_reduce(family), "rdmaccl_one_shot"),
            Way::Plan(_) => (program::Module::interpreter(family), "rdmaccl_interpret"),
        };
        (module.expect("ways are chosen among kernels that there are"), kernel)
    }
}

/// A plan that cannot be a program.
fn refused(error: ProgramError) -> Error {
    match error {
        ProgramError::Core(error) => error,
        other => Error::unsupported(other.to_string(), "choose another algorithm"),
    }
}

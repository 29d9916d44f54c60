//! A collective, ready to be launched: all of it that does not change from one time to the next.

use super::arena::Arena;
use super::choice::{self, Way, lanes};
use super::links::CREDITS;
use super::store::Chunk;
use super::watch::About;
use crate::program::{self, Geometry, Program, ProgramError, Rule};
use crate::sys::Function;
use ccl_core::communicator::Call;
use ccl_core::engine::{Blocks, Layout, mix};
use ccl_core::flight::CallState;
use ccl_core::kernels::Buffers;
use ccl_core::plan::{Collective, Placement, Rank, Spec};
use ccl_core::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Pieces are no shorter where one block can do more.
const LEAST_TILE: usize = 8 << 10;
/// Pieces of blocks about which only two ranks know anything: all calls have the same.
pub(super) const PAIR_TILE: usize = 64 << 10;
/// Bytes of each input, or of each rank's part, that a thread of a team's call has, as long as there are blocks.
const THREAD_BYTES: usize = 16;

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
    /// Whether all ranks store to all at once.
    pub(super) has_multicast: bool,
}

impl Terms {
    /// The tiles of blocks about which only two ranks know anything.
    pub(super) fn pair_tile(&self, slot_bytes: usize) -> usize {
        self.tile_bytes.unwrap_or(PAIR_TILE).next_multiple_of(64).min(slot_bytes)
    }
}

/// A kernel, and what it is told but for the buffers.
pub(super) struct Prepared {
    /// The module and the kernel that make it.
    pub(super) kernel: (&'static program::Module, &'static str),
    pub(super) rule: Rule,
    /// The rank's part of the plan, if it is one.
    pub(super) program: Option<Arc<Program>>,
    pub(super) blocks: u32,
    /// [`Call::tag`](program::Call::tag).
    pub(super) tag: u64,
    /// What is to be checked of its buffers.
    layout: Option<Layout>,
    /// Bytes of the receive buffer that have the result of a reduction.
    pub(super) result: Range<usize>,
    pub(super) about: About,
    /// Whether it may be made on registered buffers, in place of its plan.
    pub(super) may_be_mapped: bool,
}

/// One that is on the device.
pub(super) struct Placed {
    pub(super) call: Prepared,
    pub(super) function: Function,
    pub(super) finish: Option<Function>,
    /// What finds out whether it is made on registered buffers, and what then makes it.
    pub(super) mapped: Option<[Function; 2]>,
    /// Addresses of the program and of its wires.
    pub(super) program: u64,
    pub(super) wires: u64,
    /// Keeps them.
    pub(super) _chunk: Option<Arc<Chunk>>,
}

/// A plan as a program, and how many blocks run it.
struct Planned {
    layout: Layout,
    program: Program,
    blocks: usize,
    /// What ranks with other programs would have another.
    shape: [u64; 2],
}

impl Prepared {
    /// A collective with blocks of one length.
    pub(super) fn even(call: &Call, wanted: Option<&'static str>, terms: &Terms) -> Result<Prepared> {
        let Call { collective, count, dtype, root, .. } = *call;
        let rule = rule(call, terms)?;
        let way = Way::of(call, (terms.placement, terms.blocks), &rule, wanted)?;
        let way = way.or_multicast(terms.has_multicast);
        let bytes = count.saturating_mul(dtype.size());
        let threads = terms.threads as usize;
        let whole = || {
            let spec = Spec::placed(collective, terms.placement, root, 1);
            Layout::new(&spec, terms.rank, count, dtype, terms.arena.links.slot_bytes)
        };
        let (layout, program, blocks, shape) = match way {
            // A thread for each packet: of each 8 bytes one, and one of the tag for each rank.
            Way::Packets => {
                let packets = bytes.div_ceil(8) + terms.placement.ranks as usize;
                (whole()?, None, packets.div_ceil(threads), Vec::new())
            }
            Way::OneShot | Way::Multicast => {
                (whole()?, None, bytes.div_ceil(THREAD_BYTES * threads).max(1), Vec::new())
            }
            Way::Staged => {
                let part = bytes.div_ceil(terms.placement.ranks as usize);
                (whole()?, None, part.div_ceil(THREAD_BYTES * threads), Vec::new())
            }
            Way::Plan(algorithm) => {
                let part = |spec: &Spec| bytes.div_ceil(spec.parts as usize);
                let cut = |spec: &Spec, tile| Layout::new(spec, terms.rank, count, dtype, tile);
                let Planned { layout, program, blocks, shape } =
                    planned(call, algorithm, terms, Length::Known(&part), &cut)?;
                (layout, Some(Arc::new(program)), blocks, shape.to_vec())
            }
        };
        let result = 0..layout.output_bytes();
        let words = std::iter::once(count as u64).chain(shape);
        Ok(Prepared::new(call, &way, rule, (layout, result), (program, blocks), terms, words))
    }

    /// A collective whose blocks differ.
    pub(super) fn uneven(
        call: &Call,
        blocks: &Blocks,
        wanted: Option<&'static str>,
        terms: &Terms,
    ) -> Result<Prepared> {
        let Call { collective, dtype, .. } = *call;
        let rule = rule(call, terms)?;
        // What all ranks know.
        let known = match collective {
            Collective::AllGather => &blocks.output[..],
            Collective::ReduceScatter => &blocks.input[..],
            _ => &[][..],
        };
        let longest = known.iter().map(|block| block.len().saturating_mul(dtype.size())).max();
        let algorithm = choice::uneven(call, longest, (terms.placement, terms.blocks), wanted)?;
        let part = |spec: &Spec| longest.unwrap_or(0).div_ceil(spec.parts as usize);
        let length = if longest.is_some() { Length::Known(&part) } else { Length::OfPairs };
        let cut = |spec: &Spec, tile| Layout::uneven(spec, terms.rank, blocks, dtype, tile);
        let call = Call { count: 0, ..*call };
        let Planned { layout, program, blocks: workers, shape } =
            planned(&call, algorithm, terms, length, &cut)?;
        let result = match &blocks.output[..] {
            [block] => block.start * dtype.size()..block.end * dtype.size(),
            _ => 0..0,
        };
        let words = [u64::MAX, known.len() as u64].into_iter();
        let words = words.chain(known.iter().map(|block| block.len() as u64)).chain(shape);
        let program = (Some(Arc::new(program)), workers);
        let way = Way::Plan(algorithm);
        Ok(Prepared::new(&call, &way, rule, (layout, result), program, terms, words))
    }

    fn new(
        call: &Call,
        way: &Way,
        rule: Rule,
        (layout, result): (Layout, Range<usize>),
        (program, blocks): (Option<Arc<Program>>, usize),
        terms: &Terms,
        words: impl Iterator<Item = u64>,
    ) -> Prepared {
        let Call { collective, count, dtype, op, root } = *call;
        let op_code = if collective.reduces() { u64::from(op.code()) + 1 } else { 0 };
        let head = [collective as u64, dtype as u64, op_code, root.into()];
        let hash = head.into_iter().chain(words).fold(0, mix);
        let name = way.name();
        let hash = name.bytes().fold(hash, |hash, byte| mix(hash, byte.into()));
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
        Prepared {
            may_be_mapped: way.may_be_mapped(call, terms.placement, &rule),
            kernel: kernel(way, &rule),
            rule,
            program,
            blocks: (blocks as u32).min(terms.blocks).max(1),
            tag: u64::from(tag) | u64::from(tag) << 32,
            layout: Some(layout),
            result,
            about: About::Collective(about),
        }
    }

    /// Sends and receives that are made together.
    pub(super) fn transfers(program: Program, blocks: u32, tag: u64, about: Vec<Vec<CallState>>) -> Prepared {
        let module = program::Module::interpreter(Rule::copies().family());
        Prepared {
            kernel: (module.expect("what moves data is a module"), INTERPRET),
            rule: Rule::copies(),
            program: Some(Arc::new(program)),
            blocks,
            tag,
            layout: None,
            result: 0..0,
            about: About::Transfers(about),
            may_be_mapped: false,
        }
    }

    /// Refuses buffers that are no call's.
    pub(super) fn check(&self, buffers: &Buffers<'_>) -> Result<()> {
        self.layout.as_ref().map_or(Ok(()), |layout| layout.check(buffers))
    }
}

/// How a call's contributions are combined.
pub(super) fn rule(call: &Call, terms: &Terms) -> Result<Rule> {
    match call.collective.reduces() {
        true => Rule::new(call.dtype, call.op, terms.placement.ranks),
        false => Ok(Rule::copies()),
    }
}

/// How long parts are.
#[derive(Clone, Copy)]
enum Length<'a> {
    /// The longest is so long, which all ranks know.
    Known(&'a dyn Fn(&Spec) -> usize),
    /// No rank knows more than its own blocks.
    OfPairs,
}

fn planned(
    call: &Call,
    algorithm: &'static dyn ccl_core::algorithms::Algorithm,
    terms: &Terms,
    length: Length<'_>,
    cut: &dyn Fn(&Spec, usize) -> Result<Layout>,
) -> Result<Planned> {
    let Terms { rank, placement, .. } = *terms;
    let Call { collective, root, .. } = *call;
    let links = terms.arena.links;
    let parts = algorithm.parts(collective, placement).unwrap_or(1);
    let spec = Spec::placed(collective, placement, root, parts);
    let lanes = lanes(algorithm, &spec);
    if lanes > terms.blocks {
        let what = format!(
            "{} for {collective} on {} ranks has {lanes} lanes, and {} thread blocks are sure to run at once",
            algorithm.name(),
            placement.ranks,
            terms.blocks
        );
        return Err(Error::unsupported(what, "choose another algorithm, or let fewer ranks share a device"));
    }
    let most = (terms.blocks / lanes).min(links.shares);
    let (tile, shares) = match length {
        Length::Known(part) => {
            let part = part(&spec);
            let tile = terms.tile_bytes.unwrap_or(part.div_ceil(most as usize).max(LEAST_TILE));
            let tile = tile.next_multiple_of(64).min(links.slot_bytes);
            (tile, (part.div_ceil(tile) as u32).clamp(1, most))
        }
        Length::OfPairs => (terms.pair_tile(links.slot_bytes), most),
    };
    let layout = cut(&spec, tile)?;
    let geometry = Geometry { slot_bytes: links.slot_bytes, credits: CREDITS, shares };
    let program = Program::encode(&algorithm.program(&spec, rank), &layout, geometry).map_err(refused)?;
    if program.scratch_bytes() > terms.arena.scratch_bytes {
        let what =
            format!("{} for {collective}, which has more scratch memory than there is", algorithm.name());
        return Err(Error::unsupported(what, "choose another algorithm"));
    }
    // The last shares of what is short have no tile.
    let blocks = program.workers() / shares as usize * (shares as usize).min(layout.tiles());
    Ok(Planned { layout, program, blocks, shape: [tile as u64, shares.into()] })
}

const INTERPRET: &str = "rdmaccl_interpret";
/// By this the tags differ of the launches that are a plan's program, and of those of the same call that are none.
pub(super) const NO_PLAN: u64 = 1 << 32;

fn kernel(way: &Way, rule: &Rule) -> (&'static program::Module, &'static str) {
    let family = rule.family();
    let (module, kernel) = match way {
        Way::Packets => (program::Module::all_reduce(family), "rdmaccl_packets"),
        Way::OneShot => (program::Module::all_reduce(family), "rdmaccl_one_shot"),
        Way::Multicast => (program::Module::multicast(family), "rdmaccl_multicast"),
        Way::Staged => (program::Module::all_reduce(family), "rdmaccl_staged"),
        Way::Plan(_) => (program::Module::interpreter(family), INTERPRET),
    };
    (module.expect("ways are chosen among kernels that there are"), kernel)
}

/// A plan that cannot be a program.
pub(super) fn refused(error: ProgramError) -> Error {
    match error {
        ProgramError::Core(error) => error,
        other => Error::unsupported(other.to_string(), "choose another algorithm"),
    }
}

//! The v-collectives: blocks of different lengths.
//!
//! Counts and displacements are in elements, one for each rank; displacements that are NULL mean that the blocks lie side
//! by side. The blocks of a receive buffer may not overlap. In place as the collectives of even blocks: a rank's own block
//! is at one address in both buffers, on all ranks or on none; all-to-all wants the same counts and displacements then.

use crate::buffers;
use crate::comm::{self, cclComm_t};
use crate::data_type::DataTypeArg;
use crate::depth;
use crate::device;
use crate::launch;
use crate::pointers;
use crate::red_op::RedOpArg;
use crate::result::{cclResult_t, guard_call};
use crate::stream::cclStream_t;
use ccl::{Blocks, Buffers, Call, Collective, Error, Operation, ReduceOp, Result};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null;

/// One side's blocks, as they come from C.
#[derive(Clone, Copy)]
enum Side {
    /// A buffer of one block.
    One(usize),
    /// A buffer of one block, whose count is this rank's among those of all ranks.
    Own { counts: *const usize },
    /// A count for each rank, and NULL or a displacement for each.
    Each { counts: *const usize, displacements: *const usize },
}

/// The arguments of a v-collective as they come from C.
struct Arguments {
    collective: Collective,
    send: *const c_void,
    input: Side,
    recv: *mut c_void,
    output: Side,
    dtype: DataTypeArg,
    op: Option<RedOpArg>,
    root: c_int,
}

impl Side {
    /// `wanted` blocks: none, one, or one for each rank.
    ///
    /// # Safety
    /// Counts and displacements are NULL or have one entry for each rank.
    unsafe fn blocks(self, wanted: u32, rank: u32, name: &str) -> Result<Vec<Range<usize>>> {
        let (counts, displacements) = match self {
            _ if wanted == 0 => return Ok(Vec::new()),
            Side::One(count) => return Ok(Blocks::packed(&[count])),
            Side::Own { counts } => (counts, null()),
            Side::Each { counts, displacements } => (counts, displacements),
        };
        let array = "give an array with one for each rank";
        pointers::check(counts, &format!("the counts array of {name}"), array)?;
        if let Side::Own { .. } = self {
            // SAFETY: not NULL, and one for each rank by the caller's promise.
            return Ok(Blocks::packed(&[unsafe { counts.add(rank as usize).read() }]));
        }
        // SAFETY: not NULL, and one for each rank by the caller's promise.
        let counts = unsafe { std::slice::from_raw_parts(counts, wanted as usize) };
        if displacements.is_null() {
            return Ok(Blocks::packed(counts));
        }
        pointers::check(displacements, &format!("the displacements array of {name}"), array)?;
        // SAFETY: as above.
        let displacements = unsafe { std::slice::from_raw_parts(displacements, wanted as usize) };
        let block = |(&at, &count): (&usize, &usize)| {
            let end = at.checked_add(count).ok_or_else(|| {
                let what = format!("{count} elements at displacement {at} of {name}");
                Error::invalid(what, "less than 2^63 bytes")
            })?;
            Ok(at..end)
        };
        displacements.iter().zip(counts).map(block).collect()
    }
}

impl Arguments {
    /// # Safety
    /// The buffers have the blocks until the call is over, the arrays an entry for each rank.
    unsafe fn parse<'a>(&self, call: &Call, rank: u32, size: u32) -> Result<(Blocks, Buffers<'a>)> {
        let Arguments { collective, send, input, recv, output, .. } = *self;
        buffers::check_root(call.root, size)?;
        // SAFETY: the caller's promise.
        let blocks = unsafe {
            Blocks {
                input: input.blocks(collective.input_blocks(size, rank, call.root), rank, "sendbuff")?,
                output: output.blocks(collective.output_blocks(size, rank, call.root), rank, "recvbuff")?,
            }
        };
        let own = |blocks: &[Range<usize>]| match blocks.len() {
            0 => None,
            1 => Some(0),
            _ => Some(rank as usize),
        };
        let kept = own(&blocks.input).zip(own(&blocks.output));
        if let Some((input, output)) = kept
            && blocks.input[input].len() != blocks.output[output].len()
        {
            let (sends, keeps) = (blocks.input[input].len(), blocks.output[output].len());
            let what =
                format!("rank {rank} sends itself {sends} elements and receives {keeps} in {collective}");
            return Err(Error::invalid(what, "the block that a rank keeps has one length"));
        }
        let in_place = |blocks: &Blocks| match collective {
            Collective::AllToAll if blocks.input != blocks.output => None,
            Collective::AllToAll => Some((0, 0)),
            _ => kept,
        };
        // SAFETY: the caller's promise.
        let buffers =
            unsafe { buffers::uneven(rank, collective, call.dtype, &blocks, (send, recv), in_place)? };
        Ok((blocks, buffers))
    }

    /// # Safety
    /// As [`parse`](Arguments::parse).
    unsafe fn run(&self, comm: cclComm_t, stream: cclStream_t) -> cclResult_t {
        guard_call(|| {
            let call = Call {
                collective: self.collective,
                count: 0,
                dtype: self.dtype.parse()?,
                op: self.op.map_or(Ok(ReduceOp::Sum), |op| op.parse(comm))?,
                root: buffers::rank("root", self.root)?,
            };
            if stream.is_null() && !depth::is_in_group() && !device::concerns(self.send, self.recv) {
                return comm::with(comm, |communicator| {
                    // SAFETY: the caller's promise.
                    let parsed = unsafe { self.parse(&call, communicator.rank(), communicator.size()) };
                    let (blocks, buffers) = parsed?;
                    communicator.run_uneven(&call, &blocks, buffers)
                });
            }
            launch::issue(comm, stream, |place| {
                if call.collective.reduces() {
                    call.op.check(call.dtype)?;
                }
                // SAFETY: the caller's promise.
                let (blocks, buffers) = unsafe { self.parse(&call, place.rank, place.size)? };
                Ok(Operation::uneven(call, blocks, buffers))
            })
        })
    }
}

/// Gathers every rank's `sendbuff` in every rank's `recvbuff`: rank i's `recvcounts[i]` elements at `rdispls[i]`. All
/// ranks give the same counts; `sendcount` is this rank's.
///
/// # Safety
/// The buffers have the blocks that the counts say. `recvcounts` has an entry for each rank; `rdispls` too, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclAllGatherV(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::AllGather,
        send: sendbuff,
        input: Side::One(sendcount),
        recv: recvbuff,
        output: Side::Each { counts: recvcounts, displacements: rdispls },
        dtype: datatype,
        op: None,
        root: 0,
    };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

/// Reduces blocks of `recvcounts[i]` elements, side by side in `sendbuff`; rank i gets block i of the result. All ranks
/// give the same counts.
///
/// # Safety
/// The buffers have the blocks that the counts say. `recvcounts` has an entry for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclReduceScatterV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    datatype: DataTypeArg,
    op: RedOpArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::ReduceScatter,
        send: sendbuff,
        input: Side::Each { counts: recvcounts, displacements: null() },
        recv: recvbuff,
        output: Side::Own { counts: recvcounts },
        dtype: datatype,
        op: Some(op),
        root: 0,
    };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

/// Sends `sendcounts[j]` elements at `sdispls[j]` of `sendbuff` to rank j, and receives `recvcounts[i]` elements of rank
/// i at `rdispls[i]` of `recvbuff`. What one rank sends another is as long as what that one receives from it.
///
/// # Safety
/// The buffers have the blocks that the counts say. Counts have an entry for each rank; displacements too, or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclAlltoAllv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::AllToAll,
        send: sendbuff,
        input: Side::Each { counts: sendcounts, displacements: sdispls },
        recv: recvbuff,
        output: Side::Each { counts: recvcounts, displacements: rdispls },
        dtype: datatype,
        op: None,
        root: 0,
    };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

/// Gathers `sendcount` elements of every rank in the root's `recvbuff`: rank i's `recvcounts[i]` at `rdispls[i]`. The
/// other ranks' `recvbuff`, `recvcounts` and `rdispls` are not looked at.
///
/// # Safety
/// The buffers have the blocks that the counts say. At the root, `recvcounts` has an entry for each rank; `rdispls` too,
/// or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGatherV(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Gather,
        send: sendbuff,
        input: Side::One(sendcount),
        recv: recvbuff,
        output: Side::Each { counts: recvcounts, displacements: rdispls },
        dtype: datatype,
        op: None,
        root,
    };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

/// Sends `sendcounts[i]` elements at `sdispls[i]` of the root's `sendbuff` to rank i, which receives `recvcount`. The
/// other ranks' `sendbuff`, `sendcounts` and `sdispls` are not looked at.
///
/// # Safety
/// The buffers have the blocks that the counts say. At the root, `sendcounts` has an entry for each rank; `sdispls` too,
/// or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclScatterV(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: DataTypeArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Scatter,
        send: sendbuff,
        input: Side::Each { counts: sendcounts, displacements: sdispls },
        recv: recvbuff,
        output: Side::One(recvcount),
        dtype: datatype,
        op: None,
        root,
    };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

//! The collectives.
//!
//! In place as in NCCL: `sendbuff == recvbuff`; for all-gather and gather `sendbuff == recvbuff + rank *
//! sendcount`; for reduce-scatter and scatter `recvbuff == sendbuff + rank * recvcount`. Other overlaps are
//! refused.

use crate::comm::cclComm_t;
use crate::data_type::DataTypeArg;
use crate::handles;
use crate::red_op::RedOpArg;
use crate::result::{cclResult_t, guard};
use crate::stream::{self, cclStream_t};
use ccl::{Buffers, Call, Collective, Communicator, DataType, Error, ReduceOp, Result};
use std::ffi::{c_int, c_void};

/// The arguments of a collective as they come from C.
struct Arguments {
    collective: Collective,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataTypeArg,
    op: Option<RedOpArg>,
    root: c_int,
    stream: cclStream_t,
}

/// # Safety
/// `send` and `recv` are NULL, or as long as the collective and the count say.
#[inline]
unsafe fn run(comm: cclComm_t, arguments: Arguments) -> cclResult_t {
    guard(|| {
        let Arguments { collective, count, root, .. } = arguments;
        stream::check(arguments.stream)?;
        let dtype = arguments.dtype.parse()?;
        let op = arguments.op.map_or(Ok(ReduceOp::Sum), RedOpArg::parse)?;
        let root = u32::try_from(root).map_err(|_| Error::invalid(format!("root {root}"), "give a rank"))?;
        handles::with(comm, |communicator| {
            let call = Call { collective, count, dtype, op, root };
            // SAFETY: the caller's promise.
            let buffers = unsafe { buffers(communicator, &call, arguments.send, arguments.recv)? };
            communicator.run(&call, buffers)
        })
    })
}

/// # Safety
/// As [`run`].
#[inline]
unsafe fn buffers<'a>(
    communicator: &Communicator,
    call: &Call,
    send: *const c_void,
    recv: *mut c_void,
) -> Result<Buffers<'a>> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let bytes = |blocks: u32| block_bytes(call.count, call.dtype, blocks);
    let reads = bytes(call.collective.input_blocks(size, rank, call.root))?;
    let writes = bytes(call.collective.output_blocks(size, rank, call.root))?;
    if (send.is_null() && reads > 0) || (recv.is_null() && writes > 0) {
        let which = if recv.is_null() && writes > 0 { "recvbuff" } else { "sendbuff" };
        let what = format!("{which} is NULL in {} on rank {rank}", call.collective);
        return Err(Error::invalid(what, "this rank needs it: give host memory"));
    }
    let own = rank as usize * bytes(1)?;
    let in_place = reads > 0
        && writes > 0
        && match call.collective {
            Collective::AllGather | Collective::Gather => send as usize == (recv as usize).wrapping_add(own),
            Collective::ReduceScatter | Collective::Scatter => {
                recv as usize == (send as usize).wrapping_add(own)
            }
            _ => std::ptr::eq(send, recv),
        };
    let apart = (send as usize).saturating_add(reads) <= recv as usize
        || (recv as usize).saturating_add(writes) <= send as usize;
    if reads > 0 && writes > 0 && !in_place && !apart {
        return Err(Error::invalid(
            format!("sendbuff {send:p} and recvbuff {recv:p} overlap in {} on rank {rank}", call.collective),
            "let them be apart, or exactly as the in-place form of the collective wants them",
        ));
    }
    // SAFETY: not NULL where used, as long as the count says by the caller's promise, apart or in place.
    Ok(unsafe { Buffers::from_raw(send.cast(), reads, recv.cast(), writes, in_place) })
}

fn block_bytes(count: usize, dtype: DataType, blocks: u32) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|b| b.checked_mul(blocks as usize));
    bytes.filter(|b| *b <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(format!("{count} elements of type {dtype} in {blocks} blocks"), "less than 2^63 bytes")
    })
}

/// Reduces `count` elements of every rank's `sendbuff`; every rank gets the result in `recvbuff`.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    op: RedOpArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::AllReduce,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: Some(op),
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Reduces `count` elements of every rank's `sendbuff` into the root's `recvbuff`.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    op: RedOpArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Reduce,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: Some(op),
        root,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Copies `count` elements of the root's `sendbuff` to every rank's `recvbuff`.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Broadcast,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Gathers `sendcount` elements of every rank, one after another by rank, in every rank's `recvbuff`.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: DataTypeArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::AllGather,
        send: sendbuff,
        recv: recvbuff,
        count: sendcount,
        dtype: datatype,
        op: None,
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Reduces `recvcount` elements per rank; rank i gets block i of the result.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: DataTypeArg,
    op: RedOpArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::ReduceScatter,
        send: sendbuff,
        recv: recvbuff,
        count: recvcount,
        dtype: datatype,
        op: Some(op),
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Sends block j of `count` elements to rank j, whose block i comes from rank i.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::AllToAll,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Gathers `count` elements of every rank in the root's `recvbuff`.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Gather,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Sends block i of `count` elements of the root's `sendbuff` to rank i.
///
/// # Safety
/// The buffers are as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    root: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments = Arguments {
        collective: Collective::Scatter,
        send: sendbuff,
        recv: recvbuff,
        count,
        dtype: datatype,
        op: None,
        root,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run(comm, arguments) }
}

/// Returns when all ranks have called it (not in NCCL).
#[unsafe(no_mangle)]
pub extern "C" fn cclBarrier(comm: cclComm_t, stream: cclStream_t) -> cclResult_t {
    guard(|| {
        stream::check(stream)?;
        handles::with(comm, Communicator::barrier)
    })
}

//! The collectives.
//!
//! In place as in NCCL: `sendbuff == recvbuff`; for all-gather and gather `sendbuff == recvbuff + rank *
//! sendcount`; for reduce-scatter and scatter `recvbuff == sendbuff + rank * recvcount`. Other overlaps are
//! refused.

use crate::buffers;
use crate::comm::{self, cclComm_t};
use crate::data_type::DataTypeArg;
use crate::depth;
use crate::device;
use crate::launch;
use crate::red_op::RedOpArg;
use crate::result::{cclResult_t, guard_call};
use crate::stream::cclStream_t;
use ccl::{Buffers, Call, Collective, Communicator, DataType, Operation, ReduceOp};
use std::ffi::{c_int, c_void};

/// The arguments of a collective as they come from C.
struct Arguments {
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataTypeArg,
    op: Option<RedOpArg>,
    root: c_int,
    stream: cclStream_t,
}

/// Compiled for each collective, so that no call has to tell them apart: `WHICH` is its place among all.
///
/// # Safety
/// `send` and `recv` are NULL, or as long as the collective and the count say, until the call is over.
#[inline(always)]
unsafe fn run<const WHICH: usize>(comm: cclComm_t, arguments: Arguments) -> cclResult_t {
    guard_call(move || {
        let collective = const { Collective::ALL[WHICH] };
        let Arguments { send, recv, count, stream, .. } = arguments;
        let dtype = arguments.dtype.parse()?;
        let op = arguments.op.map_or(Ok(ReduceOp::Sum), |op| op.parse(comm))?;
        let root = buffers::rank("root", arguments.root)?;
        // Made where it is used: a constant that was written before the turn was taken is read again after it.
        let call = move || Call { collective, count, dtype, op, root };
        if stream.is_null() && !depth::is_in_group() && !device::concerns(send, recv) {
            return comm::with(comm, |communicator| {
                let call = call();
                // SAFETY: the caller's promise.
                let buffers =
                    unsafe { buffers::even(communicator.rank(), communicator.size(), &call, send, recv)? };
                communicator.run(&call, buffers)
            });
        }
        // With copies: what is lent to it lies in memory in all calls.
        launch::issue(comm, stream, move |place| {
            let call = call();
            buffers::check_root(root, place.size)?;
            if collective.reduces() {
                op.check(dtype)?;
            }
            // SAFETY: the caller's promise.
            let buffers = unsafe { buffers::even(place.rank, place.size, &call, send, recv)? };
            Ok(Operation::collective(call, buffers))
        })
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: Some(op), root: 0, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::AllReduce as usize }>(comm, arguments) }
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: Some(op), root, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::Reduce as usize }>(comm, arguments) }
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: None, root, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::Broadcast as usize }>(comm, arguments) }
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
        send: sendbuff,
        recv: recvbuff,
        count: sendcount,
        dtype: datatype,
        op: None,
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::AllGather as usize }>(comm, arguments) }
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
        send: sendbuff,
        recv: recvbuff,
        count: recvcount,
        dtype: datatype,
        op: Some(op),
        root: 0,
        stream,
    };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::ReduceScatter as usize }>(comm, arguments) }
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: None, root: 0, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::AllToAll as usize }>(comm, arguments) }
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: None, root, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::Gather as usize }>(comm, arguments) }
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
    let arguments =
        Arguments { send: sendbuff, recv: recvbuff, count, dtype: datatype, op: None, root, stream };
    // SAFETY: the function's contract.
    unsafe { run::<{ Collective::Scatter as usize }>(comm, arguments) }
}

/// Returns when all ranks have called it (not in NCCL).
#[unsafe(no_mangle)]
pub extern "C" fn cclBarrier(comm: cclComm_t, stream: cclStream_t) -> cclResult_t {
    guard_call(|| {
        if stream.is_null() && !depth::is_in_group() {
            return comm::with(comm, Communicator::barrier);
        }
        // Of nothing: empty pieces travel too.
        let (collective, dtype, op) = (Collective::AllReduce, DataType::U8, ReduceOp::Max);
        let call = Call { collective, count: 0, dtype, op, root: 0 };
        launch::issue(comm, stream, |_| Ok(Operation::collective(call, Buffers::new(&[], &mut []))))
    })
}

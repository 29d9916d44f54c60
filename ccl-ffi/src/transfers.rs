//! Sends and receives.

use crate::buffers;
use crate::comm::{self, Place, cclComm_t};
use crate::data_type::DataTypeArg;
use crate::depth;
use crate::device;
use crate::launch;
use crate::pointers::store;
use crate::result::{cclResult_t, guard, guard_call};
use crate::stream::cclStream_t;
use ccl::{Buffers, DataType, Error, Operation, Result};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// A transfer's end, as it comes from C. One of the buffers is not used.
struct Arguments {
    send: *const c_void,
    recv: *mut c_void,
    is_send: bool,
    count: usize,
    dtype: DataTypeArg,
    peer: c_int,
}

impl Arguments {
    /// The peer, the type and the length in bytes, if the call can be made.
    fn check(&self, Place { rank, size }: Place) -> Result<(u32, DataType, usize)> {
        let (dtype, peer) = (self.dtype.parse()?, buffers::rank("peer", self.peer)?);
        if peer >= size {
            let what = format!("peer {peer} in a communicator of {size}");
            return Err(Error::invalid(what, format!("give a rank from 0 to {}", size - 1)));
        }
        let bytes = buffers::block_bytes(self.count, dtype, 1)?;
        let used = if self.is_send { self.send as usize } else { self.recv as usize };
        if bytes > 0 && used == 0 {
            let what = format!("the buffer of a transfer with rank {peer} is NULL on rank {rank}");
            return Err(Error::invalid(what, "give host memory"));
        }
        buffers::end("the buffer", used, bytes)?;
        Ok((peer, dtype, bytes))
    }

    /// # Safety
    /// The buffer that is used is NULL, or as long as the count says until the call is over.
    #[inline(always)]
    unsafe fn operation<'a>(&self, place: Place) -> Result<Operation<'a>> {
        let (peer, dtype, bytes) = self.check(place)?;
        let (reads, writes) = if self.is_send { (bytes, 0) } else { (0, bytes) };
        // SAFETY: the caller's promise, and not NULL where used.
        let buffers = unsafe { Buffers::from_raw(self.send.cast(), reads, self.recv.cast(), writes, false) };
        Ok(if self.is_send {
            Operation::send(peer, dtype, self.count, buffers)
        } else {
            Operation::receive(peer, dtype, self.count, buffers)
        })
    }

    /// # Safety
    /// As [`operation`](Arguments::operation).
    unsafe fn run(&self, comm: cclComm_t, stream: cclStream_t) -> cclResult_t {
        guard_call(|| {
            if stream.is_null() && !depth::is_in_group() && !device::concerns(self.send, self.recv) {
                return comm::with(comm, |communicator| {
                    let place = Place { rank: communicator.rank(), size: communicator.size() };
                    // SAFETY: the caller's promise.
                    let operation = unsafe { self.operation(place)? };
                    communicator.run_one(operation)
                });
            }
            // SAFETY: the caller's promise.
            launch::issue(comm, stream, |place| unsafe { self.operation(place) })
        })
    }
}

/// Sends `count` elements to rank `peer`, which must receive as many of the same type. Ranks that send to each other do
/// it in a group, or they may wait for each other for ever.
///
/// # Safety
/// The buffer is as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: DataTypeArg,
    peer: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments =
        Arguments { send: sendbuff, recv: null_mut(), is_send: true, count, dtype: datatype, peer };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

/// Says in `arrived` whether something that rank `peer` sends has come, 1 or 0, so that a `cclRecv` finds its beginning. It waits
/// for the calls that were issued before, and for nothing else. Before the first receive from `peer` is over, in which the two ranks open
/// their link, it is 0 (not in NCCL).
///
/// # Safety
/// `arrived` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclProbe(comm: cclComm_t, peer: c_int, arrived: *mut c_int) -> cclResult_t {
    guard(|| {
        let peer = buffers::rank("peer", peer)?;
        let found = comm::with(comm, |communicator| communicator.has_arrived(peer))?;
        // SAFETY: the function's contract.
        unsafe { store(arrived, c_int::from(found), "arrived") }
    })
}

/// Receives `count` elements from rank `peer`, which must send as many of the same type.
///
/// # Safety
/// The buffer is as long as the count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeArg,
    peer: c_int,
    comm: cclComm_t,
    stream: cclStream_t,
) -> cclResult_t {
    let arguments =
        Arguments { send: null_mut(), recv: recvbuff, is_send: false, count, dtype: datatype, peer };
    // SAFETY: the function's contract.
    unsafe { arguments.run(comm, stream) }
}

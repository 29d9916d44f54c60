//! Buffers and numbers as C gives them, checked.

use ccl::{Blocks, Buffers, Call, Collective, DataType, Error, Result};
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// A rank that C gives as an `int`.
#[inline]
pub(crate) fn rank(name: &str, value: c_int) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::invalid(format!("{name} {value}"), "give a rank"))
}

/// What the communicator checks when it makes the call, for calls that are made later.
pub(crate) fn check_root(root: u32, size: u32) -> Result<()> {
    if root < size {
        return Ok(());
    }
    let what = format!("root {root} in a communicator of {size}");
    Err(Error::invalid(what, format!("give a rank from 0 to {}", size - 1)))
}

/// The buffers of a collective whose blocks are of one length.
///
/// # Safety
/// `send` and `recv` are NULL, or as long as the call says for as long as the buffers are used.
#[inline(always)]
pub(crate) unsafe fn even<'a>(
    rank: u32,
    size: u32,
    call: &Call,
    send: *const c_void,
    recv: *mut c_void,
) -> Result<Buffers<'a>> {
    let block = block_bytes(call.count, call.dtype, 1)?;
    let bytes = |blocks: u32| match blocks {
        0 => Ok(0),
        1 => Ok(block),
        more => block_bytes(call.count, call.dtype, more),
    };
    let reads = bytes(call.collective.input_blocks(size, rank, call.root))?;
    let writes = bytes(call.collective.output_blocks(size, rank, call.root))?;
    check_null(call.collective, rank, (send, reads), (recv, writes))?;
    // Where the own block of a buffer lies that is written, or read, and so has a length.
    let own = |buffer: usize| buffer.wrapping_add(rank as usize * block);
    let in_place = reads > 0
        && writes > 0
        && match call.collective {
            Collective::AllGather | Collective::Gather => send as usize == own(recv as usize),
            Collective::ReduceScatter | Collective::Scatter => recv as usize == own(send as usize),
            _ => std::ptr::eq(send, recv),
        };
    let (read_to, written_to) =
        (end("sendbuff", send as usize, reads)?, end("recvbuff", recv as usize, writes)?);
    let apart = read_to <= recv as usize || written_to <= send as usize;
    if reads > 0 && writes > 0 && !in_place && !apart {
        return Err(overlap(call.collective, rank, (send, reads), (recv, writes)));
    }
    // SAFETY: not NULL where used, as long as the count says by the caller's promise, apart or in place.
    Ok(unsafe { Buffers::from_raw(send.cast(), reads, recv.cast(), writes, in_place) })
}

/// The buffers of a collective whose blocks differ in length; `in_place` are the blocks of each that are one and the same
/// block if the buffers lie in place.
///
/// # Safety
/// `send` and `recv` are NULL, or have the blocks for as long as the buffers are used.
pub(crate) unsafe fn uneven<'a>(
    rank: u32,
    collective: Collective,
    dtype: DataType,
    blocks: &Blocks,
    (send, recv): (*const c_void, *mut c_void),
    in_place: impl FnOnce(&Blocks) -> Option<(usize, usize)>,
) -> Result<Buffers<'a>> {
    let length = |blocks: &[Range<usize>]| {
        let used = blocks.iter().filter(|block| !block.is_empty());
        block_bytes(used.map(|block| block.end).max().unwrap_or(0), dtype, 1)
    };
    let (reads, writes) = (length(&blocks.input)?, length(&blocks.output)?);
    check_null(collective, rank, (send, reads), (recv, writes))?;
    end("sendbuff", send as usize, reads)?;
    end("recvbuff", recv as usize, writes)?;
    let addresses = |base: usize, blocks: &[Range<usize>]| {
        let at = |elements: usize| base + elements * dtype.size();
        let used = blocks.iter().filter(|block| !block.is_empty());
        let mut addresses: Vec<_> = used.map(|block| at(block.start)..at(block.end)).collect();
        addresses.sort_unstable_by_key(|block| block.start);
        addresses
    };
    let (from, into) = (addresses(send as usize, &blocks.input), addresses(recv as usize, &blocks.output));
    if into.windows(2).any(|pair| pair[0].end > pair[1].start) {
        let what = format!("blocks of recvbuff overlap in {collective} on rank {rank}");
        return Err(Error::invalid(what, "give each block a place of its own"));
    }
    // Also of an empty block, of which there is nothing that could overlap, wherever it lies.
    let at = |base: usize, blocks: &[Range<usize>], block: usize| {
        base.wrapping_add(blocks[block].start.wrapping_mul(dtype.size()))
    };
    let in_place = !send.is_null()
        && !recv.is_null()
        && in_place(blocks).is_some_and(|(input, output)| {
            at(send as usize, &blocks.input, input) == at(recv as usize, &blocks.output, output)
        });
    // The last block that begins before a block's end is the only one that can reach into it.
    let meets = |block: &Range<usize>| {
        let before = into.partition_point(|other| other.start < block.end);
        before > 0 && into[before - 1].end > block.start
    };
    if !in_place && from.iter().any(meets) {
        return Err(overlap(collective, rank, (send, reads), (recv, writes)));
    }
    // SAFETY: not NULL where used, with the blocks by the caller's promise, apart or in place.
    Ok(unsafe { Buffers::from_raw(send.cast(), reads, recv.cast(), writes, in_place) })
}

#[inline(always)]
fn check_null(
    collective: Collective,
    rank: u32,
    (send, reads): (*const c_void, usize),
    (recv, writes): (*mut c_void, usize),
) -> Result<()> {
    if recv.is_null() && writes > 0 {
        return Err(is_null("recvbuff", collective, rank));
    }
    if send.is_null() && reads > 0 {
        return Err(is_null("sendbuff", collective, rank));
    }
    Ok(())
}

#[cold]
fn is_null(which: &str, collective: Collective, rank: u32) -> Error {
    let what = format!("{which} is NULL in {collective} on rank {rank}");
    Error::invalid(what, "this rank needs it: give host memory")
}

/// Where a buffer ends, if there is memory so far.
#[inline(always)]
pub(crate) fn end(name: &str, start: usize, len: usize) -> Result<usize> {
    start.checked_add(len).ok_or_else(|| past_the_end(name, start, len))
}

#[cold]
fn past_the_end(name: &str, start: usize, len: usize) -> Error {
    let what = format!("{len} bytes of {name} at {start:#x}, past the end of memory");
    Error::invalid(what, "check the address and the count")
}

#[cold]
fn overlap(
    collective: Collective,
    rank: u32,
    (send, reads): (*const c_void, usize),
    (recv, writes): (*mut c_void, usize),
) -> Error {
    let (send_end, recv_end) = (send as usize + reads, recv as usize + writes);
    Error::invalid(
        format!(
            "sendbuff {send:p}..{send_end:#x} and recvbuff {recv:p}..{recv_end:#x} overlap in {collective} on \
             rank {rank}"
        ),
        "let them be apart, or exactly as the in-place form of the collective wants them",
    )
}

/// The length of some blocks.
#[inline(always)]
pub(crate) fn block_bytes(count: usize, dtype: DataType, blocks: u32) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|b| b.checked_mul(blocks as usize));
    bytes.filter(|b| *b <= isize::MAX as usize).ok_or_else(|| too_long(count, dtype, blocks))
}

#[cold]
fn too_long(count: usize, dtype: DataType, blocks: u32) -> Error {
    Error::invalid(format!("{count} elements of type {dtype} in {blocks} blocks"), "less than 2^63 bytes")
}

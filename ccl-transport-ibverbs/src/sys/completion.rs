//! Completion queues and the channels that wake their waiters.

use super::abi::*;
use super::context::nonblocking;
use super::{Context, checked, last};
use libc::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;

/// A completion channel.
pub(crate) struct Channel {
    context: Arc<Context>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: verbs may be called on it by any thread at any time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: Arc<Context>) -> io::Result<Channel> {
        // SAFETY: an open context, which the channel holds.
        let channel = unsafe { (context.table.ibv_create_comp_channel)(context.raw()) };
        let channel = Channel { channel: NonNull::new(channel).ok_or_else(last)?, context };
        nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel; the field never changes.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// The number of an armed queue that something was put into, acknowledged; `None` if there is none.
    pub(crate) fn next_event(&self) -> io::Result<Option<u64>> {
        let (mut cq, mut number) = (null_mut(), null_mut());
        let table = self.context.table;
        // SAFETY: a live channel whose descriptor does not block; it writes the queue and its context.
        let got = unsafe { (table.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut number) };
        if got != 0 {
            let error = last();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: the queue that was just named, which cannot be destroyed before; one event of it.
        unsafe { (table.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(number.addr() as u64))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; queues on it hold it, so there are none.
        let destroyed = unsafe { (self.context.table.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        debug_assert_eq!(destroyed, 0);
    }
}

/// The end of one work request. Its memory is what the device writes: polling copies nothing.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(pub(crate) ibv_wc);

/// A completion queue.
pub(crate) struct Cq {
    context: Arc<Context>,
    _channel: Option<Arc<Channel>>,
    cq: NonNull<ibv_cq>,
    poll: PollCq,
    arm: ReqNotifyCq,
}

// SAFETY: verbs may be called on it by any thread at any time.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// `number` comes back in events.
    pub(crate) fn new(
        context: Arc<Context>,
        entries: c_int,
        number: u64,
        channel: Option<Arc<Channel>>,
        vector: c_int,
    ) -> io::Result<Cq> {
        let raw_channel = channel.as_ref().map_or(null_mut(), |c| c.channel.as_ptr());
        let tag = without_provenance_mut(number as usize);
        // SAFETY: an open context and a live channel of it, which the queue holds; the tag is not dereferenced.
        let cq = unsafe { (context.table.ibv_create_cq)(context.raw(), entries, tag, raw_channel, vector) };
        let cq = NonNull::new(cq).ok_or_else(last)?;
        // SAFETY: the operations are set when a device is opened, and stay.
        let ops = unsafe { &(*cq.as_ref().context).ops };
        let (Some(poll), Some(arm)) = (ops.poll_cq, ops.req_notify_cq) else {
            // SAFETY: just created, and given to nobody.
            unsafe { (context.table.ibv_destroy_cq)(cq.as_ptr()) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(Cq { context, _channel: channel, cq, poll, arm })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// How many entries it holds; at least what was asked for.
    pub(crate) fn entries(&self) -> u32 {
        // SAFETY: live; the field does not change, since the queue is never resized.
        unsafe { self.cq.as_ref().cqe }.cast_unsigned()
    }

    /// Takes the oldest completions, as many as there are and as `into` has room for.
    #[inline(always)]
    pub(crate) fn poll(&self, into: &mut [Completion]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live queue; it writes at most `room` completions, which is what the array is made of.
        let count = unsafe { (self.poll)(self.raw(), room, into.as_mut_ptr().cast()) };
        // Drivers do not agree on what their negative numbers mean.
        usize::try_from(count).map_err(|_| io::Error::other(format!("the driver returned {count}")))
    }

    /// The next completion puts an event into the channel.
    pub(crate) fn arm(&self, solicited_only: bool) -> io::Result<()> {
        // SAFETY: a live queue.
        checked(unsafe { (self.arm)(self.raw(), solicited_only.into()) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; queue pairs on it hold it, so there are none.
        let destroyed = unsafe { (self.context.table.ibv_destroy_cq)(self.raw()) };
        debug_assert_eq!(destroyed, 0);
    }
}

//! An open device: queries and asynchronous events.

use super::abi::*;
use super::constants::*;
use super::device::text;
use super::table::Table;
use super::{checked, last};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// An open device.
pub(crate) struct Context {
    pub(super) table: &'static Table,
    pub(super) context: NonNull<ibv_context>,
}

// SAFETY: verbs may be called on a context by any thread at any time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A port's number.
    Port(u8),
    /// A queue pair's number.
    Qp(u32),
    /// The number that [`Cq::new`](super::Cq::new) was given.
    Cq(u64),
    /// The device as a whole, or what we never create.
    Device,
}

impl Context {
    /// Takes over an open device.
    pub(super) fn of(table: &'static Table, context: NonNull<ibv_context>) -> io::Result<Context> {
        let context = Context { table, context };
        nonblocking(context.events())?;
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    fn fields(&self) -> &ibv_context {
        // SAFETY: open until drop; the fields that we read never change.
        unsafe { self.context.as_ref() }
    }

    /// Completion vectors (interrupts) to choose from.
    pub(crate) fn vectors(&self) -> u32 {
        self.fields().num_comp_vectors.max(1).cast_unsigned()
    }

    /// Readable when an event waits.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.fields().async_fd) }
    }

    pub(crate) fn query_device(&self) -> io::Result<ibv_device_attr> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attributes: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: an open context; it writes the attributes.
        checked(unsafe { (self.table.ibv_query_device)(self.raw(), &mut attributes) })?;
        Ok(attributes)
    }

    pub(crate) fn query_port(&self, port: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: plain numbers, for which zero is a value: also of the last fields, which the exported function, made
        // for a shorter struct, leaves alone.
        let mut attributes: ibv_port_attr = unsafe { zeroed() };
        // SAFETY: an open context; it writes at most the attributes.
        checked(unsafe { (self.table.ibv_query_port)(self.raw(), port, &mut attributes) })?;
        Ok(attributes)
    }

    pub(crate) fn query_gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: an open context; it writes the GID.
        checked(unsafe { (self.table.ibv_query_gid)(self.raw(), port, index.cast_signed(), &mut gid) })?;
        Ok(gid.raw)
    }

    /// All valid entries of all ports, at most `most`; `None` where the library or the kernel is too old for it.
    pub(crate) fn query_gid_table(&self, most: usize) -> Option<io::Result<Vec<ibv_gid_entry>>> {
        let query = self.table.query_gid_table?;
        // SAFETY: plain numbers, for which zero is a value.
        let mut entries = vec![unsafe { zeroed::<ibv_gid_entry>() }; most];
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: an open context; it writes at most `most` entries of this size.
        let count = unsafe { query(self.raw(), entries.as_mut_ptr(), most, 0, size) };
        match usize::try_from(count) {
            Ok(count) => {
                entries.truncate(count);
                Some(Ok(entries))
            }
            Err(_) => {
                let error = io::Error::from_raw_os_error((-count).try_into().unwrap_or(libc::EIO));
                (error.raw_os_error() != Some(libc::EOPNOTSUPP)).then_some(Err(error))
            }
        }
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut pkey = 0;
        // SAFETY: an open context; it writes the key.
        checked(unsafe { (self.table.ibv_query_pkey)(self.raw(), port, index.into(), &mut pkey) })?;
        Ok(u16::from_be(pkey))
    }

    /// The oldest event that waits. It is acknowledged here: whoever is told of it need not come back.
    pub(crate) fn next_event(&self) -> io::Result<Option<(u32, Element)>> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut event: ibv_async_event = unsafe { zeroed() };
        // SAFETY: an open context whose descriptor does not block; it writes the event.
        let got = unsafe { (self.table.ibv_get_async_event)(self.raw(), &mut event) };
        if got != 0 {
            let error = last();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: the type of the event says which field counts; a queue that it names cannot be destroyed before the
        // event is acknowledged. Our queues carry their number as their context.
        let element = unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => Element::Cq((*event.element.cq).cq_context.addr() as u64),
                IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    Element::Qp((*event.element.qp).qp_num)
                }
                IBV_EVENT_PORT_ACTIVE..=IBV_EVENT_SM_CHANGE
                | IBV_EVENT_CLIENT_REREGISTER
                | IBV_EVENT_GID_CHANGE => Element::Port(event.element.port_num.try_into().unwrap_or(0)),
                _ => Element::Device,
            }
        };
        // SAFETY: the event just got, once.
        unsafe { (self.table.ibv_ack_async_event)(&mut event) };
        Ok(Some((event.event_type, element)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once; all that was made of it holds it, so nothing is left.
        let closed = unsafe { (self.table.ibv_close_device)(self.raw()) };
        debug_assert_eq!(closed, 0);
    }
}

/// The firmware's version.
pub(crate) fn firmware(attributes: &ibv_device_attr) -> String {
    text(&attributes.fw_ver)
}

/// Reads return when nothing is there.
pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    debug_assert!(fd.as_raw_fd() >= 0);
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}

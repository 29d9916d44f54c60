//! The list of devices.

use super::abi::*;
use super::table::Table;
use super::{Context, last};
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// What `ibv_get_device_list` returned.
struct List {
    table: &'static Table,
    devices: NonNull<*mut ibv_device>,
}

// SAFETY: nobody changes the list or its devices while it lives.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, freed once; no `Device` refers to it any more.
        unsafe { (self.table.ibv_free_device_list)(self.devices.as_ptr()) }
    }
}

/// A device, not opened.
#[derive(Clone)]
pub(crate) struct Device {
    list: Arc<List>,
    index: usize,
}

impl Device {
    pub(crate) fn list(table: &'static Table) -> io::Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: it writes the count.
        let devices = unsafe { (table.ibv_get_device_list)(&mut count) };
        let list = Arc::new(List { table, devices: NonNull::new(devices).ok_or_else(last)? });
        let count = usize::try_from(count).unwrap_or(0);
        Ok((0..count).map(|index| Device { list: list.clone(), index }).collect())
    }

    fn pointer(&self) -> *mut ibv_device {
        // SAFETY: the index is one of the list's.
        unsafe { *self.list.devices.as_ptr().add(self.index) }
    }

    fn device(&self) -> &ibv_device {
        // SAFETY: the devices live as long as their list.
        unsafe { &*self.pointer() }
    }

    /// `mlx5_0`.
    pub(crate) fn name(&self) -> String {
        text(&self.device().name)
    }

    /// `uverbs0`.
    pub(crate) fn kernel_name(&self) -> String {
        text(&self.device().dev_name)
    }

    /// Its folder in sysfs: `/sys/class/infiniband/mlx5_0`.
    pub(crate) fn folder(&self) -> String {
        text(&self.device().ibdev_path)
    }

    /// 0: InfiniBand's transport, over whatever link layer.
    pub(crate) fn transport(&self) -> i32 {
        self.device().transport_type
    }

    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: a device of a live list.
        u64::from_be(unsafe { (self.list.table.ibv_get_device_guid)(self.pointer()) })
    }

    pub(crate) fn open(&self) -> io::Result<Context> {
        // SAFETY: a device of a live list; the context holds the device itself from here on.
        let context = unsafe { (self.list.table.ibv_open_device)(self.pointer()) };
        Context::of(self.list.table, NonNull::new(context).ok_or_else(last)?)
    }
}

/// A C string in a field of fixed length.
pub(super) fn text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| c.cast_unsigned()).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

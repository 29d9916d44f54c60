//! The library and its devices.

use super::context::Context;
use super::error::{failed, look_at};
use super::sysfs::Folder;
use crate::sys;
use ccl_core::{Error, Result};
use std::fmt;

/// libibverbs as it is installed, or the file that `named` (the value of `RDMACCL_IBVERBS`) names.
pub fn library(named: Option<&str>) -> Result<Library> {
    // Not the bare `.so`: that comes with the development package only.
    sys::Table::open(named.unwrap_or("libibverbs.so.1")).map(Library)
}

/// libibverbs, open until the process ends.
#[derive(Clone, Copy)]
pub struct Library(&'static sys::Table);

impl Library {
    /// The devices of this machine that speak InfiniBand's transport, by name; at least one.
    pub fn devices(self) -> Result<Vec<Device>> {
        let none = |why: &str| {
            let remedy = "check that the adapter's driver and ib_uverbs are loaded (rdma link, ls /dev/infiniband), \
                          and in a container that /dev/infiniband is passed in";
            Err(Error::unsupported(format!("RDMA: {why}"), remedy))
        };
        let devices = match sys::Device::list(self.0) {
            Ok(devices) => devices,
            Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => return none("the kernel has no RDMA"),
            Err(e) => return Err(failed("ibv_get_device_list", e, "look at the kernel's log (dmesg)")),
        };
        let mut devices: Vec<_> = devices.into_iter().filter(|d| d.transport() == 0).map(Device).collect();
        devices.sort_by_key(Device::name);
        if devices.is_empty() { none("this machine has no device") } else { Ok(devices) }
    }

    /// The name under which it was opened.
    pub fn file(self) -> &'static str {
        &self.0.file
    }

    /// Functions that this version lacks and that are used where they are: it works without them, with less comfort.
    pub fn missing(self) -> Vec<&'static str> {
        let optional = [
            ("ibv_fork_init", self.0.fork_init.is_some()),
            ("ibv_reg_mr_iova2", self.0.reg_mr_iova2.is_some()),
            ("ibv_reg_dmabuf_mr", self.0.reg_dmabuf_mr.is_some()),
            ("_ibv_query_gid_table", self.0.query_gid_table.is_some()),
        ];
        optional.iter().filter(|(_, present)| !present).map(|(name, _)| *name).collect()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Library").field(&self.0.file).finish()
    }
}

/// A device, not opened.
#[derive(Clone)]
pub struct Device(sys::Device);

/// Where a device sits on PCI Express.
#[derive(Clone, Debug, PartialEq)]
pub struct PciPlace {
    /// `0000:3b:00.0`.
    pub address: String,
    /// From the root complex down, by sysfs: devices with a long beginning in common share switches.
    pub path: String,
    /// What its lanes carry as they run now, in Gb/s.
    pub gbps: Option<f64>,
}

impl Device {
    /// Its name: `mlx5_0`, `rxe0`.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// What the kernel calls its character device: `uverbs0`.
    pub fn kernel_name(&self) -> String {
        self.0.kernel_name()
    }

    /// Its globally unique identifier.
    pub fn guid(&self) -> u64 {
        self.0.guid()
    }

    /// The memory node that it is next to; `None` where the kernel knows of none.
    pub fn numa_node(&self) -> Option<u32> {
        // -1: it is next to none in particular.
        self.folder().read("device/numa_node")?.parse().ok()
    }

    /// Its place; `None` for a device that is software.
    pub fn pci(&self) -> Option<PciPlace> {
        let place = self.folder().target("device")?;
        let address = place.file_name()?.to_string_lossy().into_owned();
        let is_pci = address.len() == 12 && address.as_bytes()[4] == b':' && address.as_bytes()[10] == b'.';
        is_pci.then(|| PciPlace {
            address,
            path: place.to_string_lossy().into_owned(),
            gbps: self.pci_gbps(),
        })
    }

    /// The network interface that a software device runs on.
    pub fn parent(&self) -> Option<String> {
        self.folder().read("parent")
    }

    /// Opens it.
    pub fn open(&self) -> Result<Context> {
        let opened = self.0.open().map_err(|e| {
            let file = format!("/dev/infiniband/{}", self.kernel_name());
            let remedy = match e.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => format!(
                    "this user may not read and write {file}: install rdma-core's udev rules, or pass the device \
                     into the container (--device={file})"
                ),
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => format!(
                    "{file} is missing: load ib_uverbs (modprobe ib_uverbs), or pass the device into the \
                     container (--device={file})"
                ),
                _ => look_at(&self.name()),
            };
            failed(format!("ibv_open_device of {}", self.name()), e, remedy)
        })?;
        Context::new(self.clone(), opened)
    }

    pub(super) fn folder(&self) -> Folder {
        Folder::new(self.0.folder())
    }

    fn pci_gbps(&self) -> Option<f64> {
        let speed = self.folder().read("device/current_link_speed")?;
        let width = self.folder().read("device/current_link_width")?;
        pci_gbps(&speed, &width)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// `16.0 GT/s PCIe` and `16`.
fn pci_gbps(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = width.parse().ok()?;
    // Up to 5 GT/s a byte is ten bits on the line, from 8 on 128 bits are 130.
    let code = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some(transfers * lanes * code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_carry_what_their_code_leaves() {
        assert_eq!(pci_gbps("5.0 GT/s PCIe", "8"), Some(32.0));
        assert_eq!(pci_gbps("16.0 GT/s PCIe", "16").unwrap().round(), 252.0);
        assert_eq!(pci_gbps("Unknown", "63"), None);
    }

    #[test]
    fn without_the_library_the_error_says_how_to_get_it() {
        let text = library(Some("/nonexistent/libibverbs.so.1")).unwrap_err().to_string();
        assert!(text.contains("/nonexistent/libibverbs.so.1 cannot be opened"), "{text}");
        assert!(text.contains("install rdma-core") && text.contains("RDMACCL_IBVERBS"), "{text}");
    }

    #[test]
    fn another_library_lacks_a_symbol_which_is_named() {
        let text = library(Some("libc.so.6")).unwrap_err().to_string();
        assert!(text.contains("libc.so.6 has no ibv_get_device_list of version IBVERBS_1.1"), "{text}");
    }

    #[test]
    fn a_name_with_a_null_byte_is_refused() {
        assert!(library(Some("lib\0ibverbs")).unwrap_err().to_string().contains("null byte"));
    }
}

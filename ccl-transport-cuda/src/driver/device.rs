//! A device.

use super::Driver;
use crate::sys::Primary;
use ccl_core::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// A device that the driver shows to this process.
#[derive(Clone)]
pub struct Device {
    pub(crate) driver: Driver,
    /// The driver's handle.
    pub(crate) handle: i32,
    /// Its number in this process.
    pub ordinal: u32,
    /// What it is called.
    pub name: String,
    /// Its identity, on every host and in every process; of a part of a device that part's.
    pub uuid: [u8; 16],
    /// Where it sits: domain, bus and device, as sysfs names it.
    pub pci: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: usize,
}

/// Properties that decide how device memory can be used; the numbers are the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Attribute {
    /// How many blocks run at a time.
    Multiprocessors = 16,
    /// Whether one launch can be promised to run all at once.
    CooperativeLaunch = 95,
    /// Whether memory can be given to other processes as a file descriptor.
    PosixFileDescriptors = 103,
    /// Whether network devices reach its memory.
    GpuDirectRdma = 116,
    /// How what they wrote is flushed: 1 is by the host.
    GpuDirectRdmaFlush = 117,
    /// For whom their writes are in order.
    GpuDirectRdmaOrdering = 118,
    /// Whether streams wait for numbers of 64 bits.
    StreamMemoryOperations64 = 122,
    /// Whether its memory can be given out as a dma-buf.
    DmaBuf = 124,
    /// Whether events can be given to other processes.
    IpcEvents = 125,
    /// Whether it reaches others' memory through the fabric.
    Multicast = 132,
    /// Whether processes share it through MPS.
    MultiProcessService = 133,
}

impl Attribute {
    /// All of them.
    pub const ALL: [Attribute; 11] = [
        Attribute::Multiprocessors,
        Attribute::CooperativeLaunch,
        Attribute::PosixFileDescriptors,
        Attribute::GpuDirectRdma,
        Attribute::GpuDirectRdmaFlush,
        Attribute::GpuDirectRdmaOrdering,
        Attribute::StreamMemoryOperations64,
        Attribute::DmaBuf,
        Attribute::IpcEvents,
        Attribute::Multicast,
        Attribute::MultiProcessService,
    ];
}

impl Driver {
    /// The devices that this process sees. Initialises the driver, if the program has not.
    pub fn devices(self) -> Result<Vec<Device>> {
        (0..self.count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device of this number. Initialises the driver, if the program has not.
    pub fn device(self, ordinal: u32) -> Result<Device> {
        let count = self.count()?;
        if ordinal >= count {
            let what = format!("device {ordinal} of {count}");
            return Err(Error::invalid(
                what,
                "give the number of a device that is there: see nvidia-smi and CUDA_VISIBLE_DEVICES",
            ));
        }
        self.describe(ordinal)
    }
}

impl Device {
    /// A property; `None` where the driver is older than the question.
    pub fn attribute(&self, attribute: Attribute) -> Result<Option<i32>> {
        self.driver.attribute(self.handle, attribute as i32)
    }

    /// Its primary context, kept alive as long as what is returned.
    pub fn primary(&self) -> Result<Arc<Primary>> {
        Primary::retain(self.driver, self.handle, self.ordinal)
    }

    /// Its identity as nvidia-smi writes it.
    pub fn uuid_text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex(&self.uuid[range]));
        format!("GPU-{a}-{b}-{c}-{d}-{e}")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        let gib = self.memory >> 30;
        write!(f, "device {}: {} (sm_{major}{minor}, {gib} GiB, pci {})", self.ordinal, self.name, self.pci)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

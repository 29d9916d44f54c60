//! `--memory device`: the buffers of a rank on a device.

use crate::buffers::Layout;
use crate::work::Work;
use ccl::device::{
    Device, DeviceBuffers, DeviceLine, DeviceMemory, DeviceStream, Driver, current_after, driver,
};
use ccl::{Communicator, Config, Result};
use std::ops::Range;

/// Pinned memory of a rank: a benchmark has nothing else to do with it.
const STAGING: usize = 16 << 30;

/// The device of a rank, before it has joined: ranks of a host take its devices in turn.
pub(crate) fn number(config: &Config, rank: u32) -> Result<u32> {
    current_after(config)?;
    nth(driver()?, config.local_rank.unwrap_or(rank) as usize)
}

fn nth(driver: Driver, index: usize) -> Result<u32> {
    let count = driver.devices()?.len().max(1);
    Ok((index % count) as u32)
}

/// The one that holds a rank's buffers: that of its kernels, or else those of a host are taken in turn.
pub(crate) fn of(comm: &Communicator) -> Result<Device> {
    let driver = driver()?;
    let places = comm.places();
    let (before, own) = places.split_at(comm.rank() as usize);
    let on_host = before.iter().filter(|(host, _)| own.first().is_some_and(|(here, _)| here == host)).count();
    let number = match comm.device_engine() {
        Some(engine) => engine.device(),
        None => nth(driver, on_host)?,
    };
    driver.device(number)
}

/// Send and receive memory on a device, and what calls on it need.
pub(crate) struct OnDevice {
    send: DeviceMemory,
    receive: DeviceMemory,
    stream: DeviceStream,
    line: DeviceLine,
    /// Where the buffers begin in their memory.
    start: usize,
}

impl OnDevice {
    pub(crate) fn new(comm: &Communicator, len: usize, start: usize) -> Result<OnDevice> {
        let device = of(comm)?;
        let primary = device.primary()?;
        Ok(OnDevice {
            send: DeviceMemory::alloc(&primary, start + len)?,
            receive: DeviceMemory::alloc(&primary, start + len)?,
            stream: DeviceStream::new(&primary)?,
            line: DeviceLine::new(driver()?, device.ordinal, STAGING)?,
            start,
        })
    }

    /// Makes the device's memory what the host's is.
    pub(crate) fn write(&mut self, send: &[u8], receive: &[u8]) -> Result<()> {
        self.send.write(self.start, send)?;
        self.receive.write(self.start, receive)
    }

    /// Brings part of the receive memory to the host.
    pub(crate) fn read(&self, at: usize, receive: &mut [u8]) -> Result<()> {
        self.receive.read(self.start + at, receive)
    }

    /// Does a line's work once.
    pub(crate) fn run(
        &mut self,
        comm: &mut Communicator,
        work: &Work,
        layout: &Layout,
        in_place: bool,
    ) -> Result<()> {
        let OnDevice { send, receive, stream, line, start } = self;
        let at = |range: Range<usize>| *start + range.start..*start + range.end;
        let buffers = if in_place {
            let (input, output) = layout.in_place();
            DeviceBuffers::in_place(receive, at(input), at(output))
        } else {
            DeviceBuffers::new(send, at(0..layout.input), receive, at(0..layout.output))
        };
        line.run(comm, stream, work.on_device(buffers))
    }
}

//! Device memory of other processes, and of other devices.

use crate::ffi::Mapping;
use crate::world::{Kind, Outcome, World, code};
use std::os::fd::OwnedFd;

/// Attributes, and an answer.
const DMA_BUF_SUPPORTED: i32 = 124;
const WRITES_ORDERING: i32 = 118;
const TO_OWNER: i32 = 100;

/// Whose memory it is, and how often it was opened.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Import {
    of: Handle,
    times: u64,
}

/// The driver's handle: 64 bytes, of which nobody else knows what they mean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    process: u32,
    device: u32,
    descriptor: i32,
    file: u64,
}

impl Handle {
    const MAGIC: [u8; 8] = *b"fake-ipc";

    pub(crate) fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&Handle::MAGIC);
        bytes[8..12].copy_from_slice(&self.process.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.device.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file.to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8; 64]) -> Option<Handle> {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let file = u64::from(u32::from_le_bytes(four(24))) | u64::from(u32::from_le_bytes(four(28))) << 32;
        (bytes[..8] == Handle::MAGIC).then(|| Handle {
            process: u32::from_le_bytes(four(8)),
            device: u32::from_le_bytes(four(12)),
            descriptor: i32::from_le_bytes(four(16)),
            file,
        })
    }
}

impl World {
    /// Where the allocation begins that an address is in, and its length.
    pub(crate) fn range(&self, at: u64) -> Outcome<(u64, usize)> {
        let (_, span) = self.find(at, 1).ok_or(code::NOT_FOUND)?;
        Ok((at - span.offset as u64, span.mapping.len()))
    }

    /// The handle of an allocation of this process.
    pub(crate) fn export(&self, at: u64) -> Outcome<Handle> {
        let region = self.memory.get(&at).filter(|region| region.import.is_none() && region.behind.is_none());
        let region = region.ok_or(code::INVALID_VALUE)?;
        let Kind::Device(device) = region.kind else { return Err(code::INVALID_VALUE) };
        let (descriptor, file) = region.mapping.name().ok_or(code::OUT_OF_MEMORY)?;
        Ok(Handle { process: std::process::id(), device, descriptor, file })
    }

    /// The dma-buf of a whole allocation: its file. A device that does not see others' writes in order needs flushes.
    pub(crate) fn give(&self, at: u64, len: usize) -> Outcome<OwnedFd> {
        let says = |attribute| self.attributes.get(&attribute).copied().unwrap_or(0);
        let region = self.memory.get(&at).filter(|region| matches!(region.kind, Kind::Device(_)));
        let region = region.filter(|region| region.import.is_none()).ok_or(code::INVALID_VALUE)?;
        // Whole pages of the host, as the driver wants them.
        let is_whole = at.is_multiple_of(4096) && len.is_multiple_of(4096) && len <= region.mapping.len();
        match (says(DMA_BUF_SUPPORTED), is_whole) {
            (0, _) => Err(code::NOT_SUPPORTED),
            (_, false) => Err(code::INVALID_VALUE),
            _ => region.mapping.give(says(WRITES_ORDERING) < TO_OWNER).ok_or(code::OUT_OF_MEMORY),
        }
    }

    /// Brings what other devices wrote to where this one's kernels see it.
    pub(crate) fn flush(&self, context: usize) -> Outcome {
        let device = self.device_of(context)?;
        let own = self.memory.values().filter(|region| region.kind == Kind::Device(device));
        own.for_each(|region| region.mapping.flush());
        Ok(())
    }

    /// Opens memory of another process for a context; once more is the same address.
    pub(crate) fn import(&mut self, handle: Handle, context: usize, may_enable_peers: bool) -> Outcome<u64> {
        let device = self.device_of(context)?;
        if handle.process == std::process::id() {
            return Err(code::INVALID_CONTEXT);
        }
        if handle.device >= self.devices {
            return Err(code::INVALID_DEVICE);
        }
        if handle.device != device && (self.no_peers || !may_enable_peers) {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        let open = self.memory.iter_mut().find_map(|(at, region)| {
            let import = region.import.as_mut().filter(|import| import.of == handle)?;
            import.times += 1;
            Some(*at)
        });
        if let Some(at) = open {
            return Ok(at);
        }
        let mapping = Mapping::open(handle.process, (handle.descriptor, handle.file), self.hides());
        let mapping = mapping.ok_or(code::INVALID_HANDLE)?;
        let import = Import { of: handle, times: 1 };
        Ok(self.insert(Kind::Device(handle.device), mapping, Some(import)))
    }

    /// Closes it once; it is gone when it was closed as often as it was opened.
    pub(crate) fn close(&mut self, at: u64) -> Outcome {
        let region = self.memory.get_mut(&at).ok_or(code::INVALID_VALUE)?;
        let import = region.import.as_mut().ok_or(code::INVALID_VALUE)?;
        import.times -= 1;
        if import.times == 0 {
            self.memory.remove(&at);
        }
        Ok(())
    }

    pub(crate) fn reaches(&self, device: u32, peer: u32) -> Outcome<bool> {
        if device.max(peer) >= self.devices {
            return Err(code::INVALID_DEVICE);
        }
        Ok(device != peer && !self.no_peers)
    }

    /// Lets a context reach another's memory.
    pub(crate) fn enable_peer(&mut self, context: usize, peer: usize) -> Outcome {
        let (device, other) = (self.device_of(context)?, self.device_of(peer)?);
        if !self.reaches(device, other)? {
            return Err(if device == other { code::INVALID_DEVICE } else { code::PEER_ACCESS_UNSUPPORTED });
        }
        if self.peers.insert((context, peer)) { Ok(()) } else { Err(code::PEER_ACCESS_ALREADY_ENABLED) }
    }
}

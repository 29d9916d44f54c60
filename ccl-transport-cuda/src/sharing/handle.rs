//! What a rank sends of its memory.

use super::Process;
use ccl_core::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Some memory of a device, as other ranks are told of it: whose it is, where, how long, and how another process opens it.
///
/// In bytes, all numbers little-endian:
///
/// | bytes | what |
/// | --- | --- |
/// | 8 | magic and version |
/// | 16, 8, 8, 4 | the process: boot of the kernel, namespace, start, number |
/// | 4 | how another process opens it: 2 is by a file descriptor, 1 by `cuIpcOpenMemHandle`, 0 not at all |
/// | 16 | the device's uuid |
/// | 8, 8 | address in that process, length |
/// | 8 | where it begins in the allocation; or the number of the driver's error |
/// | 64 | the driver's handle of the allocation; or the descriptor's number (8), and the allocation's length (8) |
///
/// A descriptor stays open as long as the owner has the handle, or a clone of it: until then peers can take it.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) process: Process,
    pub(crate) uuid: [u8; 16],
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) way: Way,
    /// The owner's, of which the way has the number.
    pub(crate) _descriptor: Option<Arc<OwnedFd>>,
}

/// How another process opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Not: the driver said no, with this number.
    None { code: i32 },
    /// By the handle of its allocation, in which it begins at an offset.
    Ipc { handle: [u8; 64], offset: u64 },
    /// By a descriptor of the owner's, of an allocation of so many bytes, in which it begins at an offset.
    Descriptor { number: i32, size: u64, offset: u64 },
}

const MAGIC: u64 = u64::from_le_bytes(*b"ccl-mem1");

impl Handle {
    /// Length of a handle in bytes.
    pub const BYTES: usize = 152;

    /// How many bytes of memory.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether other processes can open it. Where the driver does not give such memory to others, threads of its own
    /// process can still have it.
    pub fn opens_elsewhere(&self) -> bool {
        !matches!(self.way, Way::None { .. })
    }

    /// For sending.
    pub fn to_bytes(&self) -> [u8; Handle::BYTES] {
        let (way, number, handle) = match self.way {
            Way::None { code } => (0u32, u64::from(code.unsigned_abs()), [0; 64]),
            Way::Ipc { handle, offset } => (1, offset, handle),
            Way::Descriptor { number, size, offset } => {
                let mut handle = [0; 64];
                handle[..8].copy_from_slice(&u64::from(number.unsigned_abs()).to_le_bytes());
                handle[8..16].copy_from_slice(&size.to_le_bytes());
                (2, offset, handle)
            }
        };
        let Process { boot, namespace, pid, started } = self.process;
        let fields: [&[u8]; 11] = [
            &MAGIC.to_le_bytes(),
            &boot,
            &namespace.to_le_bytes(),
            &started.to_le_bytes(),
            &pid.to_le_bytes(),
            &way.to_le_bytes(),
            &self.uuid,
            &self.address.to_le_bytes(),
            &self.len.to_le_bytes(),
            &number.to_le_bytes(),
            &handle,
        ];
        let mut bytes = [0; Handle::BYTES];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// Reads what a peer has sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<Handle> {
        let bad = |cause| Error::from(ErrorKind::Malformed { what: "handle of device memory".into(), cause });
        if bytes.len() != Handle::BYTES {
            return Err(bad(format!("{} bytes in place of {}", bytes.len(), Handle::BYTES)));
        }
        let mut fields = Fields(bytes);
        if fields.long() != MAGIC {
            return Err(bad("it does not begin with the magic of this version".into()));
        }
        let boot = fields.take();
        let (namespace, started, pid) = (fields.long(), fields.long(), fields.int());
        let (way, uuid, address, len) = (fields.int(), fields.take(), fields.long(), fields.long());
        let (number, handle) = (fields.long(), fields.take::<64>());
        let ends = |start: u64| start.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        let way = match way {
            0 => i32::try_from(number).ok().map(|code| Way::None { code }),
            1 => ends(number).then_some(Way::Ipc { handle, offset: number }),
            2 => {
                let mut rest = Fields(&handle);
                let (descriptor, size) = (i32::try_from(rest.long()), rest.long());
                let fits = ends(number) && number + len <= size && size <= i64::MAX as u64;
                let way = |descriptor| Way::Descriptor { number: descriptor, size, offset: number };
                descriptor.ok().filter(|_| fits).map(way)
            }
            _ => None,
        };
        match way {
            Some(way) if ends(address) && len > 0 => {
                let process = Process { boot, namespace, pid, started };
                Ok(Handle { process, uuid, address, len, way, _descriptor: None })
            }
            _ => Err(bad(format!("no way to open {len} bytes at {address:#x}"))),
        }
    }
}

/// What is left to be read.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length was looked at");
        self.0 = rest;
        *field
    }

    fn int(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(way: Way) -> Handle {
        let process = Process { boot: [1; 16], namespace: 2, pid: 3, started: 4 };
        Handle { process, uuid: [5; 16], address: 0x7000_0000_0000, len: 6, way, _descriptor: None }
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let descriptor = Way::Descriptor { number: 9, size: 14, offset: 8 };
        for way in [Way::None { code: 801 }, Way::Ipc { handle: [7; 64], offset: 8 }, descriptor] {
            let written = handle(way);
            let read = Handle::from_bytes(&written.to_bytes()).unwrap();
            assert_eq!((read.process, read.uuid, read.way), (written.process, written.uuid, written.way));
            assert_eq!((read.address, read.len), (written.address, written.len));
        }
    }

    #[test]
    fn bytes_that_are_no_handle_are_refused() {
        let good = handle(Way::Ipc { handle: [7; 64], offset: 8 }).to_bytes();
        let mut cases = vec![Vec::new(), good[1..].to_vec(), [good.as_slice(), &[0]].concat(), vec![0; 152]];
        // Another version, another way, no bytes, and ends beyond all addresses: of the memory, of the allocation.
        for (at, byte) in [(7, b'2'), (44, 9), (72, 0), (71, 255), (79, 255), (87, 255)] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            cases.push(bad);
        }
        // A descriptor that cannot be one, and an allocation that is too short.
        let good = handle(Way::Descriptor { number: 9, size: 14, offset: 8 }).to_bytes();
        for (at, byte) in [(91, 255), (96, 13)] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            cases.push(bad);
        }
        for bad in cases {
            let error = Handle::from_bytes(&bad).unwrap_err().to_string();
            assert!(error.starts_with("malformed handle of device memory: "), "{error}");
        }
    }
}

//! Machine code of the kernels, in a folder beside the library: a driver that is given it compiles nothing.
//!
//! `sm_90/interpret-f32-0123456789abcdef.cubin` is named after the kind of device, the module, and the PTX that it was made of. So code of
//! another version of the library is never taken for this one's. What is not there, or is refused by the driver, is compiled from the PTX, which
//! every library has.

use crate::driver::Device;
use crate::program::{MODULES, Module};
use crate::sys;
use ccl_core::{Error, Result};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// What machine code is made for, by compute capability. It runs on devices of the same first number and the same second one or a higher.
pub const KINDS: [(u32, u32); 5] = [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)];

/// The folder's name, beside the file that holds the library's code.
pub const FOLDER: &str = "rdmaccl-kernels";

/// A kind as NVIDIA's assembler and the folder name it.
pub fn name(kind: (u32, u32)) -> String {
    format!("sm_{}{}", kind.0, kind.1)
}

/// Where the code of a module lies in the folder.
pub fn file(kind: (u32, u32), module: &Module) -> String {
    let made_of: String =
        Sha256::digest(module.code).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}/{}-{made_of}.cubin", name(kind), module.name)
}

/// The folder's code for a device.
#[derive(Debug)]
pub struct MachineCode {
    folder: PathBuf,
    kind: (u32, u32),
}

impl MachineCode {
    /// In this folder, or the one beside the library. The error says why the driver compiles everything.
    pub fn of(device: &Device, folder: Option<&str>) -> Result<MachineCode> {
        let folder = match folder {
            Some(folder) => PathBuf::from(folder),
            None => sys::own_file().and_then(|file| beside(&file)).ok_or_else(|| {
                Error::unsupported(
                    "no file is known to hold the library",
                    "name the folder by RDMACCL_DEVICE_CODE",
                )
            })?,
        };
        if !folder.is_dir() {
            let what = format!("there is no folder {}", folder.display());
            return Err(Error::unsupported(what, "install with cargo xtask install --device-code"));
        }
        let runs = |kind: &(u32, u32)| kind.0 == device.capability.0 && kind.1 <= device.capability.1;
        let kind = KINDS.into_iter().rfind(runs).ok_or_else(|| {
            let (first, second) = device.capability;
            Error::unsupported(
                format!("machine code for compute capability {first}.{second}"),
                "nothing: the driver compiles the kernels",
            )
        })?;
        Ok(MachineCode { folder, kind })
    }

    /// Of a module.
    pub(crate) fn read(&self, module: &Module) -> Result<Whole> {
        let path = self.path(module);
        let remedy = "install the code of this version with cargo xtask install --device-code";
        let bytes = std::fs::read(&path)
            .map_err(|error| Error::system(format!("reading {}", path.display()), error, remedy))?;
        Whole::new(bytes)
            .ok_or_else(|| Error::invalid(format!("{}: it is no whole ELF file", path.display()), remedy))
    }

    fn path(&self, module: &Module) -> PathBuf {
        self.folder.join(file(self.kind, module))
    }
}

/// An ELF file of which nothing is missing at the end: a driver is not told how long it is, and believes what it says itself.
#[derive(Debug)]
pub(crate) struct Whole(Vec<u8>);

impl Whole {
    fn new(bytes: Vec<u8>) -> Option<Whole> {
        let number = |at: usize, len: usize| {
            let bytes = bytes.get(at..at.checked_add(len)?)?;
            Some(bytes.iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte)))
        };
        let is_inside = |from: usize, len: usize| from.checked_add(len).is_some_and(|end| end <= bytes.len());
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        // The tables of segments and of sections: where, length of an entry, how many.
        for (at, sizes) in [(0x20, 0x36), (0x28, 0x3a)] {
            if !is_inside(number(at, 8)?, number(sizes, 2)? * number(sizes + 2, 2)?) {
                return None;
            }
        }
        let (table, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
        for section in (0..count).map(|index| table + index * size) {
            // One of kind 8 has no bytes in the file.
            let (kind, from, len) =
                (number(section + 4, 4)?, number(section + 0x18, 8)?, number(section + 0x20, 8)?);
            if kind != 8 && !is_inside(from, len) {
                return None;
            }
        }
        Some(Whole(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// In words: whose, where, and how much of it.
impl std::fmt::Display for MachineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wanted = MODULES.iter().filter(|module| module.runs_on(self.kind));
        let there = wanted.clone().filter(|module| self.path(module).is_file()).count();
        let (kind, folder) = (name(self.kind), self.folder.display());
        write!(f, "machine code for {kind} in {folder}: {there} of {} modules", wanted.count())
    }
}

fn beside(file: &Path) -> Option<PathBuf> {
    Some(file.canonicalize().ok()?.parent()?.join(FOLDER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_other_ptx_has_another_name() {
        let module = Module { name: "interpret-f32", code: "// PTX", kernels: &[], since: (7, 0) };
        let changed = Module { code: "// PTX, changed", ..module };
        assert_ne!(file((9, 0), &module), file((9, 0), &changed));
        let named = file((9, 0), &module);
        assert!(named.starts_with("sm_90/interpret-f32-") && named.ends_with(".cubin"), "{named}");
    }

    #[test]
    fn what_ends_too_early_is_not_whole() {
        // A program is an ELF file, too.
        let all = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let len = all.len();
        assert!(Whole::new(all.clone()).is_some());
        for missing in [1, 100, len / 2, len - 63, len - 5, len] {
            assert!(
                Whole::new(all[..len - missing].to_vec()).is_none(),
                "{missing} of {len} bytes are missing"
            );
        }
        let mut wild = all;
        wild[0x28..0x30].fill(0xff);
        assert!(Whole::new(wild).is_none());
    }
}

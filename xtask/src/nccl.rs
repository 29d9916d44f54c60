//! NCCL for `gpu/check.sh` to measure beside ours: the library of its wheel, cut down to what one kind of device runs, as all of it is too large to
//! be carried.
//!
//! What is cut is overwritten with zeros, so that everything else stays where it is, and then compressed.

use crate::shell::{command, root, run, target};
use crate::tools;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The first that takes several ranks on one device is 2.30.3.
const PACKAGE: &str = "nvidia-nccl-cu13==2.32.3";
/// Where `gpu/check.sh` looks for it.
const PLACE: &str = "gpu/bin/libnccl.so.2.gz";
/// The machine code of all kinds of devices, in containers.
const FAT: &str = ".nv_fatbin";
/// The same for a linker of device code, and what only debuggers read: nobody needs it at run time.
const UNUSED: [&str; 2] = ["__nv_relfatbin", ".debug"];
const CONTAINER: u32 = 0xba55_ed50;

/// Fetches it, and leaves the code for devices of this capability (90).
pub(crate) fn place(capability: u32) -> Result<(), String> {
    tools::need_all(&[("python3", "python3"), ("gzip", "gzip")])?;
    let folder = target().join("nccl");
    let whole = folder.join("nvidia/nccl/lib/libnccl.so.2");
    if !whole.exists() {
        let mut pip = command("python3 -m pip install --quiet --no-deps --upgrade");
        run(pip.arg(PACKAGE).arg("--target").arg(&folder))?;
    }
    let fail = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut bytes = fs::read(&whole).map_err(|e| fail(&whole, e))?;
    cut(&mut bytes, capability).map_err(|why| format!("{}: {why}", whole.display()))?;
    let to: PathBuf = root().join(PLACE);
    let part = to.with_extension("");
    fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(|e| fail(&to, e))?;
    fs::write(&part, bytes).map_err(|e| fail(&part, e))?;
    run(command("gzip --force --no-name").arg(&part))?;
    let len = fs::metadata(&to).map_err(|e| fail(&to, e))?.len();
    println!("{PLACE}: {:.1} MB, {PACKAGE} for sm_{capability}", len as f64 / 1e6);
    Ok(())
}

/// Overwrites what devices of another capability run, and what nobody needs.
fn cut(bytes: &mut [u8], capability: u32) -> Result<(), String> {
    let sections = sections(bytes)?;
    for (_, range) in sections.iter().filter(|(name, _)| UNUSED.iter().any(|unused| name.starts_with(unused)))
    {
        bytes[range.clone()].fill(0);
    }
    let (_, fat) = sections.iter().find(|(name, _)| name == FAT).ok_or(format!("it has no {FAT}"))?;
    let mut kept = 0;
    for (of, code) in codes(&bytes[fat.clone()]) {
        let code = &mut bytes[fat.clone()][code];
        if of == capability { kept += 1 } else { code.fill(0) }
    }
    if kept > 0 { Ok(()) } else { Err(format!("it has no code for sm_{capability}")) }
}

/// The sections of an ELF file of 64 bits, with where they lie in it.
fn sections(bytes: &[u8]) -> Result<Vec<(String, Range<usize>)>, String> {
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("it is no ELF file of 64 bits".into());
    }
    let cut_off = || "it is cut off".to_string();
    let table = number(bytes, 0x28, 8).ok_or_else(cut_off)?;
    let [size, count, names] = [0x3a, 0x3c, 0x3e].map(|at| number(bytes, at, 2).unwrap_or(0));
    let header = |index: usize| {
        let at = table + index * size;
        let (name, from) = (number(bytes, at, 4)?, number(bytes, at + 0x18, 8)?);
        let to = from.checked_add(number(bytes, at + 0x20, 8)?)?;
        Some((name, from..to, number(bytes, at + 4, 4)?))
    };
    let (_, text, _) = header(names).ok_or_else(cut_off)?;
    let text = bytes.get(text).ok_or_else(cut_off)?;
    let mut all = Vec::new();
    for index in 0..count {
        let (name, range, kind) = header(index).ok_or_else(cut_off)?;
        let name = text.get(name..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
        // One that has no bytes in the file (SHT_NOBITS).
        if kind == 8 {
            continue;
        }
        bytes.get(range.clone()).ok_or_else(cut_off)?;
        all.push((String::from_utf8_lossy(name).into_owned(), range));
    }
    Ok(all)
}

/// What fat binaries hold: the capability that code is for, and where it lies.
fn codes(fat: &[u8]) -> Vec<(u32, Range<usize>)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < fat.len() {
        // Containers begin at multiples of 8: magic, version, length of the header, length of what follows.
        let (head, len) = (number(fat, at + 6, 2), number(fat, at + 8, 8));
        let (Some(CONTAINER), Some(head), Some(len)) =
            (number(fat, at, 4).and_then(|magic| u32::try_from(magic).ok()), head, len)
        else {
            at += 8;
            continue;
        };
        let end = at.saturating_add(head).saturating_add(len).min(fat.len());
        let mut entry = at + head;
        // An entry: kind and version, length of the header, length of the code; the capability at 28.
        while entry < end {
            let fields = [(4, 4), (8, 8), (28, 4)].map(|(offset, len)| number(fat, entry + offset, len));
            let [Some(head), Some(len), Some(capability)] = fields else { break };
            let from = entry.saturating_add(head);
            let to = from.saturating_add(len).min(end);
            if from >= to {
                break;
            }
            all.push((u32::try_from(capability).unwrap_or(0), from..to));
            entry = to;
        }
        at = end.max(at + 8).next_multiple_of(8);
    }
    all
}

/// A number of so many bytes, the least first.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(capability: u32, code: &[u8]) -> Vec<u8> {
        let mut entry = vec![2, 0, 1, 1];
        entry.extend(32u32.to_le_bytes());
        entry.extend((code.len() as u64).to_le_bytes());
        entry.resize(28, 0);
        entry.extend(capability.to_le_bytes());
        [entry, code.to_vec()].concat()
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let all = entries.concat();
        let mut container = CONTAINER.to_le_bytes().to_vec();
        container.extend([1, 0, 16, 0]);
        container.extend((all.len() as u64).to_le_bytes());
        [container, all].concat()
    }

    /// A file with these sections.
    fn elf(sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(0x40, 0);
        let (mut names, mut headers) = (Vec::new(), Vec::new());
        let all = sections.iter().map(|(name, bytes)| (*name, Some(bytes))).chain([(".names", None)]);
        for (name, bytes) in all {
            let mut header = (names.len() as u32).to_le_bytes().to_vec();
            names.extend([name.as_bytes(), b"\0"].concat());
            let bytes = bytes.unwrap_or(&names).clone();
            header.extend(1u32.to_le_bytes());
            header.resize(0x18, 0);
            header.extend((file.len() as u64).to_le_bytes());
            header.extend((bytes.len() as u64).to_le_bytes());
            header.resize(0x40, 0);
            headers.extend(header);
            file.extend(bytes);
        }
        let at = (file.len() as u64).to_le_bytes();
        file[0x28..0x30].copy_from_slice(&at);
        for (at, value) in [(0x3a, 0x40), (0x3c, sections.len() as u16 + 1), (0x3e, sections.len() as u16)] {
            file[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        file.extend(headers);
        file
    }

    #[test]
    fn code_of_other_devices_is_cut_and_nothing_moves() {
        let codes = |with: [&[u8]; 3]| {
            let first = container(&[entry(80, with[0]), entry(90, with[1])]);
            [first, container(&[entry(120, with[2])])].concat()
        };
        let file = |fat: Vec<u8>, unused: u8| {
            elf(&[
                (".text", vec![5; 9]),
                (FAT, fat),
                (UNUSED[0], vec![unused; 7]),
                (".debug_line", vec![unused; 3]),
            ])
        };
        let mut bytes = file(codes([&[1; 16], &[2; 8], &[3; 8]]), 4);
        cut(&mut bytes, 90).unwrap();
        assert_eq!(bytes, file(codes([&[0; 16], &[2; 8], &[0; 8]]), 0));
        assert!(cut(&mut bytes, 75).unwrap_err().contains("sm_75"));
    }

    #[test]
    fn what_is_no_such_library_is_said() {
        assert!(cut(&mut [0; 100], 90).unwrap_err().contains("no ELF file"));
        assert!(cut(&mut elf(&[(".text", vec![1])]), 90).unwrap_err().contains(FAT));
        let mut short = elf(&[(FAT, container(&[entry(90, &[1; 8])]))]);
        short.truncate(short.len() - 30);
        assert!(cut(&mut short, 90).unwrap_err().contains("cut off"));
    }
}

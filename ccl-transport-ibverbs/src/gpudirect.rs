//! What this host's kernel and NICs say about GPUDirect RDMA. [`choice::gpudirect`](crate::choice::gpudirect) decides by it.

use crate::choice::distance::Place;
use crate::choice::gpudirect::{Answer, Nic};
use crate::link;
use crate::verbs::{Context, ProtectionDomain};
use ccl_core::Result;
use std::fs::{canonicalize, read_to_string};
use std::path::Path;

/// Where the kernel shows its devices and modules.
pub const SYS: &str = "/sys";

/// The NICs of this host; `named` is the file of libibverbs, if another one than the system's.
pub fn nics(sys: &Path, named: Option<&str>) -> Result<Vec<Nic>> {
    link::open(named)?.iter().map(|context| nic(sys, context)).collect()
}

fn nic(sys: &Path, context: &Context) -> Result<Nic> {
    let pci = context.device().pci();
    let answer = ProtectionDomain::new(context)?.refuse_dma_buf();
    Ok(Nic {
        name: context.name().into(),
        is_software: pci.is_none(),
        place: pci.and_then(|pci| place(sys, &pci.address)),
        dma_buf: answer.map_or(Answer::Missing, Answer::Errno),
    })
}

/// Where a device of PCI Express sits: `0000:3b:00.0`. `None`, where the kernel shows no such device.
pub fn place(sys: &Path, address: &str) -> Option<Place> {
    let folder = canonicalize(sys.join("bus/pci/devices").join(address)).ok()?;
    let parts: Vec<_> = folder.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // `pci0000:3a`: what comes before is how the kernel has found the root complex.
    let root = parts.iter().rposition(|part| part.starts_with("pci") && part.contains(':'))?;
    // -1 is no node.
    let numa = read_to_string(folder.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    Some(Place { path: parts[root..].to_vec(), numa })
}

/// The kernel's module by which NICs take the addresses of a GPU, with its version.
pub fn peer_memory(sys: &Path) -> Option<String> {
    let modules = [
        ("nvidia_peermem", "module/nvidia_peermem/version"),
        ("nv_mem", "kernel/mm/memory_peers/nv_mem/version"),
        ("nv_mem_nc", "kernel/mm/memory_peers/nv_mem_nc/version"),
    ];
    modules.iter().find_map(|(name, file)| {
        let version = read_to_string(sys.join(file)).ok()?;
        Some(format!("{name} {}", version.trim()))
    })
}

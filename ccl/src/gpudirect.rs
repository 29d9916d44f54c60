//! What GPUDirect RDMA could be used for on this host, in words. No call uses it.

use ccl_core::Result;
use ccl_core::config::Config;
use ccl_transport_cuda::driver::{Attribute, Device, Driver};
use ccl_transport_ibverbs::choice::gpudirect::{Decision, Gpu, choose};
use ccl_transport_ibverbs::gpudirect::{SYS, nics, peer_memory, place};
use std::path::Path;

/// For each GPU and the NICs that are nearest to it, whether the NIC could reach the GPU's memory, how, and why not; a line each. The error says
/// what is missing: a driver, a device, a NIC.
pub fn gpudirect(config: &Config) -> Result<Vec<String>> {
    let sys = Path::new(SYS);
    let devices = Driver::open(config.cuda_library.as_deref())?.devices()?;
    let (nics, module) = (nics(sys, config.ib.library.as_deref())?, peer_memory(sys));
    let mut lines = Vec::new();
    for device in &devices {
        let gpu = gpu(sys, device)?;
        let decisions: Vec<_> = nics.iter().map(|nic| (nic, choose(&gpu, nic, module.as_deref()))).collect();
        let nearest = decisions.iter().map(|(_, decision)| rank(decision)).min();
        let near = decisions.iter().filter(|(_, decision)| Some(rank(decision)) == nearest);
        lines.extend(near.map(|(nic, decision)| format!("{} and {}: {decision}", gpu.name, nic.name)));
    }
    Ok(lines)
}

/// The nearest first, and last what is not known.
fn rank(decision: &Decision) -> u32 {
    decision.distance.map_or(u32::MAX, |distance| distance as u32)
}

fn gpu(sys: &Path, device: &Device) -> Result<Gpu> {
    // A driver that does not know the question has not what it is about.
    let number = |attribute| device.attribute(attribute).map(|value| value.unwrap_or(0));
    Ok(Gpu {
        name: format!("device {}", device.ordinal),
        capability: device.capability.0,
        place: place(sys, &device.pci),
        is_open: number(Attribute::GpuDirectRdma)? != 0,
        gives_dma_buf: number(Attribute::DmaBuf)? != 0,
        ordering: number(Attribute::GpuDirectRdmaOrdering)?,
    })
}

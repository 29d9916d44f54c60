//! What GPUDirect RDMA is used for on this host: the decision for each GPU and NIC.

use ccl_core::Result;
use ccl_core::config::{Config, GpuDirect};
use ccl_transport_cuda::driver::{Attribute, Device, Driver};
use ccl_transport_cuda::engine::Shown;
use ccl_transport_ibverbs::choice::gpudirect::{Decision, Gpu, Nic, Way, choose};
use ccl_transport_ibverbs::gpudirect::{SYS, nics, peer_memory, place};
use std::path::Path;

/// For each GPU and the NICs that are nearest to it, whether the NIC reaches the GPU's memory, how, and why not; a line each. The error says
/// what is missing: a driver, a device, a NIC.
pub fn gpudirect(config: &Config) -> Result<Vec<String>> {
    let sys = Path::new(SYS);
    let devices = Driver::open(config.cuda_library.as_deref())?.devices()?;
    let (nics, module) = (nics(sys, config.ib.library.as_deref())?, peer_memory(sys));
    let mut lines = Vec::new();
    for device in &devices {
        let gpu = gpu(sys, device)?;
        let decide = |nic| (nic, choose(&gpu, nic, module.as_deref(), config.gpudirect));
        let decisions: Vec<_> = nics.iter().map(decide).collect();
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
        is_flushed_by_host: number(Attribute::GpuDirectRdmaFlush)? & 1 != 0,
    })
}

/// How the NICs of a link reach the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    pub(crate) shown: Shown,
    /// What they wrote must be flushed before kernels are told of it.
    pub(crate) needs_flush: bool,
    /// They read from it too, and do not only write to it.
    pub(crate) sends: bool,
}

/// A GPU, and all NICs of the host.
pub(crate) struct Neighbourhood {
    gpu: Gpu,
    nics: Vec<Nic>,
    module: Option<String>,
    wanted: GpuDirect,
}

impl Neighbourhood {
    pub(crate) fn of(config: &Config, device: u32) -> Result<Neighbourhood> {
        let sys = Path::new(SYS);
        let gpu = gpu(sys, &Driver::open(config.cuda_library.as_deref())?.device(device)?)?;
        let (nics, module) = (nics(sys, config.ib.library.as_deref())?, peer_memory(sys));
        Ok(Neighbourhood { gpu, nics, module, wanted: config.gpudirect })
    }

    /// How a link over these NICs reaches the GPU's memory, or why it does not: any of them may come to carry it, so all must.
    pub(crate) fn over(&self, names: &[String]) -> std::result::Result<Direct, String> {
        let decide = |name: &String| {
            let nic = self.nics.iter().find(|nic| nic.name == *name);
            let nic = nic.ok_or_else(|| format!("{name} is not there any more"))?;
            let decision = choose(&self.gpu, nic, self.module.as_deref(), self.wanted);
            match decision.way.value {
                Way::Staging => Err(format!("{} and {name}: {decision}", self.gpu.name)),
                _ => Ok(decision),
            }
        };
        let decisions: Vec<Decision> = names.iter().map(decide).collect::<std::result::Result<_, _>>()?;
        let first = decisions.first().ok_or("no RDMA device is on the way")?;
        let are_dma_bufs = decisions.iter().all(|decision| decision.way.value == Way::DmaBuf);
        Ok(Direct {
            // Memory is shown in one way to all; where one takes addresses only, the kernel's module makes all do so.
            shown: if are_dma_bufs { Shown::DmaBuf } else { Shown::Address },
            needs_flush: first.flush.value,
            sends: first.sends.value,
        })
    }
}

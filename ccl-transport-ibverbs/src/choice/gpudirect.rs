//! Whether a NIC could read and write the memory of a GPU, and how.

use super::Choice;
use super::distance::{Distance, Place, between};
use ccl_core::config::GpuDirect;
use std::fmt;

/// A GPU, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// What it is called here: `device 0`.
    pub name: String,
    /// Its compute capability's major number.
    pub capability: u32,
    /// Where it sits, if the kernel says so.
    pub place: Option<Place>,
    /// Whether NICs may reach its memory at all.
    pub is_open: bool,
    /// Whether its memory is given out as a dma-buf.
    pub gives_dma_buf: bool,
    /// For whom a NIC's writes are in order: 0 is nobody, 100 is the GPU, 200 is everybody.
    pub ordering: i32,
    /// Whether the host can make the GPU see them.
    pub is_flushed_by_host: bool,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Whether it is software over a network interface.
    pub is_software: bool,
    /// Where it sits, if the kernel says so.
    pub place: Option<Place>,
    /// What it said to a dma-buf that is none.
    pub dma_buf: Answer,
}

/// What is said to a registration of a descriptor that is no dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// libibverbs lacks the function.
    Missing,
    /// It failed with this error. Whoever has looked at the descriptor says EBADF.
    Errno(i32),
}

/// How bytes come from a NIC to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The GPU's memory is registered as a dma-buf.
    DmaBuf,
    /// Its address is registered like the host's, which a module of the kernel makes possible.
    PeerMemory,
    /// Through pinned memory of the host.
    Staging,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::DmaBuf => "dma-buf",
            Way::PeerMemory => "peer memory",
            Way::Staging => "pinned memory",
        })
    }
}

/// For a GPU and a NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// How.
    pub way: Choice<Way>,
    /// What is between them; `None`: not known.
    pub distance: Option<Distance>,
    /// Whether what was received must be flushed before the GPU is told of it. Never with staging.
    pub flush: Choice<bool>,
    /// Whether the NIC should read from the GPU too, and not only write to it.
    pub sends: Choice<bool>,
}

/// Decides. `module` is what the kernel has for peer memory.
pub fn choose(gpu: &Gpu, nic: &Nic, module: Option<&str>, wanted: GpuDirect) -> Decision {
    let distance = gpu.place.as_ref().zip(nic.place.as_ref()).map(|(gpu, nic)| between(gpu, nic));
    let way = match wanted {
        GpuDirect::Off => Choice::new(Way::Staging, "RDMACCL_GPUDIRECT=off"),
        _ => way(gpu, nic, module, distance, wanted),
    };
    let staged = || Choice::new(false, "the processor brings it to the GPU");
    let (flush, sends) = match way.value {
        Way::Staging => (staged(), staged()),
        _ => (flush(gpu), sends(gpu)),
    };
    Decision { way, distance, flush, sends }
}

fn way(
    gpu: &Gpu,
    nic: &Nic,
    module: Option<&str>,
    distance: Option<Distance>,
    wanted: GpuDirect,
) -> Choice<Way> {
    if nic.is_software {
        return Choice::new(Way::Staging, format!("{} is software, which the processor runs", nic.name));
    }
    let possible = match (dma_buf(gpu, nic), module) {
        (Ok(why), _) => Choice::new(Way::DmaBuf, why),
        (Err(why), Some(module)) if gpu.is_open => {
            Choice::new(Way::PeerMemory, format!("{module} is loaded, and of dma-bufs {why}"))
        }
        (Err(why), Some(_)) => Choice::new(
            Way::Staging,
            format!("the driver opens the memory of {} to no NIC, and of dma-bufs {why}", gpu.name),
        ),
        (Err(why), None) => Choice::new(
            Way::Staging,
            format!("of dma-bufs {why}, and nvidia_peermem is not loaded (modprobe nvidia_peermem)"),
        ),
    };
    if flush(gpu).value && !gpu.is_flushed_by_host && possible.value != Way::Staging {
        return Choice::new(
            Way::Staging,
            format!(
                "{} would work, but {} needs flushes, which its driver cannot make",
                possible.value, gpu.name
            ),
        );
    }
    match (possible.value, distance) {
        (Way::Staging, _) | (_, Some(Distance::Pix | Distance::Pxb)) => possible,
        _ if wanted == GpuDirect::On => {
            Choice::new(possible.value, format!("{}, and RDMACCL_GPUDIRECT=on", possible.why))
        }
        (way, Some(far)) => Choice::new(
            Way::Staging,
            format!("{way} would work, but {}: {}", far.words(), "pinned memory is faster"),
        ),
        (way, None) => Choice::new(
            Way::Staging,
            format!("{way} would work, but the kernel does not say where both sit, so they may be far apart"),
        ),
    }
}

/// Why dma-bufs can be used, or why not.
fn dma_buf(gpu: &Gpu, nic: &Nic) -> Result<String, String> {
    let Gpu { name: gpu, gives_dma_buf, .. } = gpu;
    let name = &nic.name;
    if !gives_dma_buf {
        return Err(format!("{gpu} gives out none (the open kernel modules of the driver would)"));
    }
    match nic.dma_buf {
        Answer::Errno(libc::EBADF) => Ok(format!("{gpu} gives them out, and {name} takes them")),
        Answer::Missing => Err("libibverbs knows nothing (rdma-core 34 would)".into()),
        Answer::Errno(errno) => {
            let why = match errno {
                libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOTTY | libc::ENOSYS => {
                    "its driver or the kernel takes none (Linux 5.12 would)".into()
                }
                other => std::io::Error::from_raw_os_error(other).to_string(),
            };
            Err(format!("{name} says errno {errno}: {why}"))
        }
    }
}

fn flush(gpu: &Gpu) -> Choice<bool> {
    match gpu.ordering {
        100.. => Choice::new(false, "the GPU sees a NIC's writes in order, its driver says"),
        _ => {
            Choice::new(true, "the GPU may see a NIC's writes later than the processor sees their completion")
        }
    }
}

fn sends(gpu: &Gpu) -> Choice<bool> {
    match gpu.capability {
        8.. => Choice::new(true, "from compute capability 8 on a GPU is read at full speed"),
        _ => Choice::new(false, "before compute capability 8 a NIC reads a GPU slowly"),
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.distance {
            Some(distance) => write!(f, "{distance}: {}", self.way)?,
            None => write!(f, "unknown distance: {}", self.way)?,
        }
        if self.way.value != Way::Staging {
            let (flush, sends) = (&self.flush, &self.sends);
            let word = if flush.value { "with a flush" } else { "without a flush" };
            write!(f, "; receives {word} ({})", flush.why)?;
            let word = if sends.value { "too" } else { "by pinned memory" };
            write!(f, "; sends {word} ({})", sends.why)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Option<Place> {
        Some(Place { path: path.split('/').map(String::from).collect(), numa: Some(0) })
    }

    /// A GPU and a NIC below one switch, which can do everything.
    fn good() -> (Gpu, Nic) {
        let gpu = Gpu {
            name: "device 0".into(),
            capability: 9,
            place: place("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0"),
            is_open: true,
            gives_dma_buf: true,
            ordering: 100,
            is_flushed_by_host: true,
        };
        let nic = Nic {
            name: "mlx5_0".into(),
            is_software: false,
            place: place("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0"),
            dma_buf: Answer::Errno(libc::EBADF),
        };
        (gpu, nic)
    }

    fn says(decision: &Decision, way: Way, words: &str) {
        assert_eq!(decision.way.value, way, "{decision}");
        assert!(decision.way.why.contains(words), "{decision}");
    }

    #[test]
    fn dma_bufs_come_first_and_the_line_says_why() {
        let (gpu, nic) = good();
        let decision = choose(&gpu, &nic, Some("nvidia_peermem 580.1"), GpuDirect::Auto);
        says(&decision, Way::DmaBuf, "device 0 gives them out, and mlx5_0 takes them");
        assert_eq!(
            decision.to_string(),
            "PIX: dma-buf (device 0 gives them out, and mlx5_0 takes them); receives without a flush (the GPU sees a NIC's writes \
             in order, its driver says); sends too (from compute capability 8 on a GPU is read at full speed)"
        );
    }

    #[test]
    fn every_answer_to_the_dummy_registration_has_its_reason() {
        let (gpu, nic) = good();
        for (answer, words) in [
            (Answer::Missing, "libibverbs knows nothing (rdma-core 34"),
            (
                Answer::Errno(libc::EOPNOTSUPP),
                "mlx5_0 says errno 95: its driver or the kernel takes none (Linux 5.12",
            ),
            (Answer::Errno(libc::EPROTONOSUPPORT), "errno 93: its driver or the kernel"),
            (Answer::Errno(libc::EPERM), "errno 1: Operation not permitted"),
        ] {
            let nic = Nic { dma_buf: answer, ..nic.clone() };
            says(&choose(&gpu, &nic, None, GpuDirect::Auto), Way::Staging, words);
            says(&choose(&gpu, &nic, None, GpuDirect::Auto), Way::Staging, "nvidia_peermem is not loaded");
            says(&choose(&gpu, &nic, Some("nvidia_peermem 580.1"), GpuDirect::Auto), Way::PeerMemory, words);
        }
        let closed = Gpu { gives_dma_buf: false, ..gpu.clone() };
        says(
            &choose(&closed, &nic, Some("nv_mem 1.3"), GpuDirect::Auto),
            Way::PeerMemory,
            "nv_mem 1.3 is loaded, and of dma-bufs device 0",
        );
        let nothing = Gpu { is_open: false, ..closed };
        says(
            &choose(&nothing, &nic, Some("nv_mem 1.3"), GpuDirect::Auto),
            Way::Staging,
            "opens the memory of device 0 to no NIC",
        );
    }

    #[test]
    fn what_is_far_away_or_unknown_or_software_is_staged() {
        let (gpu, nic) = good();
        let far = Nic { place: place("pci0000:00/0000:00:01.0/0000:01:00.0"), ..nic.clone() };
        let decision = choose(&gpu, &far, None, GpuDirect::Auto);
        says(
            &decision,
            Way::Staging,
            "dma-buf would work, but a host bridge of the processor is between them",
        );
        assert!(decision.to_string().starts_with("PHB: pinned memory ("), "{decision}");
        assert!(!decision.flush.value && !decision.sends.value);
        let unknown = choose(&gpu, &Nic { place: None, ..nic.clone() }, None, GpuDirect::Auto);
        says(&unknown, Way::Staging, "does not say where both sit");
        assert!(unknown.to_string().starts_with("unknown distance: "), "{unknown}");
        let soft = Nic { is_software: true, name: "rxe0".into(), ..nic };
        says(&choose(&gpu, &soft, None, GpuDirect::Auto), Way::Staging, "rxe0 is software");
    }

    #[test]
    fn the_user_may_know_better() {
        let (gpu, nic) = good();
        let far = Nic { place: place("pci0000:00/0000:00:01.0/0000:01:00.0"), ..nic.clone() };
        for nic in [&far, &Nic { place: None, ..nic.clone() }] {
            says(
                &choose(&gpu, nic, None, GpuDirect::On),
                Way::DmaBuf,
                "mlx5_0 takes them, and RDMACCL_GPUDIRECT=on",
            );
        }
        says(&choose(&gpu, &nic, None, GpuDirect::Off), Way::Staging, "RDMACCL_GPUDIRECT=off");
        // What is not possible stays so.
        let none = Gpu { gives_dma_buf: false, ..gpu.clone() };
        says(&choose(&none, &nic, None, GpuDirect::On), Way::Staging, "gives out none");
        let soft = Nic { is_software: true, ..nic };
        says(&choose(&gpu, &soft, None, GpuDirect::On), Way::Staging, "is software");
    }

    #[test]
    fn a_gpu_that_nobody_can_flush_is_staged() {
        let (gpu, nic) = good();
        let unordered = Gpu { ordering: 0, is_flushed_by_host: false, ..gpu.clone() };
        says(
            &choose(&unordered, &nic, None, GpuDirect::On),
            Way::Staging,
            "needs flushes, which its driver cannot",
        );
        let ordered = Gpu { is_flushed_by_host: false, ..gpu };
        says(&choose(&ordered, &nic, None, GpuDirect::Auto), Way::DmaBuf, "gives them out");
    }

    #[test]
    fn a_flush_is_by_the_drivers_word_and_reads_are_by_the_generation() {
        let (gpu, nic) = good();
        let of = |ordering, capability| {
            let decision = choose(&Gpu { ordering, capability, ..gpu.clone() }, &nic, None, GpuDirect::Auto);
            (decision.flush.value, decision.sends.value)
        };
        assert_eq!([of(0, 9), of(100, 8), of(200, 7)], [(true, true), (false, true), (false, false)]);
    }
}

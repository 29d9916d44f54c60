//! The device, and what all steps do with it.

use crate::Options;
use crate::random::Random;
use ccl_transport_cuda::Primary;
use ccl_transport_cuda::driver::{Device, Driver};
use ccl_transport_cuda::gang::{Gang, GangError, Kernels, Streams};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device with its kernels.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) primary: Arc<Primary>,
    pub(crate) kernels: Kernels,
    pub(crate) streams: Streams,
    /// Whether everything is small: threads of a CPU play those of a device.
    pub(crate) small: bool,
    only: Option<String>,
    /// When a step that has more cases than time begins no more.
    last: Instant,
}

impl Bench {
    pub(crate) fn open(options: &Options, seconds: u64) -> Result<Bench, GangError> {
        let driver = Driver::open(std::env::var("RDMACCL_CUDA").ok().as_deref())?;
        let device = driver.device(options.device)?;
        let primary = device.primary()?;
        let (kernels, streams) = (Kernels::new(&primary, None), Streams::new(&primary));
        let last = Instant::now() + Duration::from_secs(seconds) * 3 / 4;
        Ok(Bench {
            device,
            primary,
            kernels,
            streams,
            small: options.small,
            only: options.only.clone(),
            last,
        })
    }

    /// One of two numbers.
    pub(crate) fn scale<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }

    /// Whether there is time for one more.
    pub(crate) fn has_time(&self) -> bool {
        Instant::now() < self.last
    }

    /// Whether a case of this name is wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|text| name.contains(text))
    }
}

/// Runs a call once on a gang; what is wrong with it, if anything is.
pub(crate) fn check(
    gang: &mut Gang,
    inputs: &[Vec<u8>],
    right: &[Vec<u8>],
) -> Result<Option<String>, GangError> {
    fill(gang, inputs)?;
    gang.launch()?;
    gang.wait()?;
    verdict(gang, right)
}

/// All ranks' send buffers.
pub(crate) fn fill(gang: &mut Gang, inputs: &[Vec<u8>]) -> Result<(), GangError> {
    inputs.iter().enumerate().try_for_each(|(rank, input)| Ok(gang.write(rank, input)?))
}

/// What is wrong after a call.
pub(crate) fn verdict(gang: &Gang, right: &[Vec<u8>]) -> Result<Option<String>, GangError> {
    for (rank, right) in right.iter().enumerate() {
        if let Some(what) = verdict_of(gang, rank, right)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// What is wrong with one rank, or with any whose blocks say so.
pub(crate) fn verdict_of(gang: &Gang, rank: usize, right: &[u8]) -> Result<Option<String>, GangError> {
    if let Some(blame) = gang.failures().first() {
        return Ok(Some(blame.to_string()));
    }
    let found = gang.read(rank)?;
    Ok(found.iter().zip(right).position(|(a, b)| a != b).map(|at| {
        let all = found.iter().zip(right).filter(|(a, b)| a != b).count();
        format!("rank {rank}: {all} of {} bytes are wrong, first byte {at}", right.len())
    }))
}

/// The one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers for a step.
pub(crate) fn random(seed: u64) -> Random {
    Random(seed)
}

//! A piece of memory of every rank that all ranks store to at once: whether there is one, which all ranks find out together.

use super::hosts::Hosts;
use super::saying::{heard, told};
use super::{Place, Share};
use crate::driver::Attribute;
use crate::kernels::Kernels;
use crate::program::{Family, Module, stage_room};
use crate::sys::{self, Primary};
use ccl_core::config::{Config, Multicast as Choice};
use ccl_core::plan::Rank;
use ccl_core::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// A rank's part of it, once it is made; or why there is none, for whoever has asked for it.
pub(super) enum Multicast {
    Off,
    On(sys::Multicast),
    Without(Error),
}

impl Multicast {
    /// Where kernels store to all, and where they find it; none where there is no multicast.
    pub(super) fn places(&self) -> Option<[u64; 2]> {
        match self {
            Multicast::On(made) => made.places(),
            Multicast::Off | Multicast::Without(_) => None,
        }
    }

    /// As people are told.
    pub(super) fn text(&self) -> String {
        match self {
            Multicast::Off => "off".into(),
            Multicast::On(_) => "on".into(),
            Multicast::Without(why) => why.to_string(),
        }
    }

    /// Makes it on ranks that have said what [`able`] has found for each of them. All ranks call this, and share as often.
    pub(super) fn found(
        primary: &Arc<Primary>,
        rank: Rank,
        said: &[Vec<u8>],
        share: Share<'_>,
    ) -> Result<Multicast> {
        let made = match heard(said) {
            Ok(words) => made(primary, rank, &words, share)?,
            Err(why) => Err(why),
        };
        Ok(made.map_or_else(Multicast::Without, Multicast::On))
    }
}

/// Whether this rank can have a part in it: of how many bytes memory must be a multiple on its device, or why not. Its kernels are loaded then.
pub(super) fn able(
    primary: &Primary,
    hosts: &Hosts,
    places: &[Place],
    config: &Config,
    kernels: &Kernels,
) -> Result<u64> {
    let none = |what: &str| Err(Error::unsupported(what, "calls are made without it"));
    if config.multicast == Choice::Off {
        return none("multicast with RDMACCL_NVLS=off");
    }
    if hosts.are_several() {
        return none("multicast among ranks on several hosts");
    }
    if places.len() < 3 {
        return none("multicast to one peer, whom a store reaches anyway");
    }
    if (1..places.len()).any(|at| places[..at].contains(&places[at])) {
        return none("multicast among ranks that share a device");
    }
    let device = primary.driver().device(primary.ordinal())?;
    for attribute in [Attribute::Multicast, Attribute::PosixFileDescriptors] {
        if device.attribute(attribute)?.unwrap_or(0) == 0 {
            return none(&format!("multicast on device {}, which says no to {attribute:?}", device.ordinal));
        }
    }
    let grain = sys::Multicast::granularity(primary, places.len())?;
    for module in Family::ALL.into_iter().filter_map(Module::multicast) {
        module.kernels.iter().try_for_each(|kernel| kernels.function(module, kernel).map(drop))?;
    }
    Ok(grain as u64)
}

/// Makes this rank's part, or says which rank has none and why.
fn made(
    primary: &Arc<Primary>,
    rank: Rank,
    words: &[Vec<u8>],
    share: Share<'_>,
) -> Result<Result<sys::Multicast>> {
    // What any of the devices wants.
    let grains = words.iter().filter_map(|word| word.first_chunk()).map(|word| u64::from_le_bytes(*word));
    let (grain, ranks) = (grains.max().unwrap_or(1) as usize, words.len());
    let memory = || {
        let mut own = sys::Multicast::new(primary, 2 * ranks * stage_room(ranks), grain)?;
        // Kept until all have the object.
        let descriptor = (rank == 0).then(|| own.create(ranks)).transpose()?;
        Ok((own, descriptor))
    };
    let has = |(_, descriptor): &(_, Option<OwnedFd>)| {
        let number = descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        [std::process::id().to_le_bytes(), number.to_le_bytes()].concat()
    };
    let ((mut own, descriptor), all) = match together(memory(), has, share)? {
        Ok(all) => all,
        Err(why) => return Ok(Err(why)),
    };
    let mut join = || {
        if rank > 0 {
            let (process, number) = object(&all)?;
            own.fetch(process, number)?;
        }
        own.add()
    };
    if let Err(why) = together(join(), |()| Vec::new(), share)? {
        return Ok(Err(why));
    }
    drop(descriptor);
    let bound = own.bind();
    Ok(together(bound, |()| Vec::new(), share)?.map(|_| own))
}

/// The descriptor of the object, and whose it is.
fn object(all: &[Vec<u8>]) -> Result<(u32, i32)> {
    let word = |at| <[u8; 4]>::try_from(all.first()?.get(at..at + 4)?).ok();
    let both = word(0).zip(word(4));
    let both = both.map(|(process, number)| (u32::from_le_bytes(process), i32::from_le_bytes(number)));
    both.ok_or_else(|| {
        Error::invalid(
            "what rank 0 says of its multicast object",
            "use the same version of the library on all ranks",
        )
    })
}

/// Tells the others how a step went, and hears how it went with them: what has come of it here and everybody's words, or the first rank with
/// which it has failed and why.
fn together<T>(
    step: Result<T>,
    words: impl Fn(&T) -> Vec<u8>,
    share: Share<'_>,
) -> Result<Result<(T, Vec<Vec<u8>>)>> {
    let own = step.as_ref().map(words);
    let said = share(&told(own.as_deref().map_err(|why| *why)))?;
    Ok(heard(&said).and_then(|all| Ok((step?, all))))
}

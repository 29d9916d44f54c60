//! `cclConfig_t`.

use crate::pointers;
use ccl::config::Network;
use ccl::{Builder, Communicator, Error, Result};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::time::Duration;

/// What every `cclConfig_t` holds after its size.
pub const CCL_CONFIG_MAGIC: c_uint = 0x6363_6c43;

/// A number of a `cclConfig_t` that was not set.
pub const CCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;

/// How to make a communicator. Begin with `cclConfig_t config = CCL_CONFIG_INITIALIZER;` and set the fields that you
/// want; a field that is not set is taken from the environment, or by default. A program that was compiled with an older or
/// a newer header works: the library looks at the fields that both know.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct cclConfig_t {
    /// Set by the initialiser.
    pub size: usize,
    /// Set by the initialiser.
    pub magic: c_uint,
    /// Set by the initialiser: the version of the header.
    pub version: c_uint,
    /// 0: `cclCommInitRankConfig` returns `cclInProgress` at once, and `cclCommGetAsyncError` tells when all
    /// ranks have joined. 1 (default): it returns when they have.
    pub blocking: c_int,
    /// Milliseconds that a call may wait for its peers without anything moving.
    pub timeoutMs: c_int,
    /// Milliseconds to wait for all ranks to join.
    pub initTimeoutMs: c_int,
    /// 0 or 1, as in NCCL. Communicators made by `cclCommSplit` have memory of their own in any case.
    pub splitShare: c_int,
    /// A name for logs and `cclCommDescribe`. Read before the function returns.
    pub commName: *const c_char,
    /// The algorithm for every collective that it can do, the same on all ranks; NULL: what is fastest.
    pub algorithm: *const c_char,
    /// What carries data between hosts: `auto`, `ib` or `tcp`; NULL: what `RDMACCL_NET` says. For communicators that are made by
    /// an id; those made of another one have its.
    pub network: *const c_char,
}

/// What a `cclConfig_t` says.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) non_blocking: bool,
    timeout: Option<Duration>,
    init_timeout: Option<Duration>,
    pub(crate) name: String,
    algorithm: Option<String>,
    network: Option<Network>,
}

/// The field at `offset`, if it lies inside of what the caller's header knew.
///
/// # Safety
/// `config` is readable for `size` bytes, and the field is a `T`.
unsafe fn field<T: Copy>(config: *const cclConfig_t, size: usize, offset: usize) -> Option<T> {
    let inside = offset + size_of::<T>() <= size;
    // SAFETY: the field lies inside of what is readable by the caller's promise.
    inside.then(|| unsafe { config.byte_add(offset).cast::<T>().read_unaligned() })
}

impl Settings {
    /// # Safety
    /// `config` is NULL, or points to as many bytes as its first field says, with strings that end.
    pub(crate) unsafe fn parse(config: *const cclConfig_t) -> Result<Settings> {
        if config.is_null() {
            return Ok(Settings::default());
        }
        pointers::check(config, "config", "give the address of a cclConfig_t, or NULL")?;
        // SAFETY: aligned, and the caller's promise: even the oldest struct had its size, magic and version.
        let (size, magic) = unsafe { ((*config).size, (*config).magic) };
        let header = offset_of!(cclConfig_t, blocking);
        if magic != CCL_CONFIG_MAGIC || !(header..=1 << 20).contains(&size) {
            return Err(Error::invalid(
                format!("a cclConfig_t of {size} bytes with magic {magic:#010x}"),
                "begin with cclConfig_t config = CCL_CONFIG_INITIALIZER",
            ));
        }
        // SAFETY: the caller's promise; these are the struct's numbers.
        let number = |offset| unsafe { field::<c_int>(config, size, offset) };
        let number = |offset| number(offset).filter(|value| *value != CCL_CONFIG_UNDEF_INT);
        // SAFETY: the caller's promise; these are the struct's strings, or NULL.
        let string = |name, offset| unsafe {
            field::<*const c_char>(config, size, offset).map_or(Ok(None), |at| text(name, at))
        };
        let blocking = number(offset_of!(cclConfig_t, blocking));
        let split_share = number(offset_of!(cclConfig_t, splitShare));
        for (name, value) in [("blocking", blocking), ("splitShare", split_share)] {
            if let Some(value) = value.filter(|value| ![0, 1].contains(value)) {
                return Err(Error::invalid(format!("{name} = {value} in a cclConfig_t"), "set it to 0 or 1"));
            }
        }
        Ok(Settings {
            non_blocking: blocking == Some(0),
            timeout: milliseconds("timeoutMs", number(offset_of!(cclConfig_t, timeoutMs)))?,
            init_timeout: milliseconds("initTimeoutMs", number(offset_of!(cclConfig_t, initTimeoutMs)))?,
            name: string("commName", offset_of!(cclConfig_t, commName))?.unwrap_or_default(),
            algorithm: string("algorithm", offset_of!(cclConfig_t, algorithm))?.map(known).transpose()?,
            network: string("network", offset_of!(cclConfig_t, network))?.map(carrier).transpose()?,
        })
    }

    /// Refuses what cannot be chosen for a communicator that is made of another one.
    pub(crate) fn of_child(self) -> Result<Settings> {
        match self.network {
            Some(_) => {
                Err(Error::invalid("a network for a communicator that has its parent's", "leave it NULL"))
            }
            None => Ok(self),
        }
    }

    /// Changes what can be changed of a communicator that there is already.
    pub(crate) fn change(&self, communicator: &mut Communicator) -> Result<()> {
        if let Some(timeout) = self.timeout {
            communicator.set_timeout(timeout);
        }
        if let Some(algorithm) = &self.algorithm {
            communicator.set_algorithm(Some(algorithm))?;
        }
        Ok(())
    }

    /// Puts what was set into a builder.
    pub(crate) fn apply(&self, mut builder: Builder) -> Builder {
        if let Some(timeout) = self.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(timeout) = self.init_timeout {
            builder = builder.init_timeout(timeout);
        }
        if let Some(algorithm) = &self.algorithm {
            builder = builder.algorithm(algorithm);
        }
        if let Some(network) = self.network {
            builder = builder.network(network);
        }
        builder
    }
}

/// The name of an algorithm that there is: the other ranks need not join before one finds out that there is none.
fn known(name: String) -> Result<String> {
    if ccl::algorithm_names().any(|known| known == name) {
        return Ok(name);
    }
    let names: Vec<_> = ccl::algorithm_names().collect();
    Err(Error::invalid(
        format!("algorithm '{name}' in a cclConfig_t"),
        format!("use one of {}", names.join(", ")),
    ))
}

fn carrier(name: String) -> Result<Network> {
    let refused =
        |_| Error::invalid(format!("network '{name}' in a cclConfig_t"), "use one of auto, ib, tcp");
    name.parse().map_err(refused)
}

fn milliseconds(name: &str, value: Option<c_int>) -> Result<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match u64::try_from(value) {
        Ok(value) if value > 0 => Ok(Some(Duration::from_millis(value))),
        _ => Err(Error::invalid(format!("{name} = {value} in a cclConfig_t"), "give milliseconds above 0")),
    }
}

/// # Safety
/// `at` is NULL or a string that ends.
unsafe fn text(name: &str, at: *const c_char) -> Result<Option<String>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) };
    let text = text.to_str().map_err(|_| Error::invalid(format!("{name} {text:?}"), "give it in UTF-8"))?;
    Ok(Some(text.to_string()))
}

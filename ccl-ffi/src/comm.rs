//! `cclComm_t`.

use crate::handles;
use crate::result::{cclResult_t, guard};
use crate::unique_id::cclUniqueId;
use ccl::{Communicator, Config, Error, Result};
use std::ffi::c_int;
use std::sync::Once;

/// Never defined: a handle is a number, dressed as a pointer that is not followed.
pub struct cclComm {
    _never: (),
}

/// A communicator. NULL is none.
pub type cclComm_t = *mut cclComm;

/// The version of the library: major * 10000 + minor * 100 + patch.
///
/// # Safety
/// `version` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclGetVersion(version: *mut c_int) -> cclResult_t {
    guard(|| {
        let part = |text: &str| text.parse::<c_int>().unwrap_or(0);
        let number = part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
            + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
            + part(env!("CARGO_PKG_VERSION_PATCH"));
        // SAFETY: the function's contract.
        unsafe { store(version, number, "version") }
    })
}

/// Joins the ranks that were given the same id; returns when all `nranks` have, or with the list of those
/// absent.
///
/// # Safety
/// `comm` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommInitRank(
    comm: *mut cclComm_t,
    nranks: c_int,
    commId: cclUniqueId,
    rank: c_int,
) -> cclResult_t {
    guard(|| {
        if comm.is_null() {
            return Err(Error::invalid("comm is NULL", "give the address of a cclComm_t"));
        }
        if nranks < 1 || rank < 0 || rank >= nranks {
            let what = format!("rank {rank} of {nranks}");
            return Err(Error::invalid(what, "give at least one rank, and ranks from 0 to nranks - 1"));
        }
        let config = Config::from_env()?;
        start_logging(&config);
        let id = commId.parse()?;
        let communicator = Communicator::builder()
            .rank(rank as u32)
            .size(nranks as u32)
            .unique_id(id)
            .config(config)
            .build()?;
        let handle = handles::insert(communicator)?;
        // SAFETY: not NULL, and writable by the function's contract.
        unsafe { comm.write(handle) };
        Ok(())
    })
}

/// Leaves in order and frees the communicator. All ranks must do it; a process that just ends is dead
/// in the eyes of the others.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommDestroy(comm: cclComm_t) -> cclResult_t {
    guard(|| handles::remove(comm).map(drop))
}

/// How many ranks the communicator has.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommCount(comm: cclComm_t, count: *mut c_int) -> cclResult_t {
    // SAFETY: the function's contract.
    guard(|| handles::with(comm, |c| unsafe { store(count, c.size() as c_int, "count") }))
}

/// This rank's number.
///
/// # Safety
/// `rank` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommUserRank(comm: cclComm_t, rank: *mut c_int) -> cclResult_t {
    // SAFETY: the function's contract.
    guard(|| handles::with(comm, |c| unsafe { store(rank, c.rank() as c_int, "rank") }))
}

/// # Safety
/// `at` is NULL or writable.
unsafe fn store(at: *mut c_int, value: c_int, name: &str) -> Result<()> {
    if at.is_null() {
        return Err(Error::invalid(format!("{name} is NULL"), "give the address of an int"));
    }
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { at.write(value) };
    Ok(())
}

/// Sends the log to standard error, if `RDMACCL_DEBUG` asks for one and the program has no subscriber.
pub(crate) fn start_logging(config: &Config) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::try_new(&config.debug).unwrap_or_default();
        // An error says that the program has a subscriber of its own, which is then in charge.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    });
}

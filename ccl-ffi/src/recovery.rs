//! Going on after a failure: `cclCommRevoke`, `cclCommAgree`, `cclCommShrink`.

use crate::comm::{self, cclComm_t};
use crate::config::{Settings, cclConfig_t};
use crate::group;
use crate::pointers::{self, store};
use crate::result::{cclResult_t, guard, guard_call};
use ccl::{Error, Rank, Result};
use std::ffi::c_int;

/// `cclCommRevoke` as it is; the only flag there is.
pub const CCL_REVOKE_DEFAULT: c_int = 0;

/// `cclCommShrink` waits for the calls that this rank has issued.
pub const CCL_SHRINK_DEFAULT: c_int = 0;

/// `cclCommShrink` ends the calls that run, on all ranks.
pub const CCL_SHRINK_ABORT: c_int = 1;

/// Ends the communicator for all ranks: calls that run and later ones end with an error that names this rank. From any
/// thread; it waits for nothing. What is left to do is to agree, to shrink, and to destroy it. `revokeFlags` is
/// `CCL_REVOKE_DEFAULT`.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommRevoke(comm: cclComm_t, revokeFlags: c_int) -> cclResult_t {
    guard(|| {
        if revokeFlags != CCL_REVOKE_DEFAULT {
            let what = format!("revokeFlags = {revokeFlags}");
            return Err(Error::invalid(what, "give CCL_REVOKE_DEFAULT"));
        }
        let face = comm::face(comm)?;
        face.usable()?;
        face.alarm.revoke("");
        Ok(())
    })
}

/// Agrees with all ranks that are not gone: all get the bitwise and of all `flags`, also when ranks die meanwhile, and
/// after the communicator broke or was revoked. All ranks that are left must call it, at the same place among their
/// agreements and shrinks. Waits for the calls that were issued before, and for `RDMACCL_INIT_TIMEOUT` at most, or twice
/// `RDMACCL_FREEZE_TIMEOUT` where that is longer (not in NCCL).
///
/// # Safety
/// `flags` is NULL or can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommAgree(comm: cclComm_t, flags: *mut u64) -> cclResult_t {
    guard(|| {
        pointers::check(flags, "flags", "give the address of a uint64_t")?;
        // SAFETY: not NULL, aligned, and readable by the function's contract.
        let own = unsafe { flags.read() };
        let agreed = comm::with(comm, |communicator| communicator.agree(own))?;
        // SAFETY: the function's contract.
        unsafe { store(flags, agreed.flags, "flags") }
    })
}

/// Makes a communicator of the ranks that are left, numbered in their old order. Who is dead is found out and agreed on, also
/// when more die meanwhile; so `excludeRanksList` is mostly NULL. It names `excludeRanksCount` more ranks to leave
/// behind that are alive and do not call this; all others must call it, with the same list.
///
/// It works after an error, a death or a revoke. With `CCL_SHRINK_ABORT` it ends the calls that run and revokes `comm`;
/// with `CCL_SHRINK_DEFAULT` it waits for the calls of this rank that were issued, and a `comm` that is well goes on working
/// unless ranks were excluded. Destroy `comm` afterwards. Nothing that was sent on it can arrive on the new one. Returns when the
/// new communicator is there, whatever `blocking` says; in a group, `cclGroupEnd` does all this, and writes `newcomm`.
///
/// # Safety
/// `excludeRanksList` is NULL or has as many entries as `excludeRanksCount` says. `newcomm` is NULL or writable, in a group
/// until its end. `config` is NULL or begins as `CCL_CONFIG_INITIALIZER` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommShrink(
    comm: cclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut cclComm_t,
    config: *const cclConfig_t,
    shrinkFlags: c_int,
) -> cclResult_t {
    guard_call(|| {
        // SAFETY: the function's contract.
        unsafe { store(newcomm, std::ptr::null_mut(), "newcomm")? };
        // SAFETY: the function's contract.
        let settings = unsafe { Settings::parse(config)? }.of_child()?;
        if ![CCL_SHRINK_DEFAULT, CCL_SHRINK_ABORT].contains(&shrinkFlags) {
            let what = format!("shrinkFlags = {shrinkFlags}");
            return Err(Error::invalid(what, "give CCL_SHRINK_DEFAULT or CCL_SHRINK_ABORT"));
        }
        let face = comm::face(comm)?;
        face.usable()?;
        // SAFETY: the function's contract.
        let exclude = unsafe { excluded(excludeRanksList, excludeRanksCount, face.rank, face.size)? };
        let parent = comm as usize;
        let shrink = move |_: &dyn Fn(cclComm_t)| {
            if shrinkFlags == CCL_SHRINK_ABORT {
                face.alarm.revoke("it is shrunk with CCL_SHRINK_ABORT");
            }
            let mut child = comm::with(parent as cclComm_t, |communicator| communicator.shrink(&exclude))?;
            settings.change(&mut child)?;
            comm::insert_ready(child, settings.name)
        };
        // SAFETY: the function's contract, which `set_up` keeps to.
        unsafe { group::set_up(newcomm, Some(comm), shrink) }
    })
}

/// # Safety
/// `list` is NULL or has as many entries as `count` says.
unsafe fn excluded(list: *const c_int, count: c_int, rank: Rank, size: u32) -> Result<Vec<Rank>> {
    let count = u32::try_from(count).ok().filter(|count| *count < size).ok_or_else(|| {
        let what = format!("excludeRanksCount = {count} in a communicator of {size}");
        Error::invalid(what, "exclude at most all ranks but one")
    })?;
    if count == 0 {
        return Ok(Vec::new());
    }
    pointers::check(list, "excludeRanksList", "give an array of excludeRanksCount ranks")?;
    // SAFETY: not NULL, aligned, and as many by the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let mut ranks = Vec::new();
    for &wanted in list {
        match Rank::try_from(wanted) {
            Ok(other) if other < size && other != rank => ranks.push(other),
            _ => {
                let what = format!("rank {wanted} excluded by rank {rank} of {size}");
                let remedy =
                    "name other ranks of the communicator; a rank that leaves destroys its own instead";
                return Err(Error::invalid(what, remedy));
            }
        }
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(ranks)
}

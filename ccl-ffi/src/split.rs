//! `cclCommSplit`.

use crate::comm::{self, cclComm_t};
use crate::config::{Settings, cclConfig_t};
use crate::group;
use crate::pointers::store;
use crate::result::{cclResult_t, guard_call};
use ccl::Error;
use std::ffi::c_int;

/// The colour of a rank that takes no part in what `cclCommSplit` makes.
pub const CCL_SPLIT_NOCOLOR: c_int = -1;

/// Splits a communicator: ranks of one colour become a new one in `newcomm`, numbered by their keys, and by their
/// ranks where keys are equal. A rank with `CCL_SPLIT_NOCOLOR` gets NULL. All ranks must call it, at the same place
/// among their calls; `comm` goes on working. Returns when the new communicator is there, whatever `blocking` says. In
/// a group, `cclGroupEnd` splits before it makes the group's other calls, and writes `newcomm`.
///
/// # Safety
/// `newcomm` is NULL or writable, in a group until its end. `config` is NULL or begins as `CCL_CONFIG_INITIALIZER` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommSplit(
    comm: cclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut cclComm_t,
    config: *const cclConfig_t,
) -> cclResult_t {
    guard_call(|| {
        // SAFETY: the function's contract.
        unsafe { store(newcomm, std::ptr::null_mut(), "newcomm")? };
        // SAFETY: the function's contract.
        let settings = unsafe { Settings::parse(config)? }.of_child()?;
        let color = match color {
            CCL_SPLIT_NOCOLOR => None,
            0.. => Some(color.unsigned_abs()),
            _ => {
                let remedy = "give a number from 0, or CCL_SPLIT_NOCOLOR to take no part";
                return Err(Error::invalid(format!("colour {color}"), remedy));
            }
        };
        comm::face(comm)?.usable()?;
        let parent = comm as usize;
        let split = move |_: &dyn Fn(cclComm_t)| {
            let child = comm::with(parent as cclComm_t, |communicator| communicator.split(color, key))?;
            let Some(mut child) = child else { return Ok(std::ptr::null_mut()) };
            settings.change(&mut child)?;
            comm::insert_ready(child, settings.name)
        };
        // SAFETY: the function's contract, which `set_up` keeps to.
        unsafe { group::set_up(newcomm, Some(comm), split) }
    })
}

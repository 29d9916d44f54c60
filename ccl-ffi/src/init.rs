//! Making communicators.

use crate::comm::{self, Face, cclComm_t};
use crate::config::{Settings, cclConfig_t};
use crate::device;
use crate::group;
use crate::pointers::{self, store};
use crate::result::{cclResult_t, guard_code};
use crate::unique_id::cclUniqueId;
use ccl::config::Origin;
use ccl::{Builder, Communicator, Config, Error, Result, spawn_quiet};
use std::ffi::c_int;
use std::sync::{Arc, Once};

/// Joins the ranks that were given the same id; returns when all `nranks` have, or with the list of those
/// absent. In a group, `cclGroupEnd` joins, and writes `comm`. The handle is written when the joining begins, and NULL
/// when it fails, so that another thread can end it with `cclCommAbort`. The rank is on the CUDA device that is the calling thread's at
/// that moment (`cudaSetDevice`), if there is one.
///
/// # Safety
/// `comm` is NULL or writable, in a group until its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommInitRank(
    comm: *mut cclComm_t,
    nranks: c_int,
    commId: cclUniqueId,
    rank: c_int,
) -> cclResult_t {
    // SAFETY: the function's contract.
    unsafe { cclCommInitRankConfig(comm, nranks, commId, rank, std::ptr::null()) }
}

/// `cclCommInitRank` with settings; NULL for none. With `blocking = 0` it returns `cclInProgress` at once, with a
/// communicator of which nothing but `cclCommGetAsyncError`, `cclGetLastError` and `cclCommAbort` can be used until
/// the first of them gives something else than `cclInProgress`; so in a group too.
///
/// # Safety
/// `comm` is NULL or writable, in a group until its end. `config` is NULL or begins as `CCL_CONFIG_INITIALIZER` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommInitRankConfig(
    comm: *mut cclComm_t,
    nranks: c_int,
    commId: cclUniqueId,
    rank: c_int,
    config: *const cclConfig_t,
) -> cclResult_t {
    // SAFETY: the function's contract.
    guard_code(|| unsafe { join(comm, nranks, commId, rank, config) }.inspect_err(group::note))
}

/// # Safety
/// As [`cclCommInitRankConfig`].
unsafe fn join(
    comm: *mut cclComm_t,
    nranks: c_int,
    id: cclUniqueId,
    rank: c_int,
    config: *const cclConfig_t,
) -> Result<cclResult_t> {
    // SAFETY: the caller's promise.
    unsafe { store(comm, std::ptr::null_mut(), "comm")? };
    if nranks < 1 || rank < 0 || rank >= nranks {
        let what = format!("rank {rank} of {nranks}");
        return Err(Error::invalid(what, "give at least one rank, and ranks from 0 to nranks - 1"));
    }
    // SAFETY: the caller's promise.
    let settings = unsafe { Settings::parse(config)? };
    let builder = Communicator::builder().rank(rank as u32).size(nranks as u32).unique_id(id.parse()?);
    let mut builder = settings.apply(builder.config(environment()?)).current_device();
    let face = Face::new(rank as u32, nranks as u32, settings.name, builder.abort_handle());
    if settings.non_blocking {
        let joining = join_behind(builder, face)?;
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { comm.write(joining) };
        return Ok(cclResult_t::cclInProgress);
    }
    // SAFETY: not NULL, and the caller's promise, which `set_up` keeps to.
    unsafe {
        group::set_up(comm, None, move |publish| {
            let joining = comm::insert(Arc::clone(&face))?;
            publish(joining);
            build(builder, joining, &face).inspect_err(|_| _ = crate::ending::remove(joining))?;
            Ok(joining)
        })?;
    }
    Ok(cclResult_t::cclSuccess)
}

/// Joins, and puts what has joined behind its handle.
fn build(builder: Builder, comm: cclComm_t, face: &Face) -> Result<()> {
    // Aborted while it joined: what was made goes.
    builder.build().and_then(|communicator| comm::fill(comm, face, communicator))
}

/// Joins in a thread of its own.
fn join_behind(builder: Builder, face: Arc<Face>) -> Result<cclComm_t> {
    let comm = comm::insert(Arc::clone(&face))?;
    let handle = comm as usize;
    let joining = spawn_quiet("ccl-init", move || {
        if let Err(error) = build(builder, handle as cclComm_t, &face) {
            face.note(&error);
        }
    });
    match joining {
        Ok(_) => Ok(comm),
        Err(cause) => {
            let _ = crate::ending::remove(comm);
            Err(Error::system("starting a thread that joins", cause, "raise the limit of threads"))
        }
    }
}

/// Makes a communicator of `ndev` ranks of this process, one for each thread that will drive one; `comms[i]` becomes rank
/// i. One thread can drive several, with groups. In a thread with a CUDA context rank i is on device i, if there are so many; else all are on
/// the thread's device.
///
/// # Safety
/// `comms` is NULL or has room for `ndev` handles. `devlist` is NULL, or has the numbers 0 to `ndev - 1` in order,
/// since the devices of host memory are numbers only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommInitAll(
    comms: *mut cclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> cclResult_t {
    guard_code(|| {
        let Some(size) = u32::try_from(ndev).ok().filter(|size| *size > 0) else {
            return Err(Error::invalid(format!("ndev = {ndev}"), "make at least one rank"));
        };
        if size as usize > comm::MOST {
            let remedy = format!("a process has at most {} communicators", comm::MOST);
            return Err(Error::invalid(format!("ndev = {ndev}"), remedy));
        }
        pointers::check(comms, "comms", "give an array of ndev cclComm_t")?;
        if !devlist.is_null() {
            pointers::check(devlist, "devlist", "give an array of ndev numbers, or NULL")?;
        }
        for place in 0..size as usize {
            // SAFETY: the function's contract.
            let device = (!devlist.is_null()).then(|| unsafe { devlist.add(place).read() });
            if let Some(device) = device.filter(|device| *device != place as c_int) {
                let what = format!("devlist[{place}] = {device}");
                return Err(Error::invalid(what, "buffers are host memory: give NULL, or 0 to ndev - 1"));
            }
        }
        environment()?;
        let mut made = Vec::new();
        for communicator in device::local(size)? {
            match comm::insert_ready(communicator, String::new()) {
                Ok(comm) => made.push(comm),
                Err(error) => {
                    made.into_iter().for_each(|comm| drop(crate::ending::remove(comm)));
                    return Err(error);
                }
            }
        }
        for (place, comm) in made.into_iter().enumerate() {
            // SAFETY: not NULL, with room for all by the function's contract.
            unsafe { comms.add(place).write(comm) };
        }
        Ok(cclResult_t::cclSuccess)
    })
}

/// The environment's settings. The first time, the log starts.
pub(crate) fn environment() -> Result<Config> {
    let config = Config::from_env()?;
    start_logging(&config);
    Ok(config)
}

/// Sends the log to standard error, if `RDMACCL_DEBUG` asks for one and the program has no subscriber.
fn start_logging(config: &Config) {
    static STARTED: Once = Once::new();
    if config.origin("RDMACCL_DEBUG") == Origin::Default {
        return;
    }
    STARTED.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::try_new(&config.debug).unwrap_or_default();
        // An error says that the program has a subscriber of its own, which is then in charge.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    });
}

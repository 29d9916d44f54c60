//! What there is to know about a communicator.

use crate::comm::{self, cclComm_t};
use crate::pointers;
use crate::result::{c_text, cclResult_t, guard};
use ccl::{Description, Error};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;

/// Properties of a communicator. Begin with `cclCommProperties_t properties = CCL_COMM_PROPERTIES_INITIALIZER;`: the
/// library fills in the fields that the program's header and it both know.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct cclCommProperties_t {
    /// Set by the initialiser.
    pub size: usize,
    /// This rank.
    pub rank: c_int,
    /// How many ranks there are.
    pub nRanks: c_int,
    /// How many of them are on this host, this one included.
    pub hostRanks: c_int,
    /// How many peers no transport reaches.
    pub unreachablePeers: c_int,
    /// Bytes of memory that this rank's links take.
    pub memoryBytes: u64,
    /// Collectives that were made.
    pub calls: u64,
    /// The names of the transports to its peers, with commas between them.
    pub transports: [c_char; 64],
}

/// The fields' values; waits for the calls that were issued before.
///
/// # Safety
/// `properties` is NULL, or points to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cclCommGetProperties(
    comm: cclComm_t,
    properties: *mut cclCommProperties_t,
) -> cclResult_t {
    guard(|| {
        pointers::check(properties, "properties", "give the address of a cclCommProperties_t")?;
        // SAFETY: not NULL and aligned; even the oldest struct has its size.
        let size = unsafe { (*properties).size };
        if !(offset_of!(cclCommProperties_t, rank)..=1 << 20).contains(&size) {
            let remedy = "begin with cclCommProperties_t properties = CCL_COMM_PROPERTIES_INITIALIZER";
            return Err(Error::invalid(format!("a cclCommProperties_t of {size} bytes"), remedy));
        }
        let known = comm::with(comm, |communicator| {
            let places = communicator.places();
            let own = &places[communicator.rank() as usize].0;
            let on_host = places.iter().filter(|(host, _)| host == own).count();
            Ok(cclCommProperties_t { size, ..describe(&communicator.describe(), on_host) })
        })?;
        let len = size.min(size_of::<cclCommProperties_t>());
        // SAFETY: `len` bytes can be read from the one and, by the function's contract, written to the other.
        unsafe { std::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), properties.cast(), len) };
        Ok(())
    })
}

fn describe(description: &Description, on_host: usize) -> cclCommProperties_t {
    let mut names: Vec<_> = description.routes.iter().filter_map(|route| route.transport).collect();
    names.sort_unstable();
    names.dedup();
    let mut transports = [0; 64];
    // The last byte stays 0.
    for (to, from) in transports[..63].iter_mut().zip(names.join(",").into_bytes()) {
        *to = from.cast_signed() as c_char;
    }
    let unreachable = description.routes.iter().filter(|route| route.transport.is_none()).count();
    cclCommProperties_t {
        size: 0,
        rank: description.rank as c_int,
        nRanks: description.size as c_int,
        hostRanks: on_host as c_int,
        unreachablePeers: unreachable as c_int,
        memoryBytes: description.memory_bytes,
        calls: description.calls,
        transports,
    }
}

thread_local! {
    /// The text that `cclCommDescribe` gave out.
    static DESCRIBED: RefCell<CString> = RefCell::default();
}

/// A description of the communicator in JSON, for people and logs: each peer's transport and why it was chosen, the
/// memory that is used. NULL: an error, which `cclGetLastError(NULL)` has. Waits for the calls that were issued before. The
/// text lives until the next call of this function on the same thread.
#[unsafe(no_mangle)]
pub extern "C" fn cclCommDescribe(comm: cclComm_t) -> *const c_char {
    let mut at = std::ptr::null();
    guard(|| {
        let name = comm::joined(comm)?.name.clone();
        let description = comm::with(comm, |communicator| Ok(communicator.describe()))?;
        let mut object = serde_json::json!(description);
        object["name"] = name.into();
        let text = c_text(object.to_string());
        at = DESCRIBED.with_borrow_mut(|described| {
            *described = text;
            described.as_ptr()
        });
        Ok(())
    });
    at
}

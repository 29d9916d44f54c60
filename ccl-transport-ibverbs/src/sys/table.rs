//! libibverbs, opened at run time: a table of its functions.

use super::abi::*;
use ccl_core::{Error, Result};
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

/// The version of the symbols that every libibverbs since 2006 has.
const BASE: &CStr = c"IBVERBS_1.1";
/// The version before, of another ABI; of the completion channels' functions still the only one.
const OLD: &CStr = c"IBVERBS_1.0";

macro_rules! table {
    (
        required { $($r:ident : fn($($ra:ty),*) $(-> $rr:ty)? = $rv:expr;)* }
        optional { $($o:ident : fn($($oa:ty),*) $(-> $or:ty)? = $os:expr, $ov:expr;)* }
    ) => {
        /// The functions. What an old library lacks is `None`.
        pub(crate) struct Table {
            /// The name under which it was opened.
            pub(crate) file: String,
            $(pub(crate) $r: unsafe extern "C" fn($($ra),*) $(-> $rr)?,)*
            $(pub(crate) $o: Option<unsafe extern "C" fn($($oa),*) $(-> $or)?>,)*
        }

        impl Table {
            fn of(object: &Object) -> Result<Table> {
                Ok(Table {
                    file: object.file.clone(),
                    // SAFETY: a symbol of this name and version has this signature: they are libibverbs' ABI.
                    $($r: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ra),*) $(-> $rr)?>(object.required(stringify!($r), $rv)?) },)*
                    // SAFETY: as above; a null pointer is `None`.
                    $($o: unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($oa),*) $(-> $or)?>>(object.find($os, $ov)) },)*
                })
            }
        }
    };
}

table! {
    required {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device = BASE;
        ibv_free_device_list: fn(*mut *mut ibv_device) = BASE;
        ibv_get_device_guid: fn(*mut ibv_device) -> u64 = BASE;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context = BASE;
        ibv_close_device: fn(*mut ibv_context) -> c_int = BASE;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int = BASE;
        ibv_ack_async_event: fn(*mut ibv_async_event) = BASE;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int = BASE;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int = BASE;
        ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int = BASE;
        ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int = BASE;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd = BASE;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int = BASE;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr = BASE;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int = BASE;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel = OLD;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int = OLD;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq = BASE;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int = BASE;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int = BASE;
        ibv_ack_cq_events: fn(*mut ibv_cq, libc::c_uint) = BASE;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp = BASE;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int = BASE;
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int = BASE;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int = BASE;
        ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah = BASE;
        ibv_destroy_ah: fn(*mut ibv_ah) -> c_int = BASE;
    }
    optional {
        fork_init: fn() -> c_int = "ibv_fork_init", BASE;
        reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, size_t, u64, libc::c_uint) -> *mut ibv_mr
            = "ibv_reg_mr_iova2", c"IBVERBS_1.8";
        reg_dmabuf_mr: fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr
            = "ibv_reg_dmabuf_mr", c"IBVERBS_1.12";
        query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, size_t, u32, size_t) -> ssize_t
            = "_ibv_query_gid_table", c"IBVERBS_1.11";
    }
}

impl Table {
    /// The library of this file name, opened at the first call and never closed: its providers are plugins that do not
    /// expect to be unloaded.
    pub(crate) fn open(file: &str) -> Result<&'static Table> {
        static OPENED: Mutex<BTreeMap<String, Result<&'static Table>>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || {
            let table: &'static Table = Box::leak(Box::new(Table::of(&Object::open(file)?)?));
            // Older kernels would give a forked child the registered pages, and us copies of them.
            if let Some(fork_init) = table.fork_init {
                // SAFETY: takes nothing, and nothing is registered yet. It fails where memory is registered already by
                // another user of the library, who then has decided.
                unsafe { fork_init() };
            }
            Ok(table)
        };
        opened.entry(file.to_string()).or_insert_with(load).clone()
    }
}

/// A shared object, open until the process ends.
struct Object {
    file: String,
    handle: *mut c_void,
    /// Whether its symbols have libibverbs' versions, as all but fakes have.
    versioned: bool,
}

impl Object {
    fn open(file: &str) -> Result<Object> {
        let cannot = |why: String| {
            let what = format!("RDMA: {file} cannot be opened: {why}");
            let remedy = "install rdma-core (Debian: libibverbs1 and ibverbs-providers), or name the library by RDMACCL_IBVERBS";
            Error::unsupported(what, remedy)
        };
        let name = CString::new(file).map_err(|_| cannot("its name holds a null byte".into()))?;
        // SAFETY: a string that ends in null; the library's constructors are libibverbs' own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(cannot(loader_says()));
        }
        let probe = c"ibv_get_device_list".as_ptr();
        let versioned =
            [BASE, OLD].iter().any(|version| !versioned(handle, probe, version.as_ptr()).is_null());
        Ok(Object { file: file.to_string(), handle, versioned })
    }

    /// A symbol of this version, or null. In an object without versions the name alone decides.
    fn find(&self, symbol: &str, version: &CStr) -> *mut c_void {
        let symbol = CString::new(symbol).expect("symbols are literals without null bytes");
        if self.versioned {
            return versioned(self.handle, symbol.as_ptr(), version.as_ptr());
        }
        // SAFETY: an open handle and a string that ends in null.
        unsafe { libc::dlsym(self.handle, symbol.as_ptr()) }
    }

    fn required(&self, symbol: &str, version: &CStr) -> Result<*mut c_void> {
        let found = self.find(symbol, version);
        if !found.is_null() {
            return Ok(found);
        }
        let version = version.to_string_lossy();
        let what = format!("RDMA: {} has no {symbol} of version {version}", self.file);
        Err(Error::unsupported(what, "it is too old or no libibverbs: install rdma-core 17 or newer"))
    }
}

/// Not dlsym where versions are known: Debian's library carries old `@IBVERBS_1.0` symbols beside `@@IBVERBS_1.1`.
#[cfg(target_env = "gnu")]
fn versioned(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: an open handle and two strings that end in null.
    unsafe { libc::dlvsym(handle, symbol, version) }
}

/// Other C libraries' loaders find the newest.
#[cfg(not(target_env = "gnu"))]
fn versioned(_handle: *mut c_void, _symbol: *const c_char, _version: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

fn loader_says() -> String {
    // SAFETY: dlerror has no precondition; its text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: not null, so a string that ends in null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

//! NCCL's C functions, of which rdmaccl has the same with another prefix: one table calls both libraries, so that both are measured alike.

use ccl_transport_cuda::{DeviceMemory, Stream};
use libc::{c_char, c_int, c_void, size_t};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// `ncclFloat32`, `cclFloat32`.
const FLOAT: c_int = 7;
/// `ncclSum`, `cclSum`.
const SUM: c_int = 0;

/// What ranks that want to meet all know; C has it by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Id([u8; 128]);

macro_rules! table {
    ($($name:ident : fn($($argument:ty),*) -> $result:ty;)*) => {
        /// A library's functions. It stays open until the process ends.
        #[allow(non_snake_case)] // the names are C's, without their prefix
        pub(crate) struct Library {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn of(handle: *mut c_void, prefix: &str) -> Result<Library, String> {
                Ok(Library {
                    // SAFETY: a function of this name has this signature in NCCL from 2.19 on, and in rdmaccl: it is their ABI.
                    $($name: unsafe {
                        let found = symbol(handle, &format!("{prefix}{}", stringify!($name)))?;
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                    },)*
                })
            }
        }
    };
}

table! {
    GetVersion: fn(*mut c_int) -> c_int;
    GetUniqueId: fn(*mut Id) -> c_int;
    GetErrorString: fn(c_int) -> *const c_char;
    GetLastError: fn(*mut c_void) -> *const c_char;
    CommInitRank: fn(*mut *mut c_void, c_int, Id, c_int) -> c_int;
    CommDestroy: fn(*mut c_void) -> c_int;
    CommRegister: fn(*mut c_void, *mut c_void, size_t, *mut *mut c_void) -> c_int;
    CommDeregister: fn(*mut c_void, *mut c_void) -> c_int;
    AllReduce: fn(*const c_void, *mut c_void, size_t, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
}

fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).expect("a name without a null byte");
    // SAFETY: a library that is open, and a string.
    let found = unsafe { libc::dlsym(handle, text.as_ptr()) };
    if found.is_null() { Err(format!("it has no {name}")) } else { Ok(found) }
}

/// A string of C, which lives at least until this function has read it.
fn text(of: *const c_char) -> String {
    if of.is_null() {
        return String::new();
    }
    // SAFETY: both libraries give strings that end, and that live until the thread's next question.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().trim().to_string()
}

impl Library {
    /// Opens it; `file` may be a name that the loader looks for.
    pub(crate) fn open(file: &str, prefix: &str) -> Result<Library, String> {
        let name = CString::new(file).map_err(|_| format!("'{file}' is no file"))?;
        // SAFETY: a string; what the library does when it is loaded is what any program lets it do.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: asked by the thread whose call has failed.
            return Err(text(unsafe { libc::dlerror() }));
        }
        Library::of(handle, prefix)
    }

    /// 23004 is 2.30.4.
    pub(crate) fn version(&self) -> Result<u32, String> {
        let mut version = 0;
        // SAFETY: room for a number.
        self.check(unsafe { (self.GetVersion)(&mut version) }, null_mut(), "GetVersion")?;
        Ok(version.unsigned_abs())
    }

    pub(crate) fn id(&self) -> Result<Id, String> {
        let mut id = Id([0; 128]);
        // SAFETY: room for an id.
        self.check(unsafe { (self.GetUniqueId)(&mut id) }, null_mut(), "GetUniqueId")?;
        Ok(id)
    }

    /// Makes this thread, whose device is its current one, a rank of so many.
    pub(crate) fn join(&self, ranks: usize, id: Id, rank: usize) -> Result<Comm<'_>, String> {
        let (mut comm, ranks, rank) = (null_mut(), ranks as c_int, rank as c_int);
        // SAFETY: room for a handle.
        let code = unsafe { (self.CommInitRank)(&mut comm, ranks, id, rank) };
        self.check(code, null_mut(), "CommInitRank")?;
        Ok(Comm { library: self, comm, registered: Vec::new() })
    }

    fn check(&self, code: c_int, comm: *mut c_void, call: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes a number.
        let name = text(unsafe { (self.GetErrorString)(code) });
        // SAFETY: takes a communicator that lives, or none.
        let why = text(unsafe { (self.GetLastError)(comm) });
        Err(format!("{call}: {name} ({code}): {why}"))
    }
}

/// A rank. It is its thread's.
pub(crate) struct Comm<'l> {
    library: &'l Library,
    comm: *mut c_void,
    registered: Vec<*mut c_void>,
}

impl Comm<'_> {
    /// Sums of floats, in stream order. Both memories must be there until the stream has passed the call.
    pub(crate) fn all_reduce(
        &self,
        send: &DeviceMemory,
        receive: &DeviceMemory,
        count: usize,
        stream: &Stream,
    ) -> Result<(), String> {
        assert!(count * 4 <= send.len().min(receive.len()), "{count} floats");
        let (from, to) = (send.address() as *const c_void, receive.address() as *mut c_void);
        let stream = stream.handle() as *mut c_void;
        // SAFETY: the device's memory, which no Rust code refers to, as long as the call says; and a stream of the same device.
        let code = unsafe { (self.library.AllReduce)(from, to, count, FLOAT, SUM, self.comm, stream) };
        self.library.check(code, self.comm, "AllReduce")
    }

    /// Says that calls will use all of the memory, which must be there until [`forget`](Comm::forget).
    pub(crate) fn register(&mut self, memory: &DeviceMemory) -> Result<(), String> {
        let (at, mut handle) = (memory.address() as *mut c_void, null_mut());
        // SAFETY: memory of the rank's device, and room for a handle.
        let code = unsafe { (self.library.CommRegister)(self.comm, at, memory.len(), &mut handle) };
        self.library.check(code, self.comm, "CommRegister")?;
        self.registered.push(handle);
        Ok(())
    }

    /// Ends all registrations.
    pub(crate) fn forget(&mut self) -> Result<(), String> {
        self.registered.drain(..).try_for_each(|handle| {
            // SAFETY: of this communicator, ended once.
            let code = unsafe { (self.library.CommDeregister)(self.comm, handle) };
            self.library.check(code, self.comm, "CommDeregister")
        })
    }
}

impl Drop for Comm<'_> {
    fn drop(&mut self) {
        // SAFETY: of our own, destroyed once. It waits for what was enqueued.
        unsafe { (self.library.CommDestroy)(self.comm) };
    }
}

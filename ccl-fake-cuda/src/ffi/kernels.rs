//! Kernels for threads of the CPU, in a shared object that a script names.

use libc::{c_char, c_uint, c_void, size_t};
use std::ffi::{CStr, CString};
use std::sync::Arc;

type Parameter = unsafe extern "C" fn() -> size_t;
type Find = unsafe extern "C" fn(*const c_char, *const c_char) -> c_uint;
type Memories = unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> c_uint;
type Multicast = unsafe extern "C" fn(Memories);
type Run = unsafe extern "C" fn(c_uint, *const c_void, c_uint, c_uint) -> c_uint;

/// The open object; it stays open.
pub(crate) struct Kernels {
    parameter: usize,
    find: Find,
    run: Run,
}

/// One of its kernels.
#[derive(Clone)]
pub(crate) struct Kernel {
    of: Arc<Kernels>,
    number: u32,
}

impl Kernels {
    /// Panics where it is none, as a mistake of a test.
    pub(crate) fn open(file: &str) -> Arc<Kernels> {
        let name = CString::new(file).expect("no null byte in a path");
        // SAFETY: a string; the object's only constructors are those of C++'s library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{file} cannot be opened");
        let symbol = |name: &CStr| {
            // SAFETY: an open handle and a string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!found.is_null(), "{file} has no {name:?}");
            found
        };
        // SAFETY: functions of our own with these signatures.
        unsafe {
            std::mem::transmute::<*mut c_void, Multicast>(symbol(c"emulated_multicast"))(
                super::multicast::memories,
            );
            let parameter = std::mem::transmute::<*mut c_void, Parameter>(symbol(c"emulated_parameter"));
            Arc::new(Kernels {
                parameter: parameter(),
                find: std::mem::transmute::<*mut c_void, Find>(symbol(c"emulated_find")),
                run: std::mem::transmute::<*mut c_void, Run>(symbol(c"emulated_run")),
            })
        }
    }

    /// The kernel of this name for a family.
    pub(crate) fn find(self: &Arc<Kernels>, family: &str, name: &str) -> Option<Kernel> {
        let (family, name) = (CString::new(family).ok()?, CString::new(name).ok()?);
        // SAFETY: two strings.
        let number = unsafe { (self.find)(family.as_ptr(), name.as_ptr()) };
        (number != 0).then(|| Kernel { of: Arc::clone(self), number })
    }
}

impl Kernel {
    /// Bytes of the one parameter that all have.
    pub(crate) fn parameter(&self) -> usize {
        self.of.parameter
    }

    /// Runs all threads of all blocks, and returns when they have ended; 0, or an error's number.
    pub(crate) fn run(&self, parameter: &[u8], blocks: u32, threads: u32) -> u32 {
        assert_eq!(parameter.len(), self.of.parameter, "a parameter of another length");
        // SAFETY: a kernel's number and its parameter. What it touches whoever launched it vouches for, as on a device.
        unsafe { (self.of.run)(self.number, parameter.as_ptr().cast(), blocks, threads) }
    }
}

//! The CUDA driver's library, opened at run time: a table of its functions.

use super::abi::*;
use crate::driver::{NEEDED, Version};
use ccl_core::{Error, Result};
use libc::{c_char, c_int, c_uchar, c_uint, c_void, size_t};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

type GetVersion = unsafe extern "C" fn(*mut c_int) -> CUresult;
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CUresult;

macro_rules! functions {
    ($(#[$about:meta])* $table:ident; $($name:ident : fn($($argument:ty),*);)*) => {
        $(#[$about])*
        #[allow(non_snake_case)] // the names are C's
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> CUresult,)*
        }

        impl $table {
            /// `find` knows functions by name, in the version of CUDA whose signatures are given here.
            fn of(find: impl Fn(&str) -> Result<*mut c_void>) -> Result<$table> {
                Ok($table {
                    // SAFETY: a function of this name has this signature in that version of CUDA: it is the driver's ABI.
                    $($name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> CUresult>(find(stringify!($name))?) },)*
                })
            }
        }
    };
}

/// The driver, by its functions.
pub(crate) struct Table {
    /// The name under which it was opened.
    pub(crate) file: String,
    /// What the driver is of.
    pub(crate) version: Version,
    functions: Functions,
    /// Why it has none, if so: those of 12.0 do without.
    pub(crate) multicast: Result<MulticastFunctions>,
}

impl std::ops::Deref for Table {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

functions! {
    /// Memory that stands for that of several devices, in the form that it has in CUDA 12.1, which has brought it.
    MulticastFunctions;
    cuMulticastCreate: fn(*mut CUmemGenericAllocationHandle, *const CUmulticastObjectProp);
    cuMulticastAddDevice: fn(CUmemGenericAllocationHandle, CUdevice);
    cuMulticastBindMem: fn(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, u64);
    cuMulticastUnbind: fn(CUmemGenericAllocationHandle, CUdevice, size_t, size_t);
    cuMulticastGetGranularity: fn(*mut size_t, *const CUmulticastObjectProp, c_int);
}

functions! {
    /// What is always there, in the form that it has in the version of CUDA that is [`NEEDED`].
    Functions;
    cuInit: fn(c_uint);
    cuGetErrorName: fn(CUresult, *mut *const c_char);
    cuGetErrorString: fn(CUresult, *mut *const c_char);
    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGet: fn(*mut CUdevice, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid: fn(*mut CUuuid, CUdevice);
    cuDeviceGetPCIBusId: fn(*mut c_char, c_int, CUdevice);
    cuDeviceGetAttribute: fn(*mut c_int, c_int, CUdevice);
    cuDeviceTotalMem: fn(*mut size_t, CUdevice);
    cuDevicePrimaryCtxRetain: fn(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease: fn(CUdevice);
    cuDevicePrimaryCtxGetState: fn(CUdevice, *mut c_uint, *mut c_int);
    cuCtxPushCurrent: fn(CUcontext);
    cuCtxPopCurrent: fn(*mut CUcontext);
    cuCtxGetCurrent: fn(*mut CUcontext);
    cuCtxGetDevice: fn(*mut CUdevice);
    cuPointerGetAttributes: fn(c_uint, *const c_int, *mut *mut c_void, CUdeviceptr);
    cuMemAlloc: fn(*mut CUdeviceptr, size_t);
    cuMemFree: fn(CUdeviceptr);
    cuMemGetAddressRange: fn(*mut CUdeviceptr, *mut size_t, CUdeviceptr);
    cuMemGetInfo: fn(*mut size_t, *mut size_t);
    cuMemsetD8Async: fn(CUdeviceptr, c_uchar, size_t, CUstream);
    cuMemHostAlloc: fn(*mut *mut c_void, size_t, c_uint);
    cuMemHostGetDevicePointer: fn(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemFreeHost: fn(*mut c_void);
    cuIpcGetMemHandle: fn(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle: fn(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle: fn(CUdeviceptr);
    cuMemCreate: fn(*mut CUmemGenericAllocationHandle, size_t, *const CUmemAllocationProp, u64);
    cuMemRelease: fn(CUmemGenericAllocationHandle);
    cuMemGetAllocationGranularity: fn(*mut size_t, *const CUmemAllocationProp, c_int);
    cuMemAddressReserve: fn(*mut CUdeviceptr, size_t, size_t, CUdeviceptr, u64);
    cuMemAddressFree: fn(CUdeviceptr, size_t);
    cuMemMap: fn(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, u64);
    cuMemUnmap: fn(CUdeviceptr, size_t);
    cuMemSetAccess: fn(CUdeviceptr, size_t, *const CUmemAccessDesc, size_t);
    cuMemRetainAllocationHandle: fn(*mut CUmemGenericAllocationHandle, *mut c_void);
    cuMemGetAllocationPropertiesFromHandle: fn(*mut CUmemAllocationProp, CUmemGenericAllocationHandle);
    cuMemExportToShareableHandle: fn(*mut c_void, CUmemGenericAllocationHandle, c_int, u64);
    cuMemImportFromShareableHandle: fn(*mut CUmemGenericAllocationHandle, *mut c_void, c_int);
    cuDeviceCanAccessPeer: fn(*mut c_int, CUdevice, CUdevice);
    cuCtxEnablePeerAccess: fn(CUcontext, c_uint);
    cuMemGetHandleForAddressRange: fn(*mut c_void, CUdeviceptr, size_t, c_int, u64);
    cuFlushGPUDirectRDMAWrites: fn(c_int, c_int);
    cuMemcpyHtoD: fn(CUdeviceptr, *const c_void, size_t);
    cuMemcpyDtoH: fn(*mut c_void, CUdeviceptr, size_t);
    cuMemcpyAsync: fn(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    cuStreamCreate: fn(*mut CUstream, c_uint);
    cuStreamDestroy: fn(CUstream);
    cuStreamGetCtx: fn(CUstream, *mut CUcontext);
    cuStreamGetId: fn(CUstream, *mut u64);
    cuStreamIsCapturing: fn(CUstream, *mut c_int);
    cuStreamQuery: fn(CUstream);
    cuStreamSynchronize: fn(CUstream);
    cuStreamWaitEvent: fn(CUstream, CUevent, c_uint);
    cuStreamWaitValue32: fn(CUstream, CUdeviceptr, u32, c_uint);
    cuEventCreate: fn(*mut CUevent, c_uint);
    cuEventDestroy: fn(CUevent);
    cuEventQuery: fn(CUevent);
    cuEventRecord: fn(CUevent, CUstream);
    cuEventElapsedTime: fn(*mut f32, CUevent, CUevent);
    cuModuleLoadDataEx: fn(*mut CUmodule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleGetFunction: fn(*mut CUfunction, CUmodule, *const c_char);
    cuModuleUnload: fn(CUmodule);
    cuOccupancyMaxActiveBlocksPerMultiprocessor: fn(*mut c_int, CUfunction, c_int, size_t);
    cuLaunchKernel: fn(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
    cuLaunchCooperativeKernel: fn(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void);
    cuThreadExchangeStreamCaptureMode: fn(*mut c_int);
    cuStreamBeginCapture: fn(CUstream, c_int);
    cuStreamEndCapture: fn(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags: fn(*mut CUgraphExec, CUgraph, u64);
    cuGraphLaunch: fn(CUgraphExec, CUstream);
    cuGraphExecDestroy: fn(CUgraphExec);
    cuGraphDestroy: fn(CUgraph);
}

/// What has brought multicast.
const MULTICAST_SINCE: Version = Version(12_010);

impl Table {
    fn of(object: &Object) -> Result<Table> {
        let version = object.version()?;
        let finder = object.finder()?;
        Ok(Table {
            file: object.file.clone(),
            version,
            functions: Functions::of(|name| object.find(finder, name, (version, NEEDED)))?,
            multicast: MulticastFunctions::of(|name| object.find(finder, name, (version, MULTICAST_SINCE))),
        })
    }

    /// The library of this file name, opened at the first call and never closed: the program may have it too.
    pub(crate) fn open(file: &str) -> Result<&'static Table> {
        static OPENED: Mutex<BTreeMap<String, Result<&'static Table>>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || {
            let table: &'static Table = Box::leak(Box::new(Table::of(&Object::open(file)?)?));
            Ok(table)
        };
        opened.entry(file.to_string()).or_insert_with(load).clone()
    }

    /// What the driver calls an error, and its sentence about it. Also before it is initialised.
    pub(crate) fn words(&self, code: CUresult) -> (String, String) {
        let word = |get: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult| {
            let mut at = std::ptr::null();
            // SAFETY: room for a pointer, which for a known error is to a string that lives for ever.
            let known = unsafe { get(code, &mut at) } == CUDA_SUCCESS && !at.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
        };
        let name = word(self.cuGetErrorName).unwrap_or_else(|| "an error without a name".into());
        (name, word(self.cuGetErrorString).unwrap_or_else(|| "unknown to this driver".into()))
    }
}

/// A shared object, open until the process ends.
struct Object {
    file: String,
    handle: *mut c_void,
}

impl Object {
    fn open(file: &str) -> Result<Object> {
        let cannot = |why: String| {
            let what = format!("CUDA: {file} cannot be opened: {why}");
            let remedy = "install the NVIDIA driver (in a container: start it with the GPUs), or name the library by \
                          RDMACCL_CUDA";
            Error::unsupported(what, remedy)
        };
        let name = CString::new(file).map_err(|_| cannot("its name holds a null byte".into()))?;
        // SAFETY: a string that ends in null; the library's constructors are the driver's own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            Err(cannot(loader_says()))
        } else {
            Ok(Object { file: file.to_string(), handle })
        }
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: an open handle and a string that ends in null.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if found.is_null() {
            let what = format!("CUDA: {} has no {}", self.file, name.to_string_lossy());
            let remedy =
                format!("it is no driver of CUDA {NEEDED} or newer: name the right one by RDMACCL_CUDA");
            return Err(Error::unsupported(what, remedy));
        }
        Ok(found)
    }

    /// The driver's version, if it is new enough. Before anything else: an old driver lacks functions too, and its age is the
    /// better thing to say.
    fn version(&self) -> Result<Version> {
        // SAFETY: since CUDA 2.2 a function of this name has this signature.
        let get =
            unsafe { std::mem::transmute::<*mut c_void, GetVersion>(self.symbol(c"cuDriverGetVersion")?) };
        let mut number = 0;
        // SAFETY: room for a number.
        let code = unsafe { get(&mut number) };
        let version = Version(number);
        if code != CUDA_SUCCESS || version < NEEDED {
            let says = if code == CUDA_SUCCESS {
                format!("is of CUDA {version}")
            } else {
                format!("fails with error {code} when asked for its version")
            };
            let what = format!("CUDA: the driver {} {says}", self.file);
            return Err(Error::unsupported(
                what,
                format!("a driver of CUDA {NEEDED} or newer is needed: update it"),
            ));
        }
        Ok(version)
    }

    fn finder(&self) -> Result<GetProcAddress> {
        let found = self.symbol(c"cuGetProcAddress_v2")?;
        // SAFETY: since CUDA 12.0 a function of this name has this signature.
        Ok(unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(found) })
    }

    /// A function as it was in a version, whatever came later under the same name.
    fn find(
        &self,
        finder: GetProcAddress,
        name: &str,
        (version, form): (Version, Version),
    ) -> Result<*mut c_void> {
        let symbol = CString::new(name).expect("names are literals without null bytes");
        let (mut found, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: a string that ends in null, and room for an address and a number.
        let code = unsafe { finder(symbol.as_ptr(), &mut found, form.0, 0, &mut status) };
        if code == CUDA_SUCCESS && !found.is_null() {
            return Ok(found);
        }
        let what = format!("CUDA: {} says that it is of CUDA {version}, but has no {name}", self.file);
        Err(Error::unsupported(what, format!("use a complete driver of CUDA {form} or newer")))
    }
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

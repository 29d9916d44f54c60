//! Types and numbers of the driver's ABI, as cuda.h has them.
#![allow(non_camel_case_types)] // the names are C's

use libc::{c_int, c_uint, c_void};

pub(crate) type CUresult = c_int;
pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUcontext = *mut c_void;
pub(crate) type CUstream = *mut c_void;
pub(crate) type CUevent = *mut c_void;
pub(crate) type CUmodule = *mut c_void;
pub(crate) type CUfunction = *mut c_void;
pub(crate) type CUgraph = *mut c_void;
pub(crate) type CUgraphExec = *mut c_void;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CUuuid {
    pub(crate) bytes: [u8; 16],
}

/// A handle of device memory for other processes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CUipcMemHandle {
    pub(crate) bytes: [u8; 64],
}

pub(crate) const CUDA_SUCCESS: CUresult = 0;
pub(crate) const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
pub(crate) const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
pub(crate) const CUDA_ERROR_DEINITIALIZED: CUresult = 4;
pub(crate) const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
pub(crate) const CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: CUresult = 217;
pub(crate) const CUDA_ERROR_NOT_READY: CUresult = 600;
pub(crate) const CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: CUresult = 704;
pub(crate) const CUDA_ERROR_TOO_MANY_PEERS: CUresult = 711;
pub(crate) const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
pub(crate) const CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: CUresult = 906;

pub(crate) const CU_MEMORYTYPE_HOST: c_uint = 1;
pub(crate) const CU_MEMORYTYPE_DEVICE: c_uint = 2;

pub(crate) const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
pub(crate) const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
pub(crate) const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;

pub(crate) const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub(crate) const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;

pub(crate) const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const CU_EVENT_DEFAULT: c_uint = 0;
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const CU_STREAM_WAIT_VALUE_GEQ: c_uint = 0;
pub(crate) const CU_STREAM_CAPTURE_STATUS_NONE: c_int = 0;
pub(crate) const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: c_int = 1;
pub(crate) const CU_STREAM_CAPTURE_MODE_RELAXED: c_int = 2;
pub(crate) const CU_JIT_ERROR_LOG_BUFFER: c_int = 5;
pub(crate) const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;

/// The handles that are no streams but stand for default ones: the device's, and the thread's.
pub(crate) const CU_STREAM_LEGACY: usize = 1;
pub(crate) const CU_STREAM_PER_THREAD: usize = 2;

//! Types and numbers of the driver's ABI, as cuda.h has them.
#![allow(non_camel_case_types)] // the names are C's

use libc::{c_int, c_uint, c_void, size_t};

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

/// Some memory of a device that has no address yet.
pub(crate) type CUmemGenericAllocationHandle = u64;

/// Where such memory is, or who may use it: a kind, and the number of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// What such memory is.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: CUmemLocation,
    pub(crate) windows: u64,
    pub(crate) flags: [u8; 8],
}

/// Who may do what with a range of addresses.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: c_int,
}

/// What a multicast object is for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CUmulticastObjectProp {
    pub(crate) devices: c_uint,
    pub(crate) size: size_t,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

pub(crate) const CU_MULTICAST_GRANULARITY_MINIMUM: c_int = 0;

pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_int = 1;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: c_int = 1;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;
pub(crate) const CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_int = 0;

pub(crate) const CUDA_SUCCESS: CUresult = 0;
pub(crate) const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
pub(crate) const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
pub(crate) const CUDA_ERROR_DEINITIALIZED: CUresult = 4;
pub(crate) const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
pub(crate) const CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: CUresult = 217;
pub(crate) const CUDA_ERROR_INVALID_HANDLE: CUresult = 400;
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

pub(crate) const CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: c_int = 1;
pub(crate) const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX: c_int = 0;
pub(crate) const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER: c_int = 100;

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

//! The driver's functions for modules, launches and graphs.

use super::functions::{Handle, give, handle};
use super::{call, current};
use crate::work::{Launch, Work};
use crate::world::{Outcome, World, code};
use libc::{c_char, c_int, c_uchar, c_uint, c_void, size_t};
use std::cell::Cell;
use std::ffi::CStr;

thread_local! {
    /// Global, as it is at first.
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// What every device has.
pub(super) const MULTIPROCESSORS: u32 = 132;
pub(super) const MEMORY: usize = 16 << 30;

/// The option of a module's load that has room for the compiler's words.
const ERROR_LOG: c_int = 5;

/// An ELF file's.
use crate::object::HEADER;

/// The family for which PTX says in its first line that it was made: `// interpret.cu for SumsF32: …`.
fn family_of(image: &str) -> Option<&str> {
    let line = image.lines().next()?.strip_prefix("// ")?;
    line.split(' ').nth(2)?.strip_suffix(':')
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut Handle,
) -> c_int {
    call("cuModuleLoadDataEx", |world| {
        if world.kernels.is_none() {
            return Err(code::NOT_SUPPORTED);
        }
        // SAFETY: as the caller vouches: PTX is text that ends in null, and machine code has a header.
        let is_machine_code = unsafe { image.cast::<[u8; 4]>().read() } == *b"\x7fELF";
        if is_machine_code {
            // SAFETY: what tests take for machine code has text behind its header.
            let text = unsafe { CStr::from_ptr(image.cast::<c_char>().add(HEADER)) }.to_string_lossy();
            let (kind, ptx) = text.split_once('\n').ok_or(code::INVALID_IMAGE)?;
            let family = family_of(ptx).ok_or(code::INVALID_IMAGE)?;
            if kind != world.architecture() {
                return Err(code::NO_BINARY_FOR_GPU);
            }
            world.count("machine code");
            let made = world.load_module(family.into());
            // SAFETY: as the caller vouches.
            return unsafe { give(module, handle(made)) };
        }
        // SAFETY: as above.
        let image = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        if let Some(family) = family_of(&image) {
            let made = world.load_module(family.into());
            // SAFETY: as the caller vouches.
            return unsafe { give(module, handle(made)) };
        }
        for place in 0..count as usize {
            // SAFETY: as the caller vouches: so many options, and for this one room for more than a line.
            unsafe {
                if options.add(place).read() == ERROR_LOG {
                    let text = c"line 1; error: for no family";
                    values
                        .add(place)
                        .read()
                        .cast::<c_char>()
                        .copy_from(text.as_ptr(), text.count_bytes() + 1);
                }
            }
        }
        Err(code::INVALID_PTX)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> c_int {
    call("cuModuleGetFunction", |world| {
        // SAFETY: as the caller vouches.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let found = world.find_function(module.addr(), &name)?;
        // SAFETY: as the caller vouches.
        unsafe { give(function, handle(found)) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleUnload(module: Handle) -> c_int {
    call("cuModuleUnload", |world| world.unload_module(module.addr()))
}

/// One: the kernels promise no more.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: Handle,
    threads: c_int,
    _shared: size_t,
) -> c_int {
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", |world| {
        world.function(function.addr())?;
        // SAFETY: as the caller vouches.
        unsafe { give(blocks, c_int::from((1..=512).contains(&threads))) }
    })
}

/// # Safety
/// The parameters are those of the kernel.
unsafe fn launch(
    world: &mut World,
    function: Handle,
    (blocks, threads): (c_uint, c_uint),
    stream: Handle,
    parameters: *mut Handle,
) -> Outcome {
    if blocks == 0 || !(1..=512).contains(&threads) {
        return Err(code::INVALID_VALUE);
    }
    let kernel = world.function(function.addr())?.clone();
    // SAFETY: as the caller vouches: one parameter of this size.
    let parameter =
        unsafe { std::slice::from_raw_parts(parameters.read().cast::<u8>(), kernel.parameter()) }.to_vec();
    let launch = Launch { kernel, parameter, blocks, threads };
    world.submit(stream.addr(), current()?, Work::Launch(launch))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _shared: c_uint,
    stream: Handle,
    parameters: *mut Handle,
    _extra: *mut Handle,
) -> c_int {
    // SAFETY: as the caller vouches.
    call("cuLaunchKernel", |world| unsafe { launch(world, function, (blocks, threads), stream, parameters) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _shared: c_uint,
    stream: Handle,
    parameters: *mut Handle,
) -> c_int {
    call("cuLaunchCooperativeKernel", |world| {
        if blocks > MULTIPROCESSORS {
            return Err(code::TOO_LARGE);
        }
        // SAFETY: as the caller vouches.
        unsafe { launch(world, function, (blocks, threads), stream, parameters) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemsetD8Async(
    at: u64,
    byte: c_uchar,
    len: size_t,
    stream: Handle,
) -> c_int {
    call("cuMemsetD8Async", |world| {
        let (_, at) = world.find(at, len).ok_or(code::INVALID_VALUE)?;
        world.submit(stream.addr(), current()?, Work::Fill { at, byte, len })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut size_t, all: *mut size_t) -> c_int {
    call("cuMemGetInfo", |world| {
        world.device_of(current()?)?;
        // SAFETY: as the caller vouches.
        unsafe {
            give(free, MEMORY)?;
            give(all, MEMORY)
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventElapsedTime(time: *mut f32, from: Handle, to: Handle) -> c_int {
    call("cuEventElapsedTime", |world| {
        let (from, to) = (world.event(from.addr())?, world.event(to.addr())?);
        if !from.is_done() || !to.is_done() {
            return Err(code::NOT_READY);
        }
        let seconds = from.until(&to).ok_or(code::INVALID_HANDLE)?;
        // SAFETY: as the caller vouches.
        unsafe { give(time, (seconds * 1e3) as f32) }
    })
}

/// Whatever the mode, what the fake refuses while a stream captures is work on that stream.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    call("cuThreadExchangeStreamCaptureMode", |_| {
        // SAFETY: as the caller vouches.
        let mode = unsafe { &mut *mode };
        *mode = CAPTURE_MODE.replace(*mode);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_int) -> c_int {
    call("cuStreamBeginCapture", |world| world.begin_capture(stream.addr()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int {
    call("cuStreamEndCapture", |world| {
        let made = world.end_capture(stream.addr())?;
        // SAFETY: as the caller vouches.
        unsafe { give(graph, handle(made)) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    ready: *mut Handle,
    graph: Handle,
    _flags: u64,
) -> c_int {
    call("cuGraphInstantiateWithFlags", |world| {
        let made = world.instantiate(graph.addr())?;
        // SAFETY: as the caller vouches.
        unsafe { give(ready, handle(made)) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphLaunch(ready: Handle, stream: Handle) -> c_int {
    call("cuGraphLaunch", |world| world.launch_graph(ready.addr(), stream.addr(), current()?))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecDestroy(ready: Handle) -> c_int {
    call("cuGraphExecDestroy", |world| world.destroy_graph(ready.addr()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    call("cuGraphDestroy", |world| world.destroy_graph(graph.addr()))
}

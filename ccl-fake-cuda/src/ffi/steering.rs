//! The functions that the real library does not have: tests steer the world by them, and look at device memory.

use super::{WORLD, with};
use crate::script;
use crate::work::lock;
use crate::world::World;
use libc::{c_char, c_int, size_t};
use std::ffi::CStr;

/// Begins a new world (`fresh`), or goes on with the one that there is, and runs a script in it. 0, or the length of the text
/// that says why not. A world in which something is alive is not replaced.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_script(
    text: *const c_char,
    fresh: c_int,
    why: *mut c_char,
    room: size_t,
) -> c_int {
    // SAFETY: a string that ends in null.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let run = script::parse(&text).and_then(|commands| {
        if fresh != 0 {
            let mut world = lock(&WORLD);
            let live = world.as_ref().map_or(0, World::live);
            if live > 0 {
                return Err(format!("{live} objects are alive"));
            }
            *world = Some(World::new());
        }
        with(|world| world.run(commands));
        Ok(())
    });
    let Err(text) = run else { return 0 };
    let len = text.len().min(room.saturating_sub(1));
    // SAFETY: the caller's room.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), why, len);
        why.add(len).write(0);
    }
    len as c_int
}

/// What was made and not destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_live() -> u64 {
    with(|world| world.live())
}

/// How often a function was called in this world; or `multicast stores`, of this process.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_count(name: *const c_char) -> u64 {
    // SAFETY: a string that ends in null.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    if name == "multicast stores" {
        return super::multicast::stores();
    }
    with(|world| world.counts.get(name.as_ref()).copied().unwrap_or(0))
}

/// Copies from device memory to the host, now and whatever is going on; 0, or 1 where there is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_read(at: u64, into: *mut u8, len: size_t) -> c_int {
    let Some((_, span)) = with(|world| world.find(at, len)) else { return 1 };
    // SAFETY: so much room.
    span.mapping.read(span.offset, unsafe { std::slice::from_raw_parts_mut(into, len) });
    0
}

/// Copies from the host to device memory, now and whatever is going on; 0, or 1 where there is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_write(at: u64, from: *const u8, len: size_t) -> c_int {
    let Some((_, span)) = with(|world| world.find(at, len)) else { return 1 };
    // SAFETY: so many bytes.
    span.mapping.write(span.offset, unsafe { std::slice::from_raw_parts(from, len) });
    0
}

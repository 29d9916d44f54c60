//! The functions that the real library does not have: tests steer the world by them.

use super::{MOVER, lock, with};
use crate::script;
use crate::world::World;
use libc::{c_char, c_int, size_t};
use std::ffi::CStr;

/// Puts a text where a caller can read it; returns its length.
///
/// # Safety
/// There is room for so many bytes.
unsafe fn answer(text: &str, into: *mut c_char, room: size_t) -> c_int {
    let len = text.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: as the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, len);
            *into.add(len) = 0;
        }
    }
    len as c_int
}

/// Begins a new world (`fresh`), or goes on with the one that there is, and runs a script in it. 0, or the length of the text
/// that says why not. A world in which something is alive is not replaced.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_script(
    text: *const c_char,
    fresh: c_int,
    why: *mut c_char,
    room: size_t,
) -> c_int {
    // SAFETY: a string that ends in null.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let run = script::parse(&text).and_then(|commands| {
        if fresh != 0 {
            let mut world = lock();
            let live = world.as_ref().map_or(0, World::live);
            if live > 0 {
                return Err(format!("{live} objects are alive"));
            }
            *world = Some(World::new(MOVER));
        }
        with(|world| world.run(commands))
    });
    // SAFETY: the caller's room.
    run.err().map_or(0, |text| unsafe { answer(&text, why, room) })
}

/// Objects that were made and not destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_live() -> u64 {
    with(|world| world.live())
}

/// How often a function was called in this world, by its name without `ibv_`; also `sends`, `inline_sends`,
/// `receives` and `bytes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_count(name: *const c_char) -> u64 {
    // SAFETY: a string that ends in null.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    with(|world| world.counts.get(name.as_ref()).copied().unwrap_or(0))
}

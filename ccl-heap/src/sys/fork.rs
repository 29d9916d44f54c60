//! A forked child gets what its parent had, as of ordinary memory: a copy. Shared memory would stay one and the same.
//!
//! The parent makes the copy before it forks, of what its blocks hold, and lets go of it afterwards; the child puts it in the
//! place of the slabs. So a fork takes the time and the memory of copying all blocks, where a copy of ordinary memory is
//! made as pages are written. What other threads write meanwhile may be in it or not. A child that shares all memory with its
//! parent until it executes another program (`vfork`, `posix_spawn`) costs nothing.

use super::heap::{HEAP, cut_off};
use super::pages;
use std::sync::OnceLock;

/// Whether forks are seen. Without memory for that they are not.
pub(super) fn is_watched() -> bool {
    static WATCHED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the handlers are functions of this library, which stays where it is.
    *WATCHED
        .get_or_init(|| unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 })
}

/// The heap stays locked until the fork is over: the copy is of one state, and the child's blocks are those of that state.
extern "C" fn before() {
    HEAP.enter();
    // SAFETY: entered.
    unsafe {
        HEAP.inside(|heap| {
            for slab in heap.slabs.iter_mut().filter(|slab| !slab.is_inherited) {
                slab.copy = pages::copied((slab.start, slab.length, slab.fd), slab.room.blocks());
            }
        });
    }
}

extern "C" fn in_parent() {
    // SAFETY: entered before. The copies are its own, and the child has them.
    unsafe {
        HEAP.inside(|heap| {
            for slab in &mut heap.slabs {
                if let Some(copy) = slab.copy.take() {
                    pages::unmap(copy, slab.length);
                }
            }
        });
    }
    HEAP.leave();
}

extern "C" fn in_child() {
    // SAFETY: entered before, by the only thread that the child has.
    unsafe {
        HEAP.inside(|heap| {
            cut_off(heap);
            for slab in heap.slabs.iter_mut().filter(|slab| !slab.is_inherited) {
                pages::replace(slab.start, slab.length, slab.copy.take());
                libc::close(slab.fd);
                slab.is_inherited = true;
            }
        });
    }
    HEAP.leave_in_child();
}

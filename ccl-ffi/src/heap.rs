//! The preloaded heap gets its shared memory when the library is loaded: what a program allocates before it joins is mapped too.

use ccl::{Config, PreloadedHeap};
use std::panic::catch_unwind;

/// The dynamic linker calls it.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    let attached = catch_unwind(|| {
        // What is wrong with the environment is said when the program joins.
        if let Some(heap) = PreloadedHeap::find()
            && let Ok(config) = Config::from_env()
        {
            heap.attach(config.heap_min);
        }
    });
    // Without it allocations are the C library's, as without a heap.
    drop(attached);
}

//! Allocations, counted: for tests of paths that make none.

#[allow(unsafe_code)] // An allocator cannot be written otherwise.
mod sys;

use std::cell::Cell;
pub use sys::Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far, in a program whose global allocator is [`Counting`].
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

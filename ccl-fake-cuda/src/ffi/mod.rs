//! The C side: the driver's functions over the world, and the few that steer it.
//!
//! # Safety
//! Every function has the contract of its namesake in cuda.h: pointers to results are writable, texts end in null. Handles
//! and device addresses are looked up, never followed.

mod fake;
mod functions;
mod kernels;
mod launching;
mod mapping;
mod memory;
pub(crate) mod multicast;
mod naming;
mod ordering;
mod sharing;
mod steering;
mod virtual_memory;

pub use fake::{Fake, Memory};
pub(crate) use kernels::{Kernel, Kernels};
pub(crate) use mapping::{Backing, Mapping, give_back, reserve};

use crate::work::lock;
use crate::world::{Outcome, World, code};
use std::cell::RefCell;
use std::sync::Mutex;

static WORLD: Mutex<Option<World>> = Mutex::new(None);

thread_local! {
    /// The contexts that were pushed on this thread.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The world; at the first time as `RDMACCL_FAKE_CUDA` says.
fn with<R>(act: impl FnOnce(&mut World) -> R) -> R {
    let mut world = lock(&WORLD);
    let world = world.get_or_insert_with(|| {
        let mut world = World::new();
        if let Ok(script) = std::env::var("RDMACCL_FAKE_CUDA") {
            let commands = crate::script::parse(&script);
            world.run(commands.unwrap_or_else(|why| panic!("RDMACCL_FAKE_CUDA: {why}")));
        }
        world
    });
    act(world)
}

/// A call of a function of the driver.
fn call(name: &str, act: impl FnOnce(&mut World) -> Outcome) -> i32 {
    with(|world| {
        world.begin(name)?;
        world.need_initialized()?;
        act(world)
    })
    .err()
    .unwrap_or(0)
}

/// The thread's current context.
fn current() -> Outcome<usize> {
    CONTEXTS.with_borrow(|stack| stack.last().copied()).ok_or(code::INVALID_CONTEXT)
}

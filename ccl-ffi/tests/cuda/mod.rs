//! A process with a fake CUDA driver, and buffers on its devices.

#![allow(dead_code, missing_docs, unreachable_pub)] // each test program uses some of it

pub mod collectives;

use crate::common::*;
use ccl_fake_cuda::{Fake, Memory};
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Once;

/// Devices of a test's own, whose contexts the program keeps as the runtime library does.
pub struct Gpus {
    pub fake: Fake,
    count: u32,
}

impl Gpus {
    /// So many, with a script.
    pub fn new(count: u32, script: &str) -> Gpus {
        let fake = Fake::start(&format!("devices {count}; {script}"));
        static NAMED: Once = Once::new();
        // SAFETY: under the lock that a world is, before the library has looked; Rust's own readers are locked out.
        NAMED.call_once(|| unsafe { std::env::set_var("RDMACCL_CUDA", Fake::library()) });
        (0..count).for_each(|device| fake.keep_context(device));
        Gpus { fake, count }
    }

    pub fn buffer(&self, device: u32, bytes: &[u8]) -> Buffer<'_> {
        let at = self.fake.alloc(Memory::Device, device, bytes.len());
        self.fake.write(at, bytes);
        Buffer { fake: &self.fake, at, len: bytes.len() }
    }

    pub fn queue(&self, device: u32) -> Queue<'_> {
        Queue { fake: &self.fake, device, handle: self.fake.stream(device) }
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // What an abort leaves to a thread of the library is over soon after it.
            wait_for("the end of all objects", || self.fake.live() == u64::from(self.count));
            (0..self.count).for_each(|device| self.fake.drop_context(device));
        }
    }
}

/// Device memory.
pub struct Buffer<'f> {
    fake: &'f Fake,
    pub at: usize,
    len: usize,
}

impl Buffer<'_> {
    pub fn send(&self) -> *const c_void {
        with_exposed_provenance(self.at)
    }

    pub fn recv(&self) -> *mut c_void {
        with_exposed_provenance_mut(self.at)
    }

    /// The address at an offset.
    pub fn offset(&self, bytes: usize) -> *mut c_void {
        with_exposed_provenance_mut(self.at + bytes)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.fake.read(self.at, self.len)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.fake.free(Memory::Device, self.at);
        }
    }
}

/// A CUDA stream.
pub struct Queue<'f> {
    fake: &'f Fake,
    device: u32,
    pub handle: Stream,
}

impl Queue<'_> {
    /// Waits until it is done; fails if that takes too long.
    #[track_caller]
    pub fn finish(&self) {
        wait_for("the end of a CUDA stream", || self.fake.is_done(self.device, self.handle));
    }

    pub fn is_done(&self) -> bool {
        self.fake.is_done(self.device, self.handle)
    }

    /// The graph of what these calls put on it.
    pub fn capture(&self, calls: impl FnOnce()) -> Graph<'_> {
        self.fake.begin_capture(self.handle);
        calls();
        Graph { queue: self, handle: self.fake.end_capture(self.handle) }
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.fake.destroy(self.handle);
        }
    }
}

/// What a stream has captured.
pub struct Graph<'q> {
    queue: &'q Queue<'q>,
    handle: usize,
}

impl Graph<'_> {
    /// Puts it on its stream.
    pub fn replay(&self) {
        let Queue { fake, device, handle } = self.queue;
        fake.launch_graph(*device, self.handle, *handle);
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.queue.fake.destroy_graph(self.handle);
        }
    }
}

/// A float among bytes.
pub fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap())
}

/// Floats whose sums depend on the order in which they are added.
pub fn floats(count: usize, seed: usize) -> Vec<u8> {
    let float = |i: usize| ((i * 2_654_435_761 + seed * 40_503) % 1_000_003) as f32 * 1.000_1e-3;
    (0..count).flat_map(|i| float(i).to_le_bytes()).collect()
}

/// Bytes of every kind.
pub fn noise(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| (((i + 7 * seed) * 2_654_435_761) >> 13) as u8).collect()
}

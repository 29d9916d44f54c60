//! The driver's functions for memory that stands for that of several devices, and what kernels store there.

use super::functions::give;
use super::mapping::Mapping;
use super::{call, current};
use crate::multicast::GRAIN;
use crate::world::code;
use libc::{MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, c_int, c_uint, c_ulonglong, c_void, size_t};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// What an object is for.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Wanted {
    devices: c_uint,
    size: size_t,
    handle_types: c_ulonglong,
    flags: c_ulonglong,
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMulticastGetGranularity(
    grain: *mut size_t,
    wanted: *const Wanted,
    _option: c_int,
) -> c_int {
    call("cuMulticastGetGranularity", |world| {
        world.need_multicast(world.device_of(current()?)?)?;
        // SAFETY: as the caller vouches.
        unsafe {
            if wanted.read().devices == 0 {
                return Err(code::INVALID_VALUE);
            }
            give(grain, GRAIN)
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMulticastCreate(handle: *mut u64, wanted: *const Wanted) -> c_int {
    call("cuMulticastCreate", |world| {
        // SAFETY: as the caller vouches.
        let Wanted { devices, size, handle_types, flags } = unsafe { wanted.read() };
        world.need_multicast(world.device_of(current()?)?)?;
        if handle_types != 1 || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let made = world.create_multicast(devices, size)?;
        // SAFETY: as the caller vouches.
        unsafe { give(handle, made) }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMulticastAddDevice(handle: u64, device: c_int) -> c_int {
    call("cuMulticastAddDevice", |world| world.add_to_multicast(handle, device as u32))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMulticastBindMem(
    handle: u64,
    at: size_t,
    memory: u64,
    from: size_t,
    size: size_t,
    flags: c_ulonglong,
) -> c_int {
    call("cuMulticastBindMem", |world| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        world.bind_multicast(handle, memory, (at, from, size))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMulticastUnbind(
    handle: u64,
    device: c_int,
    at: size_t,
    size: size_t,
) -> c_int {
    call("cuMulticastUnbind", |world| world.unbind_multicast(handle, device as u32, (at, size)))
}

/// Devices of an object at most.
pub(crate) const DEVICES: usize = 16;

/// An object: a page of numbers in a memfd, which all processes have that have the object.
pub(crate) struct Object {
    file: File,
    page: *const AtomicU64,
}

// SAFETY: a page of atomic numbers that is mapped as long as it lives.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

/// Numbers of the page: how many devices it is for, how many bytes; and of each device how far it is, and where its memory is found.
const FOR: usize = 0;
const BYTES: usize = 1;
const FIRST: usize = 8;
const EACH: usize = 4;
const PAGE: usize = 4096;

/// How far a device is.
const ADDED: u64 = 1;
const BOUND: u64 = 2;

impl Object {
    const NAME: &str = "fake-cuda-multicast";

    pub(crate) fn new(devices: u32, bytes: usize) -> Option<Object> {
        // SAFETY: a name.
        let file = unsafe { libc::memfd_create(c"fake-cuda-multicast".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(PAGE as u64).ok()?;
        let made = Object::of(file)?;
        made.word(FOR).store(devices.into(), Ordering::Release);
        made.word(BYTES).store(bytes as u64, Ordering::Release);
        Some(made)
    }

    /// That of a descriptor, if it is one.
    pub(crate) fn open(descriptor: i32) -> Option<Object> {
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
        path.to_str()?.strip_prefix("/memfd:")?.strip_prefix(Object::NAME)?;
        // SAFETY: it is open, as its link was read, and only borrowed.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().ok()?;
        Object::of(File::from(file))
    }

    fn of(file: File) -> Option<Object> {
        let rights = PROT_READ | PROT_WRITE;
        // SAFETY: a new mapping of a file that has so many bytes.
        let page = unsafe { libc::mmap(null_mut(), PAGE, rights, MAP_SHARED, file.as_raw_fd(), 0) };
        (page != MAP_FAILED).then_some(Object { file, page: page.cast() })
    }

    /// A new descriptor of it.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.file.try_clone().ok()?.into_raw_fd())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(8 * index < PAGE, "past the page");
        // SAFETY: inside of the page.
        unsafe { &*self.page.add(index) }
    }

    fn state(&self, device: u32) -> &AtomicU64 {
        self.word(FIRST + EACH * device as usize)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.word(BYTES).load(Ordering::Acquire) as usize
    }

    /// Adds a device; whether it is new, and there was room for it.
    pub(crate) fn add(&self, device: u32) -> bool {
        let is_room = (device as usize) < DEVICES && !self.is_complete();
        is_room && self.state(device).compare_exchange(0, ADDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether all devices were added.
    pub(crate) fn is_complete(&self) -> bool {
        let added = (0..DEVICES as u32).filter(|device| self.state(*device).load(Ordering::Acquire) != 0);
        added.count() as u64 >= self.word(FOR).load(Ordering::Acquire)
    }

    /// Binds a device's memory, which is found by a descriptor of this process and its file's number; whether that could be.
    pub(crate) fn bind(&self, device: u32, (descriptor, file): (i32, u64)) -> bool {
        let state = self.state(device);
        if state.load(Ordering::Acquire) != ADDED {
            return false;
        }
        let place = FIRST + EACH * device as usize;
        let words = [u64::from(std::process::id()), u64::from(descriptor.unsigned_abs()), file];
        for (index, word) in (place + 1..).zip(words) {
            self.word(index).store(word, Ordering::Release);
        }
        state.store(BOUND, Ordering::Release);
        true
    }

    pub(crate) fn unbind(&self, device: u32) -> bool {
        self.state(device).compare_exchange(BOUND, ADDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: a mapping of our own, of which nobody has an address.
        unsafe { libc::munmap(self.page.cast_mut().cast(), PAGE) };
    }
}

/// An object at an address of this process, and the memory that this process has found behind it.
struct Shown {
    object: Arc<Object>,
    memories: [OnceLock<Mapping>; DEVICES],
}

static SHOWN: RwLock<BTreeMap<usize, Arc<Shown>>> = RwLock::new(BTreeMap::new());
static STORES: AtomicU64 = AtomicU64::new(0);

/// Lets kernels store to an object at an address, at which there is nothing.
pub(crate) fn show(at: u64, object: &Arc<Object>) {
    let shown = Shown { object: Arc::clone(object), memories: Default::default() };
    let mut all = SHOWN.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(at as usize, Arc::new(shown));
}

/// Ends it.
pub(crate) fn hide(at: u64) {
    SHOWN.write().unwrap_or_else(PoisonError::into_inner).remove(&(at as usize));
}

/// How many stores to several memories there were in this process.
pub(crate) fn stores() -> u64 {
    STORES.load(Ordering::Relaxed)
}

/// Where the memories are that are bound behind an address; how many. A store to what is not there ends the process, as a device's context ends.
///
/// # Safety
/// There is room for [`DEVICES`].
pub(super) unsafe extern "C" fn memories(at: *const c_void, into: *mut *mut c_void) -> c_uint {
    let all = SHOWN.read().unwrap_or_else(PoisonError::into_inner);
    let found = all.range(..=at.addr()).next_back();
    let (start, shown) = found.expect("a store to no multicast address");
    let offset = at.addr() - start;
    assert!(
        offset.is_multiple_of(16) && offset + 16 <= shown.object.bytes(),
        "a multicast store past the end"
    );
    STORES.fetch_add(1, Ordering::Relaxed);
    let mut count = 0;
    for (device, memory) in (0..).zip(&shown.memories) {
        if shown.object.state(device).load(Ordering::Acquire) != BOUND {
            continue;
        }
        let memory = memory.get_or_init(|| {
            let place = FIRST + EACH * device as usize;
            let [process, descriptor, file] =
                [1, 2, 3].map(|word| shown.object.word(place + word).load(Ordering::Acquire));
            Mapping::open(process as u32, (descriptor as i32, file), false).expect("memory that is bound")
        });
        assert!(offset + 16 <= memory.len(), "less memory than was bound");
        // SAFETY: room for one more, and an address inside of the mapping, which stays as long as the object is shown.
        unsafe { into.add(count).write(memory.inner(offset).cast()) };
        count += 1;
    }
    count as c_uint
}

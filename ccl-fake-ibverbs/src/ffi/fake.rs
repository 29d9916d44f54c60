//! What tests take: the library as a file, and its steering wheel.

use libc::{c_char, c_int, c_void, size_t};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Script = unsafe extern "C" fn(*const c_char, c_int, *mut c_char, size_t) -> c_int;
type Live = unsafe extern "C" fn() -> u64;
type Count = unsafe extern "C" fn(*const c_char) -> u64;

/// One test at a time: a process has one world.
static TURN: Mutex<()> = Mutex::new(());

/// The fake library with a world of this test's own. Tests of one process wait for each other; at the end everything must
/// have been destroyed.
pub struct Fake {
    script: Script,
    live: Live,
    count: Count,
    _turn: MutexGuard<'static, ()>,
}

impl Fake {
    /// The library's file, which cargo builds beside the tests of whoever depends on this crate. Name it by
    /// `RDMACCL_IBVERBS`.
    pub fn library() -> PathBuf {
        let program = std::env::current_exe().expect("a program knows its file");
        let mut folders = program.ancestors().skip(1);
        // deps/, or its neighbours examples/ and the profile's own folder.
        let found = folders.by_ref().take(3).find_map(|folder| {
            let places = [folder.join("libccl_fake_ibverbs.so"), folder.join("deps/libccl_fake_ibverbs.so")];
            places.into_iter().find(|file| file.exists())
        });
        found.unwrap_or_else(|| panic!("no libccl_fake_ibverbs.so beside {}", program.display()))
    }

    /// Begins a world by a script; panics, as a test does, at a mistake in it.
    pub fn start(script: &str) -> Fake {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let file = CString::new(Fake::library().into_os_string().into_encoded_bytes())
            .expect("no null byte in a path");
        // SAFETY: a string; the library's only constructors are Rust's.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{} cannot be opened", file.to_string_lossy());
        // SAFETY: symbols of our own, with these signatures.
        let fake = unsafe {
            Fake {
                script: std::mem::transmute::<*mut c_void, Script>(symbol(library, c"fake_ibverbs_script")),
                live: std::mem::transmute::<*mut c_void, Live>(symbol(library, c"fake_ibverbs_live")),
                count: std::mem::transmute::<*mut c_void, Count>(symbol(library, c"fake_ibverbs_count")),
                _turn: turn,
            }
        };
        fake.tell(script, true);
        fake
    }

    /// Two hosts of one device and one port each, `left` and `right`, with RoCEv2 addresses at index 1.
    pub fn pair() -> Fake {
        Fake::start("device left; device right; gid left/1 1 10.0.0.1; gid right/1 1 10.0.0.2")
    }

    /// Runs more commands.
    pub fn run(&self, script: &str) {
        self.tell(script, false);
    }

    /// Objects that were made and not destroyed.
    pub fn live(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { (self.live)() }
    }

    /// How often a function was called, by its name without `ibv_`; also `sends`, `inline_sends`, `receives`, `bytes`,
    /// `bare_writes` (of which the peer is not told) and their `bare_bytes`.
    pub fn count(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("no null byte in a name");
        // SAFETY: a string.
        unsafe { (self.count)(name.as_ptr()) }
    }

    fn tell(&self, script: &str, fresh: bool) {
        let script = CString::new(script).expect("no null byte in a script");
        let mut why = [0u8; 512];
        // SAFETY: a string, and room for an answer.
        let failed =
            unsafe { (self.script)(script.as_ptr(), fresh.into(), why.as_mut_ptr().cast(), why.len()) };
        let why = CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy();
        assert!(failed == 0, "{why}");
    }
}

/// # Safety
/// An open library.
unsafe fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: as the caller vouches.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?} is missing");
    symbol
}

impl Drop for Fake {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.live(), 0, "objects were left alive");
        }
    }
}

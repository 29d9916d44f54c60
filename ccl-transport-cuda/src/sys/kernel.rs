//! Kernels: the driver compiles their PTX for the device, and streams launch them.

use super::abi::*;
use super::context::Primary;
use super::ordering::Stream;
use ccl_core::Result;
use libc::{c_uint, c_void};
use std::ffi::{CStr, CString};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// Code that is loaded on a device.
pub struct Module {
    primary: Arc<Primary>,
    module: CUmodule,
    name: &'static str,
}

// SAFETY: a module is no thread's: the driver locks for itself.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// Bytes of the compiler's words that are kept.
const LOG: usize = 4096;

impl Module {
    /// Has the driver compile it, or find it among what it has compiled before. What its compiler says against it is in the error.
    pub fn load(primary: &Arc<Primary>, of: &crate::program::Module) -> Result<Module> {
        let code = CString::new(of.code).expect("PTX that is text");
        Module::with(primary, of, code.as_bytes_with_nul())
    }

    /// Gives the driver machine code for it. One that is not for this device, or newer than the driver, is an error.
    pub(crate) fn load_code(
        primary: &Arc<Primary>,
        of: &crate::program::Module,
        code: &crate::code::Whole,
    ) -> Result<Module> {
        Module::with(primary, of, code.bytes())
    }

    /// With text that ends in null, or a whole ELF file: the driver is not told how long it is.
    fn with(primary: &Arc<Primary>, of: &crate::program::Module, code: &[u8]) -> Result<Module> {
        let _entered = primary.enter()?;
        let (mut module, mut log) = (null_mut(), [0u8; LOG]);
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The size is a value in the place of a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), without_provenance_mut(LOG)];
        // SAFETY: code that says itself where it ends, as many options as values, and room for a handle and for so many bytes.
        let result = unsafe {
            (primary.table().cuModuleLoadDataEx)(
                &mut module,
                code.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let what = || {
            let said = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            format!("cuModuleLoadDataEx of {} on device {}: {}", of.name, primary.ordinal(), said.trim())
        };
        primary.driver().check(result, what)?;
        Ok(Module { primary: Arc::clone(primary), module, name: of.name })
    }

    /// A kernel in it.
    pub fn function(self: &Arc<Module>, kernel: &str) -> Result<Function> {
        let name = CString::new(kernel).expect("a name without null");
        let _entered = self.primary.enter()?;
        let mut function = null_mut();
        // SAFETY: a module that lives, a string that ends in null, and room for a handle.
        let code =
            unsafe { (self.primary.table().cuModuleGetFunction)(&mut function, self.module, name.as_ptr()) };
        self.primary.driver().check(code, || format!("cuModuleGetFunction of {kernel} in {}", self.name))?;
        Ok(Function { module: Arc::clone(self), function, kernel: kernel.to_string() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.primary.enter() {
            // SAFETY: loaded in this context and unloaded once; no function of it lives, and the driver waits for launches.
            unsafe { (self.primary.table().cuModuleUnload)(self.module) };
        }
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    function: CUfunction,
    kernel: String,
}

// SAFETY: a handle into a module, which is no thread's.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How a grid must be on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All at once, or the launch is an error.
    Together,
    /// As it comes.
    Any,
}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.kernel
    }

    /// How many of its blocks, of so many threads, a multiprocessor holds at a time.
    pub fn blocks_at_once(&self, threads: u32) -> Result<u32> {
        let primary = &self.module.primary;
        let _entered = primary.enter()?;
        let mut blocks = 0;
        // SAFETY: a function that lives, and room for a number.
        let code = unsafe {
            (primary.table().cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                self.function,
                threads.cast_signed(),
                0,
            )
        };
        let what = || format!("cuOccupancyMaxActiveBlocksPerMultiprocessor of {}", self.kernel);
        primary.driver().check(code, what)?;
        Ok(blocks.unsigned_abs())
    }

    /// Launches it, when what was put on the stream before is done. All memory that `words` name stays until it has ended, and the
    /// kernel stays within it: the caller vouches for both.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        mut words: [u64; crate::program::Launch::WORDS],
        (blocks, threads): (u32, u32),
        residency: Residency,
    ) -> Result<()> {
        let primary = stream.primary();
        let _entered = primary.enter()?;
        let mut parameters: [*mut c_void; 1] = [words.as_mut_ptr().cast()];
        let (function, raw) = (self.function, stream.raw());
        // SAFETY: a function and a stream that live; the driver copies the one parameter, whose size the kernel declares, before
        // it returns. What the kernel touches the caller vouches for.
        let code = unsafe {
            match residency {
                Residency::Together => (primary.table().cuLaunchCooperativeKernel)(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    raw,
                    parameters.as_mut_ptr(),
                ),
                Residency::Any => (primary.table().cuLaunchKernel)(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    raw,
                    parameters.as_mut_ptr(),
                    null_mut(),
                ),
            }
        };
        let what = || format!("launch of {} in {blocks} blocks of {threads} threads", self.kernel);
        primary.driver().check(code, what)
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.kernel, self.module.name)
    }
}

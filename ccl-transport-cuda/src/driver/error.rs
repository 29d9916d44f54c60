//! What the driver's errors mean to the user.

use super::Driver;
use crate::sys::{CUDA_SUCCESS, CUresult};
use ccl_core::{Error, ErrorKind, Result};

impl Driver {
    /// An error with the driver's name for it, its number, and what to do.
    pub(crate) fn check(self, code: CUresult, call: impl FnOnce() -> String) -> Result<()> {
        if code == CUDA_SUCCESS { Ok(()) } else { Err(self.error(code, call(), remedy(code))) }
    }

    /// The same for what has its own cure.
    #[cold]
    pub(crate) fn error(self, code: CUresult, call: String, remedy: &str) -> Error {
        let (name, sentence) = self.table.words(code);
        let cause = format!("{name} ({code}), {sentence}");
        ErrorKind::Device { call, cause, remedy: remedy.into() }.into()
    }
}

/// What to do about an error.
pub(crate) fn remedy(code: CUresult) -> &'static str {
    match code {
        2 => "free memory, on the device or of the host's pinned memory, or make smaller calls",
        3 => "call cuInit first, or any function of the CUDA runtime",
        34 => {
            "this is the toolkit's stub of libcuda: let the loader find the driver's own, or name it by RDMACCL_CUDA"
        }
        100 => "this process sees no device: look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
        101 => "give the number of a device that is there",
        201 | 709 => "the device's context is gone: do not reset the device while communicators use it",
        700 | 710 | 714..=719 => {
            "work on the device went wrong before: the process must be started anew; compute-sanitizer finds where"
        }
        802 => "the machine's NVSwitches are not ready: look at the state of nvidia-fabricmanager",
        803 | 804 => {
            "the driver's library does not fit the kernel's module: restart after an update, or use the right container"
        }
        900..=908 => "end the capture of the graph before",
        _ => "look at nvidia-smi and at the kernel's log (NVRM, Xid)",
    }
}

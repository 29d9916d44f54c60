//! What the kernel tells of a device in files.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of sysfs.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: impl Into<PathBuf>) -> Folder {
        Folder(path.into())
    }

    /// A file's text without the white space around it; `None` if it cannot be read or is empty.
    pub(super) fn read(&self, file: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.0.join(file)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_string())
    }

    /// Where a link leads.
    pub(super) fn target(&self, link: impl AsRef<Path>) -> Option<PathBuf> {
        fs::canonicalize(self.0.join(link)).ok()
    }
}

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

    /// The files of a folder that hold a number, by name.
    pub(super) fn numbers(&self, folder: &str) -> Vec<(String, u64)> {
        let Ok(files) = fs::read_dir(self.0.join(folder)) else { return Vec::new() };
        let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
        let number = |name: String| {
            let value = self.read(format!("{folder}/{name}"))?.parse().ok()?;
            Some((name, value))
        };
        let mut numbers: Vec<_> = names.filter_map(number).collect();
        numbers.sort();
        numbers
    }
}

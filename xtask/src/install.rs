//! `cargo xtask install`: the library, its headers, the programs, and what pkg-config and CMake find them by.
//!
//! Nothing that is installed holds the prefix: the folder may be moved or packed. Each file is written beside its place
//! and renamed, so a program that runs keeps the library that it has mapped.

use crate::kernels;
use crate::perf::{PROGRAM, links};
use crate::shell::{capture, command, root};
use ccl_transport_cuda::code::FOLDER;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");
const MINOR: &str = env!("CARGO_PKG_VERSION_MINOR");

/// What is built besides the library.
const PROGRAMS: [&str; 4] = [PROGRAM, "rdmaccl", "ccl-chaos", "ccl-softroce"];

/// What is preloaded.
pub(crate) const HEAP: &str = "librdmaccl_heap.so";

const HEADERS: [&str; 2] = ["ccl.h", "ccl.hpp"];

/// Where under the prefix, and what, before the version is filled in.
const TEMPLATES: [(&str, &str); 4] = [
    ("lib/pkgconfig/rdmaccl.pc", include_str!("../templates/rdmaccl.pc")),
    ("lib/cmake/rdmaccl/rdmacclConfig.cmake", include_str!("../templates/rdmacclConfig.cmake")),
    ("lib/cmake/rdmaccl/rdmacclConfigVersion.cmake", include_str!("../templates/rdmacclConfigVersion.cmake")),
    ("lib/cmake/rdmaccl/rdmacclTargets.cmake", include_str!("../templates/rdmacclTargets.cmake")),
];

/// The name that programs ask for at run time.
pub(crate) fn soname() -> String {
    format!("librdmaccl.so.{MAJOR}")
}

/// `prefix` below `DESTDIR`, as packagers build: `DESTDIR=/tmp/package` and `/usr` give `/tmp/package/usr`.
pub(crate) fn staged(prefix: &Path) -> Result<PathBuf, String> {
    let prefix = std::path::absolute(prefix).map_err(|e| format!("{}: {e}", prefix.display()))?;
    let Some(staging) = std::env::var_os("DESTDIR").filter(|dir| !dir.is_empty()) else { return Ok(prefix) };
    let below = prefix.strip_prefix("/").unwrap_or(&prefix);
    let staged = Path::new(&staging).join(below);
    std::path::absolute(&staged).map_err(|e| format!("{}: {e}", staged.display()))
}

/// Builds with a cargo profile and installs into `folder`; which files and links are there now.
pub(crate) fn install(folder: &Path, profile: &str, device_code: bool) -> Result<Vec<PathBuf>, String> {
    let built = build(profile)?;
    let mut place = Place { folder, placed: Vec::new() };
    for header in HEADERS {
        place.copy(&root().join("include").join(header), &format!("include/{header}"), 0o644)?;
    }
    let (file, soname) = (format!("librdmaccl.so.{VERSION}"), soname());
    place.copy(&built.shared, &format!("lib/{file}"), 0o755)?;
    place.link(&file, &format!("lib/{soname}"))?;
    place.link(&soname, "lib/librdmaccl.so")?;
    place.copy(&built.archive, "lib/librdmaccl.a", 0o644)?;
    place.copy(&built.heap, &format!("lib/{HEAP}"), 0o755)?;
    // Of an older version it would never be taken.
    let code = folder.join("lib").join(FOLDER);
    if let Err(why) = fs::remove_dir_all(&code)
        && code.exists()
    {
        return Err(format!("{}: {why}", code.display()));
    }
    if device_code {
        for (path, content) in kernels::machine_code()? {
            place.write(&content, &format!("lib/{FOLDER}/{path}"), 0o644)?;
        }
    }
    for (path, template) in TEMPLATES {
        place.write(filled(template).as_bytes(), path, 0o644)?;
    }
    for program in &built.programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        place.copy(program, &format!("bin/{name}"), 0o755)?;
    }
    for name in links() {
        place.link(PROGRAM, &format!("bin/{name}"))?;
    }
    Ok(place.placed)
}

fn filled(template: &str) -> String {
    template.replace("@VERSION@", VERSION).replace("@MAJOR@", MAJOR).replace("@MINOR@", MINOR)
}

/// What cargo says that it has built.
#[derive(Default)]
struct Built {
    shared: PathBuf,
    archive: PathBuf,
    heap: PathBuf,
    programs: Vec<PathBuf>,
}

fn build(profile: &str) -> Result<Built, String> {
    // Of the whole workspace, whose features are those that `cargo run` and the checks build with: nothing is compiled twice.
    let bins: String = PROGRAMS.iter().map(|name| format!(" --bin {name}")).collect();
    let line = &format!("cargo build --locked --workspace --lib{bins}");
    let mut cargo = command(line);
    cargo.args(["--message-format", "json-render-diagnostics", "--profile", profile]);
    let mut built = Built::default();
    for message in capture(&mut cargo)?.lines() {
        let message: Value = serde_json::from_str(message).map_err(|e| format!("cargo's message: {e}"))?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        if let Some(program) = message["executable"].as_str() {
            built.programs.push(program.into());
        } else if message["target"]["name"] == "rdmaccl" {
            let files = message["filenames"].as_array().ok_or("cargo names no files of librdmaccl")?;
            for file in files.iter().filter_map(Value::as_str) {
                match Path::new(file).extension().and_then(|e| e.to_str()) {
                    Some("so") => built.shared = file.into(),
                    Some("a") => built.archive = file.into(),
                    _ => {}
                }
            }
        } else if message["target"]["name"] == "rdmaccl_heap" {
            built.heap = message["filenames"][0].as_str().unwrap_or_default().into();
        }
    }
    if built.shared.as_os_str().is_empty() || built.archive.as_os_str().is_empty() {
        return Err("cargo has not built librdmaccl.so and librdmaccl.a".into());
    }
    if built.heap.as_os_str().is_empty() {
        return Err(format!("cargo has not built {HEAP}"));
    }
    Ok(built)
}

/// The folder that is installed into, and what it was given.
struct Place<'a> {
    folder: &'a Path,
    placed: Vec<PathBuf>,
}

impl Place<'_> {
    fn copy(&mut self, from: &Path, to: &str, mode: u32) -> Result<(), String> {
        let content = fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
        self.write(&content, to, mode)
    }

    fn write(&mut self, content: &[u8], to: &str, mode: u32) -> Result<(), String> {
        self.atomically(to, |beside| {
            fs::write(beside, content)?;
            fs::set_permissions(beside, fs::Permissions::from_mode(mode))
        })
    }

    fn link(&mut self, target: &str, to: &str) -> Result<(), String> {
        self.atomically(to, |beside| symlink(target, beside))
    }

    fn atomically(
        &mut self,
        to: &str,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let at = self.folder.join(to);
        let beside = at.with_file_name(format!(
            ".{}.{}",
            at.file_name().unwrap_or_default().to_string_lossy(),
            std::process::id()
        ));
        let made = fs::create_dir_all(at.parent().unwrap_or(self.folder))
            .and_then(|()| make(&beside))
            .and_then(|()| fs::rename(&beside, &at));
        if let Err(why) = made {
            // It may not have come so far that there is something to remove.
            let _ = fs::remove_file(&beside);
            return Err(format!("{}: {why}", at.display()));
        }
        self.placed.push(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_replaces_what_was_there_and_leaves_nothing_beside() {
        let folder = std::env::temp_dir().join(format!("rdmaccl-install-{}", std::process::id()));
        let mut place = Place { folder: &folder, placed: Vec::new() };
        for content in ["old", "new"] {
            place.write(content.as_bytes(), "lib/file", 0o640).unwrap();
            place.link("file", "lib/link").unwrap();
        }
        let names: Vec<_> =
            fs::read_dir(folder.join("lib")).unwrap().map(|e| e.unwrap().file_name()).collect();
        let (content, mode) = (
            fs::read_to_string(folder.join("lib/link")).unwrap(),
            fs::metadata(folder.join("lib/file")).unwrap().permissions().mode(),
        );
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((names.len(), content.as_str(), mode & 0o777), (2, "new", 0o640));
    }

    #[test]
    fn templates_are_filled() {
        for (path, template) in TEMPLATES {
            let text = filled(template);
            assert!(!text.contains('@'), "{path}");
        }
        assert!(filled(TEMPLATES[0].1).contains(&format!("\nVersion: {VERSION}\n")));
    }
}

//! What a C or C++ program gets: the installed library, its headers, its examples, and that old programs go on working.
//!
//! Everything is compiled from an installed prefix, with the build systems that users have. The library is built
//! without link-time optimisation here: what is installed is the same but for its speed.

mod examples;
mod headers;
mod heap;
mod library;
mod old;

pub(crate) use examples::{Linked, compile};

use crate::install::install;
use crate::shell::target;
use crate::tally::Outcome;
use crate::tools;
use std::path::{Path, PathBuf};

const PROFILE: &str = "fast";

/// Programs and the Debian packages that have them.
const TOOLS: [(&str, &str); 8] = [
    ("cc", "gcc"),
    ("c++", "g++"),
    ("nm", "binutils"),
    ("readelf", "binutils"),
    ("make", "make"),
    ("pkg-config", "pkg-config"),
    ("cmake", "cmake"),
    ("valgrind", "valgrind"),
];

pub(crate) fn check() -> Outcome {
    for (program, package) in TOOLS {
        if let Err(why) = tools::need_from(program, package) {
            return Outcome::Skipped(why);
        }
    }
    let folder = target().join("abi");
    let prefix = match installed(&folder) {
        Ok(prefix) => prefix,
        Err(why) => return Outcome::Failed(why),
    };
    let mut report = Report::default();
    library::check(&prefix, &mut report);
    headers::check(&prefix, &folder, &mut report);
    examples::check(&prefix, &folder, &mut report);
    old::check(&prefix, &folder, &mut report);
    heap::check(&prefix, &folder, &mut report);
    report.outcome()
}

/// A new prefix, which was installed elsewhere and then moved.
fn installed(folder: &Path) -> Result<PathBuf, String> {
    let (first, prefix) = (folder.join("installed"), folder.join("prefix"));
    for old in [folder, &first] {
        if old.exists() {
            std::fs::remove_dir_all(old).map_err(|e| format!("{}: {e}", old.display()))?;
        }
    }
    let placed = install(&first, PROFILE, false)?;
    println!("{} files and links installed", placed.len());
    std::fs::rename(&first, &prefix).map_err(|e| format!("{}: {e}", prefix.display()))?;
    Ok(prefix)
}

/// What has passed, and what is wrong.
#[derive(Default)]
struct Report {
    passed: u64,
    wrong: Vec<String>,
}

impl Report {
    fn add(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                println!("ok: {what}");
                self.passed += 1;
            }
            Err(why) => self.wrong.push(format!("{what}: {why}")),
        }
    }

    fn outcome(self) -> Outcome {
        Outcome::tests(self.passed, self.wrong)
    }
}

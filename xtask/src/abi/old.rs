//! Programs that were compiled against the header of an older release run with today's library.
//!
//! `tests/abi/<version>` has a release's header, which is never changed, and a program that uses it.

use super::Report;
use super::examples::start;
use super::headers::WARNINGS;
use crate::functions::declared;
use crate::shell::{command, root, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) fn check(prefix: &Path, folder: &Path, report: &mut Report) {
    let releases = match releases() {
        Ok(releases) => releases,
        Err(why) => return report.add("tests/abi", Err(why)),
    };
    for release in releases {
        let version = release.file_name().unwrap_or_default().to_string_lossy().into_owned();
        report.add(&format!("what ccl.h of {version} declares is still there"), keeps(prefix, &release));
        let ran = compile(prefix, folder, &release, &version).and_then(|program| start(prefix, &program, ""));
        report.add(&format!("a program of {version} runs"), ran);
    }
}

fn releases() -> Result<Vec<PathBuf>, String> {
    let folder = root().join("tests/abi");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut releases: Vec<_> = entries.flatten().map(|e| e.path()).filter(|path| path.is_dir()).collect();
    releases.sort();
    if releases.is_empty() { Err("there is no release's header".into()) } else { Ok(releases) }
}

/// Functions by name, enumerators with their values.
fn keeps(prefix: &Path, release: &Path) -> Result<(), String> {
    let read = |path: PathBuf| std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
    let (old, new) = (read(release.join("ccl.h"))?, read(prefix.join("include/ccl.h"))?);
    let (had, has) = (promises(&old), promises(&new));
    let missing: Vec<_> = had.difference(&has).collect();
    if had.is_empty() || !missing.is_empty() {
        return Err(format!("of {} promises these are missing: {missing:?}", had.len()));
    }
    Ok(())
}

fn promises(header: &str) -> BTreeSet<String> {
    let enumerators = header.lines().map(str::trim).filter(|l| l.starts_with("ccl") && l.contains(" = "));
    let functions = declared(header).into_iter().map(|function| function.name);
    functions.chain(enumerators.map(str::to_string)).collect()
}

/// Against the old header, with the new library.
fn compile(prefix: &Path, folder: &Path, release: &Path, version: &str) -> Result<PathBuf, String> {
    let program = folder.join(format!("program-{version}"));
    let mut compiler = command("cc -std=c99 -pthread");
    compiler.args(WARNINGS).arg("-I").arg(release).arg(release.join("program.c"));
    compiler.arg("-L").arg(prefix.join("lib")).arg("-lrdmaccl").arg("-o").arg(&program);
    run(&mut compiler).map(|()| program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_number_is_a_broken_promise() {
        let header = |number: u32| {
            format!("typedef enum {{\n    // One.\n    cclOne = {number},\n}} cclT;\n\ncclT cclF(void);\n")
        };
        assert_eq!(promises(&header(1)).len(), 2);
        assert_eq!(
            promises(&header(1)).difference(&promises(&header(2))).collect::<Vec<_>>(),
            ["cclOne = 1,"]
        );
    }
}

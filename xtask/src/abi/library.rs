//! The shared library as the linker sees it: its name, what it exports, what it needs.

use super::Report;
use crate::functions::declared;
use crate::install::soname;
use crate::shell::{command, read};
use std::collections::BTreeSet;
use std::path::Path;

/// What every Linux with glibc has. RDMA and GPU libraries are opened at run time.
const MAY_NEED: [&str; 5] =
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

pub(super) fn check(prefix: &Path, report: &mut Report) {
    let library = prefix.join("lib/librdmaccl.so");
    report.add("exported symbols are those of ccl.h", exports(&library, &prefix.join("include/ccl.h")));
    report.add("SONAME and needed libraries", dynamic(&library));
}

/// Nothing else can clash with a program's names, and nothing that is declared is missing.
fn exports(library: &Path, header: &Path) -> Result<(), String> {
    let listed = read(command("nm -D --defined-only").arg(library))?;
    let exported: BTreeSet<_> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let header = std::fs::read_to_string(header).map_err(|e| format!("{}: {e}", header.display()))?;
    let functions = declared(&header);
    let declared: BTreeSet<_> = functions.iter().map(|function| function.name.as_str()).collect();
    let foreign: Vec<_> = exported.difference(&declared).collect();
    let missing: Vec<_> = declared.difference(&exported).collect();
    if declared.is_empty() || !foreign.is_empty() || !missing.is_empty() {
        return Err(format!(
            "{} functions declared; exported and not declared: {foreign:?}; declared and not exported: {missing:?}",
            declared.len()
        ));
    }
    Ok(())
}

fn dynamic(library: &Path) -> Result<(), String> {
    let section = read(command("readelf --dynamic --wide").arg(library))?;
    let named = |tag: &str| -> Vec<String> {
        let lines = section.lines().filter(|line| line.contains(tag));
        lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_string())).collect()
    };
    if named("(SONAME)") != [soname()] {
        return Err(format!("its SONAME is {:?}, not {}", named("(SONAME)"), soname()));
    }
    let more: Vec<_> = named("(NEEDED)").into_iter().filter(|n| !MAY_NEED.contains(&n.as_str())).collect();
    if more.is_empty() { Ok(()) } else { Err(format!("it needs {more:?} as well")) }
}

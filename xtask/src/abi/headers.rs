//! The headers alone: clean for every compiler that is here, whatever is included before them.

use super::Report;
use crate::shell::{command, run};
use crate::tools;
use std::path::Path;

pub(super) const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wundef"];

/// Compiler, language, standard, header.
const CASES: [(&str, &str, &str, &str); 5] = [
    ("gcc", "c", "c99", "ccl.h"),
    ("gcc", "c", "c17", "ccl.h"),
    ("clang", "c", "c99", "ccl.h"),
    ("g++", "c++", "c++17", "ccl.h"),
    ("clang++", "c++", "c++17", "ccl.h"),
];

pub(super) fn check(prefix: &Path, folder: &Path, report: &mut Report) {
    for (compiler, language, standard, header) in CASES {
        if !tools::present(compiler) {
            println!("{header} as {standard}: {compiler} is not here");
            continue;
        }
        let what = format!("{header} is clean {standard} for {compiler}");
        report.add(&what, compiles(compiler, language, standard, header, prefix, folder));
    }
}

/// Included twice, in a file of its own: a main file that is a header gets warnings for being one.
fn compiles(
    compiler: &str,
    language: &str,
    standard: &str,
    header: &str,
    prefix: &Path,
    folder: &Path,
) -> Result<(), String> {
    let source = folder.join("include.c");
    let text = format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n");
    std::fs::write(&source, text).map_err(|e| format!("{}: {e}", source.display()))?;
    let mut compile = command(&format!("{compiler} -fsyntax-only -x {language} -std={standard}"));
    // -I and not -isystem, which would hide the warnings.
    run(compile.args(WARNINGS).arg("-I").arg(prefix.join("include")).arg(source))
}

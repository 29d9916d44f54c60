//! The headers alone: clean for every compiler that is here, whatever is included before them.

use super::Report;
use crate::shell::{command, root, run};
use crate::tools;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wundef"];

/// Compiler, language, standard, header.
const CASES: [(&str, &str, &str, &str); 8] = [
    ("gcc", "c", "c99", "ccl.h"),
    ("gcc", "c", "c17", "ccl.h"),
    ("clang", "c", "c99", "ccl.h"),
    ("g++", "c++", "c++17", "ccl.h"),
    ("clang++", "c++", "c++17", "ccl.h"),
    ("g++", "c++", "c++17", "ccl.hpp"),
    ("g++", "c++", "c++20", "ccl.hpp"),
    ("clang++", "c++", "c++17", "ccl.hpp"),
];

/// Long enough for what it does, short enough to be read in one go.
const CPP_LINES: usize = 200;

pub(super) fn check(prefix: &Path, folder: &Path, report: &mut Report) {
    for (compiler, language, standard, header) in CASES {
        if !tools::present(compiler) {
            println!("{header} as {standard}: {compiler} is not here");
            continue;
        }
        let what = format!("{header} is clean {standard} for {compiler}");
        report.add(&what, compiles(compiler, language, standard, header, prefix, folder));
    }
    report.add("the guides name nothing that ccl.h has not", documented(prefix));
    let text = std::fs::read_to_string(prefix.join("include/ccl.hpp")).unwrap_or_default();
    let short = if (1..CPP_LINES).contains(&text.lines().count()) { Ok(()) } else { Err("it is not".into()) };
    report.add(&format!("ccl.hpp has less than {CPP_LINES} lines"), short);
}

/// A renamed function would leave its old name there.
fn documented(prefix: &Path) -> Result<(), String> {
    let read = |path: PathBuf| std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
    let header = read(prefix.join("include/ccl.h"))?;
    let known: BTreeSet<_> = names(&header).collect();
    for guide in ["docs/c-api.md", "docs/porting-from-nccl.md", "README.md"] {
        let text = read(root().join(guide))?;
        let unknown: BTreeSet<_> = names(&text).filter(|name| !known.contains(name)).collect();
        if !unknown.is_empty() {
            return Err(format!("{guide} has {unknown:?}"));
        }
    }
    Ok(())
}

/// The words that are names of the C API.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| {
        let rest = word.strip_prefix("ccl").or_else(|| word.strip_prefix("CCL_"));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_other_words() {
        let text = "`cclSend` of `ccl.h`, CCL_MAJOR; not RDMACCL_ROOT, ncclRecv, ccl-core or ccl";
        assert_eq!(names(text).collect::<Vec<_>>(), ["cclSend", "CCL_MAJOR"]);
    }
}

//! What runs between the hosts: an installed prefix, and in its folder of programs the tests of the verbs layer, a C
//! program that was built against the prefix as users build theirs, and one over MPI to compare with.

use super::prepare::folder;
use crate::abi::{Linked, compile};
use crate::install;
use crate::perf::PROGRAM;
use crate::programs::messages;
use crate::shell::{capture, command, root, run};
use std::path::{Path, PathBuf};

/// Builds all of it; the folder of programs.
pub(super) fn install() -> Result<PathBuf, String> {
    let prefix = folder().join("prefix");
    install::install(&prefix, "fast", false)?;
    let programs = prefix.join("bin");
    compile(&prefix, &programs, &root().join("examples/c/03_launcher.c"), Linked::Shared)?;
    let source = root().join("benches/softroce/mpi_all_reduce.c");
    run(command("mpicc -O2 -Wall -Wextra -o").arg(programs.join("mpi_all_reduce")).arg(source))?;
    // Built as `cargo xtask unit` builds them.
    place("cargo test --workspace --test hardware --no-run", &["hardware"], &programs)?;
    Ok(programs)
}

/// Puts in its place the program that is compared, by several names, as users get it: optimised across crates.
pub(super) fn optimise(programs: &Path) -> Result<(), String> {
    place(&format!("cargo build --release --workspace --bin {PROGRAM}"), &[PROGRAM], programs)
}

/// Builds programs and copies them into a folder.
fn place(line: &str, names: &[&str], folder: &Path) -> Result<(), String> {
    let said = capture(command(line).args(["--locked", "--message-format", "json-render-diagnostics"]))?;
    for name in names {
        let built = executable(&said, name).ok_or_else(|| format!("cargo has not built '{name}'"))?;
        let place = folder.join(name);
        std::fs::copy(built, &place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    Ok(())
}

/// A program among cargo's messages.
fn executable(said: &str, name: &str) -> Option<PathBuf> {
    let mut built = messages(said).filter(|message| message["target"]["name"] == name);
    built.find_map(|message| Some(Path::new(message["executable"].as_str()?).to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_among_what_cargo_says() {
        let said = r#"{"target":{"name":"ccl"},"executable":null}
            not json
            {"target":{"name":"other"},"executable":"/t/other"}
            {"target":{"name":"hardware"},"executable":"/t/hardware-0"}"#;
        assert_eq!(executable(said, "hardware"), Some("/t/hardware-0".into()));
        assert_eq!(executable("", "hardware"), None);
    }
}

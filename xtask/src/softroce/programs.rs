//! What runs between the hosts: an installed prefix, and in its folder of programs the tests of the verbs layer, a C
//! program that was built against the prefix as users build theirs, and one over MPI to compare with.

use super::prepare::folder;
use crate::abi::{Linked, compile};
use crate::install;
use crate::shell::{capture, command, root, run};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Builds all of it, with cargo's profile; the folder of programs.
pub(super) fn install(profile: &str) -> Result<PathBuf, String> {
    let prefix = folder().join("prefix");
    install::install(&prefix, profile)?;
    let programs = prefix.join("bin");
    compile(&prefix, &programs, &root().join("examples/c/03_launcher.c"), Linked::Shared)?;
    let source = root().join("benches/softroce/mpi_all_reduce.c");
    run(command("mpicc -O2 -Wall -Wextra -o").arg(programs.join("mpi_all_reduce")).arg(source))?;
    let place = programs.join("hardware");
    std::fs::copy(tests()?, &place).map_err(|e| format!("{}: {e}", place.display()))?;
    Ok(programs)
}

/// The tests that need a device, built as `cargo xtask unit` builds them.
fn tests() -> Result<PathBuf, String> {
    let mut cargo = command("cargo test --workspace --test hardware --no-run --locked");
    let said = capture(cargo.args(["--message-format", "json-render-diagnostics"]))?;
    executable(&said).ok_or_else(|| "cargo has not built the test 'hardware'".into())
}

/// The program among cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut tests = messages.filter(|message| message["target"]["name"] == "hardware");
    tests.find_map(|message| Some(Path::new(message["executable"].as_str()?).to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_is_found_among_what_cargo_says() {
        let said = r#"{"target":{"name":"ccl"},"executable":null}
            not json
            {"target":{"name":"other"},"executable":"/t/other"}
            {"target":{"name":"hardware"},"executable":"/t/hardware-0"}"#;
        assert_eq!(executable(said), Some("/t/hardware-0".into()));
        assert_eq!(executable(""), None);
    }
}

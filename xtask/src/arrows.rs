//! The dependency arrows of docs/architecture.md, read from cargo's metadata and from the sources.
//!
//! Test code is free: folders `tests`, `examples` and `benches`, files `…tests.rs`, and what follows `#[cfg(test)]` at the start
//! of a line.

use crate::shell::{command, read, root};
use crate::tally::Outcome;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a crate of the workspace may depend on within it.
fn allowed(krate: &str) -> Option<&'static [&'static str]> {
    Some(match krate {
        "ccl-kernels" => &[],
        "ccl-core" => &["ccl-kernels"],
        transport if transport.starts_with("ccl-transport-") => &["ccl-core"],
        "ccl" => &["ccl-core", "ccl-transport-*"],
        "ccl-ffi" | "ccl-perf" | "ccl-cli" | "ccl-chaos" => &["ccl"],
        "ccl-library" => &["ccl-ffi"],
        // The two find each other by a symbol.
        "ccl-heap" => &[],
        // Below `ccl`: it launches kernels that no call uses yet.
        "ccl-gpu-check" => &["ccl-core", "ccl-transport-cuda"],
        "ccl-softroce" => &[],
        "xtask" => &["ccl-core", "ccl-transport-cuda"],
        // They stand in for C libraries, and know none of those that use them.
        fake if FAKES.contains(&fake) => &[],
        _ => return None,
    })
}

/// What tests may know, and nothing else.
const FAKES: [&str; 2] = ["ccl-fake-ibverbs", "ccl-fake-cuda"];

/// The half of ccl-core that computes.
const COMPUTING: [&str; 9] =
    ["plan", "algorithms", "verify", "cost", "engine", "cluster", "error", "control", "flight"];
/// What it must not touch.
const WORLD: [&str; 13] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
    "rustix",
    "libc",
    "crate::bootstrap",
    "crate::clock",
    "crate::communicator",
    "crate::config",
];
/// Crates that may hold unsafe code anywhere.
const UNSAFE_CRATES: [&str; 2] = ["ccl-kernels", "ccl-ffi"];
/// Modules that may, in any crate.
const UNSAFE: [&str; 3] = ["sys", "shm", "ffi"];

pub(crate) fn check() -> Outcome {
    match violations() {
        Ok((files, wrong)) if wrong.is_empty() => {
            println!("{files} files keep to the arrows");
            Outcome::tests(1, Vec::new())
        }
        Ok((_, wrong)) => Outcome::Failed(wrong.join("\n")),
        Err(why) => Outcome::Failed(why),
    }
}

fn violations() -> Result<(usize, Vec<String>), String> {
    let text = read(&mut command("cargo metadata --format-version 1 --no-deps --locked"))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let mut wrong = wrong_dependencies(packages);
    wrong.extend(unoptimised_libraries(packages));
    let mut files = 0;
    for name in packages.iter().filter_map(|p| p["name"].as_str()) {
        for file in sources(&root().join(name).join("src"))? {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let path = file.strip_prefix(root()).unwrap_or(&file);
            wrong.extend(wrong_lines(path, &text));
            files += 1;
        }
    }
    Ok((files, wrong))
}

fn wrong_dependencies(packages: &[Value]) -> Vec<String> {
    let name = |p: &Value| p["name"].as_str().unwrap_or_default().to_string();
    let members: Vec<_> = packages.iter().map(name).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let from = name(package);
        let Some(allowed) = allowed(&from) else {
            wrong.push(format!("{from} has no place in the architecture: say which crates it may know"));
            continue;
        };
        let fits = |to: &str| {
            allowed.iter().any(|a| a.strip_suffix('*').map_or(*a == to, |start| to.starts_with(start)))
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name(dependency);
            let for_tests = dependency["kind"] == "dev" && FAKES.contains(&to.as_str());
            if members.contains(&to) && !fits(&to) && !for_tests {
                wrong.push(format!("{from} depends on {to}: it may know {allowed:?} only"));
            }
        }
    }
    wrong
}

/// Shared and static libraries that are Rust libraries too: cargo leaves out link-time optimisation then, without a word.
fn unoptimised_libraries(packages: &[Value]) -> Vec<String> {
    let is = |target: &Value, kinds: &[&str]| {
        let types = target["crate_types"].as_array().into_iter().flatten();
        types.filter_map(Value::as_str).any(|of| kinds.contains(&of))
    };
    let is_both = |target: &Value| is(target, &["cdylib", "staticlib"]) && is(target, &["lib", "rlib"]);
    let of_users = packages.iter().filter(|p| !FAKES.iter().any(|fake| p["name"] == *fake));
    let both =
        of_users.filter(|p| p["targets"].as_array().is_some_and(|targets| targets.iter().any(is_both)));
    both.map(|p| format!("{}: a shared or static library must not be a Rust library too", p["name"]))
        .collect()
}

/// What a source file says that its place forbids. `path` is relative to the repository.
fn wrong_lines(path: &Path, text: &str) -> Vec<String> {
    let parts: Vec<_> =
        path.iter().map(|p| p.to_string_lossy().trim_end_matches(".rs").to_string()).collect();
    let krate = parts.first().map(String::as_str).unwrap_or_default();
    let module = parts.get(2).map(String::as_str).unwrap_or_default();
    let computes = krate == "ccl-kernels" || krate == "ccl-core" && COMPUTING.contains(&module);
    let may_be_unsafe =
        UNSAFE_CRATES.contains(&krate) || parts[1..].iter().any(|p| UNSAFE.contains(&p.as_str()));
    let mut wrong = Vec::new();
    let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    for (number, line) in (1..).zip(code) {
        let line = &code_of(line);
        let mut say =
            |what: &str| wrong.push(format!("{}:{number}: {what}: {}", path.display(), line.trim()));
        if computes && WORLD.iter().any(|name| mentions(line, name)) {
            say("code that computes must not touch the world");
        }
        if !may_be_unsafe && has_word(line, "unsafe") {
            say("unsafe code belongs in ccl-kernels, ccl-ffi or a module named sys, shm or ffi");
        }
    }
    wrong
}

/// A line without its comment and without what stands in quotes.
fn code_of(line: &str) -> String {
    let line = line.split("//").next().unwrap_or_default().replace("\\\"", "");
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// Whether a line names a path, written out or as one of a `use` group.
fn mentions(line: &str, name: &str) -> bool {
    let Some((parent, child)) = name.split_once("::") else { return has_word(line, name) };
    if line.match_indices(name).any(|(at, _)| ends_word(&line[at + name.len()..])) {
        return true;
    }
    let group = line.split(&format!("{parent}::{{")).nth(1).unwrap_or_default();
    group.split([',', '{', '}']).any(|item| item.trim().split("::").next() == Some(child))
}

fn has_word(line: &str, word: &str) -> bool {
    let starts = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| starts(&line[..at]) && ends_word(&line[at + word.len()..]))
}

fn ends_word(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// `tests.rs`, `loom_tests.rs`, `conformance.rs`: modules that only tests use.
fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| {
        stem == "tests" || stem == "conformance" || stem.to_string_lossy().ends_with("_tests")
    })
}

/// Source files that are not only for tests.
pub(crate) fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries.filter_map(Result::ok).map(|e| e.path()) {
        if entry.is_dir() {
            found.extend(sources(&entry)?);
        } else if entry.extension().is_some_and(|e| e == "rs") && !is_test(&entry) {
            found.push(entry);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(path: &str, text: &str) -> usize {
        wrong_lines(Path::new(path), text).len()
    }

    #[test]
    fn this_repository_keeps_to_the_arrows() {
        let (files, wrong) = violations().unwrap();
        assert!(files > 20);
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn planted_uses_of_the_world_are_found() {
        for line in [
            "use std::net::TcpStream;",
            "use std::{fmt, fs};",
            "    let t = std::time::Instant::now();",
            "use rustix::fs;",
            "use crate::communicator::Communicator;",
            "use crate::{config::Config, plan};",
        ] {
            assert_eq!(found("ccl-core/src/engine/run.rs", line), 1, "{line}");
            assert_eq!(found("ccl-core/src/cost.rs", line), 1, "{line}");
            assert_eq!(found("ccl-kernels/src/copy.rs", line), 1, "{line}");
            assert_eq!(found("ccl-core/src/bootstrap/net.rs", line), 0, "{line}");
        }
        let harmless =
            "use std::fmt;\n// std::net\nlet thread = 1; use std::{cmp, iter};\nfn instant_of() {}\n";
        assert_eq!(found("ccl-core/src/plan/mod.rs", harmless), 0);
        assert_eq!(found("ccl-core/src/plan/mod.rs", "#[cfg(test)]\nmod tests { use std::fs; }"), 0);
    }

    #[test]
    fn planted_unsafe_code_is_found() {
        let line = "    unsafe { *p }";
        assert_eq!(found("ccl-core/src/plan/mod.rs", line), 1);
        assert_eq!(found("ccl-perf/src/bench.rs", line), 1);
        for place in ["ccl-kernels/src/piece.rs", "ccl-transport-shm/src/sys.rs", "ccl-ffi/src/comm.rs"] {
            assert_eq!(found(place, line), 0, "{place}");
        }
        assert_eq!(found("ccl-transport-shm/src/ring.rs", line), 1, "the crate's name is no module");
        assert_eq!(found("ccl/src/lib.rs", "#![forbid(unsafe_code)]"), 0);
    }

    #[test]
    fn planted_arrows_are_found() {
        let package = |name: &str, on: &[&str]| json!({"name": name, "dependencies": on.iter().map(|d| json!({"name": d})).collect::<Vec<_>>()});
        let members = ["ccl-core", "ccl-transport-shm", "ccl-transport-tcp", "ccl", "ccl-perf"];
        let wrong = |name: &str, on: &[&str]| {
            let mut packages: Vec<_> = members.iter().map(|m| package(m, &[])).collect();
            packages.push(package(name, on));
            wrong_dependencies(&packages).len()
        };
        assert_eq!(wrong("ccl-core", &["serde", "ccl"]), 1);
        assert_eq!(wrong("ccl-kernels", &["ccl-core"]), 1);
        assert_eq!(wrong("ccl-transport-shm", &["ccl-core", "ccl-transport-tcp"]), 1);
        assert_eq!(wrong("ccl-perf", &["ccl", "ccl-core"]), 1);
        assert_eq!(wrong("ccl", &["ccl-core", "ccl-transport-shm", "half"]), 0);
        assert_eq!(wrong("newcomer", &[]), 1);
        for fake in FAKES {
            let with_fake = |kind: &str| {
                let ours = json!({"name": "ccl", "dependencies": [{"name": fake, "kind": kind}]});
                wrong_dependencies(&[package(fake, &[]), ours]).len()
            };
            assert_eq!([with_fake("dev"), with_fake("build")], [0, 1]);
        }
    }

    #[test]
    fn libraries_that_cargo_does_not_optimise_as_one_are_found() {
        let package = |name: &str, types: &[&str]| json!({"name": name, "targets": [{"crate_types": types}]});
        let wrong = |name: &str, types: &[&str]| unoptimised_libraries(&[package(name, types)]).len();
        assert_eq!(wrong("ccl-library", &["cdylib", "staticlib"]), 0);
        assert_eq!(wrong("ccl-library", &["cdylib", "lib"]), 1);
        assert_eq!(wrong("ccl-library", &["staticlib", "rlib"]), 1);
        assert_eq!(wrong("ccl-ffi", &["lib"]), 0);
        assert_eq!(wrong(FAKES[0], &["cdylib", "rlib"]), 0);
    }
}

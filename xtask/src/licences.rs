//! Licences and sources of all dependencies. cargo-deny knows more (advisories, duplicates) and is used where it
//! is installed; the rules that decide are in deny.toml either way.

use crate::shell::{command, read, root, run};
use crate::tally::Outcome;
use crate::tools;
use serde_json::Value;

pub(crate) fn check() -> Outcome {
    if tools::present("cargo-deny") {
        return Outcome::of(run(&mut command("cargo deny --locked check licenses bans sources")));
    }
    println!("cargo-deny is not installed: checking licences and sources from cargo's metadata");
    Outcome::of(from_metadata())
}

fn from_metadata() -> Result<(), String> {
    let rules = std::fs::read_to_string(root().join("deny.toml")).map_err(|e| format!("deny.toml: {e}"))?;
    let allowed = quoted_in(&rules, "\nallow = [");
    let excepted = quoted_in(&rules, "crate = ");
    let text = read(&mut command("cargo metadata --format-version 1 --locked --all-features"))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence, source) = (text("name"), text("license"), text("source"));
        if !(source.is_empty() || source == "registry+https://github.com/rust-lang/crates.io-index") {
            wrong.push(format!("{name} comes from {source}"));
        }
        if !permitted(licence, &allowed) && !excepted.iter().any(|e| e == name) {
            wrong.push(format!("{name} is under '{licence}'"));
        }
    }
    println!("{} packages, {} licences allowed", packages.len(), allowed.len());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// The quoted words on the line that begins with `start`.
fn quoted_in(text: &str, start: &str) -> Vec<String> {
    let line = text.split(start).nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
    line.split('"').skip(1).step_by(2).map(str::to_string).collect()
}

/// Whether one alternative of an SPDX expression is allowed. AND binds tighter than OR; an alternative in
/// parentheses is taken as a whole, which no expression in use makes wrong in the permissive direction.
fn permitted(expression: &str, allowed: &[String]) -> bool {
    let is_allowed = |term: &str| allowed.iter().any(|a| a == term.trim());
    let groups: Vec<_> = expression.split(" AND ").map(|g| g.trim().trim_matches(['(', ')'])).collect();
    if groups.len() > 1 && !expression.contains('(') {
        // a AND b OR c: alternatives first.
        return expression.split(" OR ").any(|alternative| alternative.split(" AND ").all(is_allowed));
    }
    groups.iter().all(|group| group.replace('/', " OR ").split(" OR ").any(is_allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        let allowed =
            ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_string);
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(permitted(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0", "MPL-2.0"] {
            assert!(!permitted(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn the_allow_list_is_found() {
        assert_eq!(quoted_in("x\nallow = [\"A\", \"B C\"]\ny = [\"D\"]", "\nallow = ["), ["A", "B C"]);
    }
}

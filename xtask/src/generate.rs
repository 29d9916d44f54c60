//! Generated files: the C header, tables of the documentation, pictures of plans.

use crate::functions;
use crate::shell::{command, root, run};
use crate::tally::Outcome;
use ccl_core::algorithms::{self, Hierarchical};
use ccl_core::config::Config;
use ccl_core::plan::{Collective, Placement};
use ccl_core::verify::report::determinism_markdown;

/// Plans that are drawn for the documentation: algorithm, collective, ranks, hosts.
const PICTURES: [(&str, Collective, u32, u32); 5] = [
    ("oneshot", Collective::AllReduce, 3, 1),
    ("twoshot", Collective::AllReduce, 3, 1),
    ("ring", Collective::AllReduce, 4, 1),
    ("tree", Collective::AllReduce, 5, 1),
    ("hierarchical", Collective::Broadcast, 4, 2),
];

/// Numbers of ranks whose plans the determinism table speaks of. Two ranks have one order only.
const DETERMINISM: std::ops::RangeInclusive<u32> = 3..=16;

/// Writes all files; which ones.
pub(crate) fn write() -> Result<Vec<String>, String> {
    let mut written = Vec::new();
    for (path, text) in files()? {
        let full = root().join(&path);
        let folder = full.parent().ok_or("no folder")?;
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        std::fs::write(&full, text).map_err(|e| format!("{path}: {e}"))?;
        written.push(path);
    }
    // What the command prints is known to its own test, which also compares it.
    run(command("cargo test --quiet --locked --package ccl-cli --test manual").env("WRITE_MANUAL", "1"))?;
    written.push("docs/command.md".to_string());
    Ok(written)
}

/// Fails where a file on disk is not what would be written.
pub(crate) fn check() -> Outcome {
    let files = match files() {
        Ok(files) => files,
        Err(why) => return Outcome::Failed(why),
    };
    let differs = |(path, text): &&(String, String)| {
        std::fs::read_to_string(root().join(path)).map_or(true, |on_disk| on_disk != *text)
    };
    let stale: Vec<_> = files.iter().filter(differs).map(|(path, _)| path.as_str()).collect();
    if stale.is_empty() {
        println!("{} generated files are up to date", files.len());
        return Outcome::tests(1, Vec::new());
    }
    Outcome::Failed(format!("not up to date: {}; run cargo xtask gen", stale.join(", ")))
}

/// Path and content.
fn files() -> Result<Vec<(String, String)>, String> {
    let header = header()?;
    let mut files = vec![
        ("docs/c-api.md".to_string(), functions::c_api(&header)?),
        ("include/ccl.h".to_string(), header),
        ("docs/determinism.md".to_string(), determinism()?),
        ("docs/configuration.md".to_string(), configuration()),
    ];
    for (name, collective, ranks, hosts) in PICTURES {
        let algorithm = algorithms::by_name(name).ok_or_else(|| format!("no algorithm '{name}' to draw"))?;
        let plan = Placement::even(ranks, hosts)
            .and_then(|placement| algorithms::plan(algorithm, collective, placement, 0))
            .ok_or_else(|| format!("{name} does no {collective} of {ranks} ranks"))?;
        files.push((format!("docs/plans/{name}-{collective}-{ranks}.svg"), plan.to_svg()));
    }
    Ok(files)
}

/// Read off the proofs of every reducing plan, with all roots, and where it matters all numbers of hosts.
fn determinism() -> Result<String, String> {
    let one_host = || DETERMINISM.map(Placement::one_host);
    let several =
        DETERMINISM.flat_map(|ranks| (2..=ranks).filter_map(move |hosts| Placement::even(ranks, hosts)));
    let cases =
        algorithms::all().iter().flat_map(|algorithm| one_host().map(|placement| (*algorithm, placement)));
    let hierarchical = several.map(|placement| (&Hierarchical as &dyn algorithms::Algorithm, placement));
    let plans = cases.chain(hierarchical).flat_map(|(algorithm, placement)| {
        let collectives = Collective::ALL.into_iter().filter(|collective| collective.reduces());
        collectives.flat_map(move |collective| {
            let roots = if collective.rooted() { placement.ranks } else { 1 };
            (0..roots).filter_map(move |root| algorithms::plan(algorithm, collective, placement, root))
        })
    });
    determinism_markdown(plans).map_err(|fault| fault.to_string())
}

fn header() -> Result<String, String> {
    let folder = root().join("ccl-ffi");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let bindings = cbindgen::Builder::new().with_crate(folder).with_config(config).generate();
    let mut text = Vec::new();
    bindings.map_err(|e| format!("cbindgen: {e}"))?.write(&mut text);
    let text = String::from_utf8(text).map_err(|e| format!("cbindgen: {e}"))?;
    // rustdoc's heading for a contract; C programmers know that all of it is unsafe.
    Ok(text.replace("//\n// # Safety\n", "//\n"))
}

fn configuration() -> String {
    format!(
        "# Configuration\n\n<!-- written by cargo xtask gen -->\n\nEvery variable is a field of \
         `ccl_core::config::Config`, read once when a communicator is made. A value that does not parse is an error; \
         an unknown `RDMACCL_` variable is a warning. Where a variable of RDMA is not set, NCCL's of the same meaning \
         counts (`NCCL_IB_HCA`, `NCCL_IB_TC`, …), and the log says so.\n\n{}",
        Config::table_markdown()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrows;
    use ccl_core::config::VARIABLES;

    /// Words that begin as our variables do, and are none.
    const OTHERS: [&str; 1] = ["RDMACCL_"];

    #[test]
    fn every_variable_that_the_sources_speak_of_is_in_the_table() {
        let transports =
            ["ccl-transport-shm", "ccl-transport-ibverbs", "ccl-transport-tcp", "ccl-transport-cuda"];
        let crates = ["ccl-core", "ccl", "ccl-ffi", "ccl-perf", "ccl-cli"].iter().chain(&transports);
        let mut seen = 0;
        for file in crates.flat_map(|name| arrows::sources(&root().join(name).join("src")).unwrap()) {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
            for (at, _) in code.match_indices("RDMACCL_") {
                let rest = &code[at..];
                let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
                let name = &rest[..end];
                let known = VARIABLES.iter().any(|v| v.name == name) || OTHERS.contains(&name);
                assert!(known, "{}: {name} is no field of Config", file.display());
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }
}

//! The RDMA tests on a real kernel stack: `ccl-softroce` on rdma_rxe, in this machine's kernel where that has it and in
//! a guest's elsewhere. `docs/softroce.md` says what is tested and how to read it.

mod guest;
mod initramfs;
mod prepare;
mod programs;

use crate::shell::{command, read, run};
use crate::tally::Outcome;
use guest::Guest;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// All scenarios take some five minutes where the guest is emulated on two quiet cores.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Where the tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Place {
    /// In this machine's kernel if that has rdma_rxe and this is root, else in a guest
    Auto,
    /// In a guest
    Guest,
    /// In this machine's kernel
    Native,
}

/// A place that is ready.
enum Ready {
    Native,
    Guest(prepare::Parts),
}

/// `cargo xtask softroce` with its options; those after `--` are the scenarios' program's.
pub(crate) fn with(place: Place, options: &[String]) -> Result<(), String> {
    ready(place).and_then(|place| run_in(&place, options))
}

pub(crate) fn check() -> Outcome {
    let place = match ready(Place::Auto) {
        Ok(place) => place,
        Err(why) => return Outcome::Skipped(why),
    };
    let ran = run_in(&place, &[]);
    match (ran, counted(&guest::report())) {
        // Scenarios that went wrong make the run a failure, and the report counts them.
        (Err(_), Ok(Outcome::Tests { passed, failed, .. })) if !failed.is_empty() => {
            Outcome::tests(passed, failed)
        }
        (Err(why), _) | (Ok(()), Err(why)) => Outcome::Failed(why),
        (Ok(()), Ok(outcome)) => outcome,
    }
}

fn ready(place: Place) -> Result<Ready, String> {
    prepare::tools()?;
    if place == Place::Native || place == Place::Auto && native() {
        return Ok(Ready::Native);
    }
    prepare::guest().map(Ready::Guest)
}

fn run_in(place: &Ready, options: &[String]) -> Result<(), String> {
    let said = |e: std::io::Error| format!("{}: {e}", prepare::folder().display());
    std::fs::create_dir_all(prepare::folder()).map_err(said)?;
    // No run is judged by an older one's report.
    let _ = std::fs::remove_file(guest::report());
    let programs = programs::install()?;
    if options.iter().any(|option| option == "compare") {
        programs::optimise(&programs)?;
    }
    let program = programs.join("ccl-softroce").to_string_lossy().into_owned();
    let Ready::Guest(parts) = place else {
        println!("in this machine's kernel");
        return run(command(&program).args(options).arg("--json").arg(guest::report()));
    };
    let guest = Guest::new(parts);
    println!("in a guest: {} ({})", parts.kernel.display(), guest.accelerator());
    let options: String =
        options.iter().map(|option| format!(" '{}'", option.replace('\'', "'\\''"))).collect();
    let script = format!("exec '{program}'{options} --json /run/report");
    guest.run(&script, DEADLINE, &mut |line| println!("{line}"))
}

/// What a report says. Without one nothing has passed.
fn counted(report: &Path) -> Result<Outcome, String> {
    let text = std::fs::read(report).map_err(|e| format!("{}: {e}", report.display()))?;
    let report: Value = serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", report.display()))?;
    let scenarios = report["scenarios"].as_array().ok_or("the report names no scenarios")?;
    let wrong = scenarios.iter().filter(|scenario| !scenario["error"].is_null());
    let failed: Vec<String> = wrong.map(|wrong| format!("{}: {}", wrong["name"], wrong["error"])).collect();
    Ok(Outcome::tests((scenarios.len() - failed.len()) as u64, failed))
}

/// Whether this kernel can do it and this user may.
fn native() -> bool {
    let root = read(&mut command("id -u")).is_ok_and(|id| id.trim() == "0");
    root && read(&mut command("modprobe --quiet rdma_rxe")).is_ok()
}

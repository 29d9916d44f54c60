//! The RDMA tests on a real kernel stack: `ccl-softroce` on rdma_rxe, in this machine's kernel where that has it and in
//! a guest's elsewhere. `docs/softroce.md` says what is tested and how to read it.

mod guest;
mod initramfs;
mod prepare;
mod programs;

use crate::shell::{command, read, run};
use crate::tally::Outcome;
use guest::{Guest, Stopped};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// All scenarios take some five minutes where the guest is emulated on two quiet cores.
const DEADLINE: Duration = Duration::from_secs(1500);
/// Guests that a run may lose.
const LOSSES: usize = 2;

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

/// Runs what begins with so many scenarios passed over until it has ended by itself. The kernel is not what is tested: one that dies
/// is replaced, and the scenario in which it died is run once more by the next. `done` says how many have ended so far.
fn in_guests(
    mut run: impl FnMut(usize) -> Result<(), Stopped>,
    done: impl Fn() -> Result<usize, String>,
) -> Result<(), String> {
    let mut lost = 0;
    loop {
        let why = match run(done()?) {
            Ok(()) => return Ok(()),
            Err(Stopped::Failed(why)) => return Err(why),
            Err(Stopped::Died(why)) => why,
        };
        if lost == LOSSES {
            return Err(why);
        }
        println!(
            "{why}\nThe guest's kernel is not what is tested: a new guest goes on with the scenario in which it died."
        );
        lost += 1;
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
    std::fs::write(guest::report(), "").map_err(said)?;
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
    let latest = Instant::now() + DEADLINE;
    let run = |done| {
        let script = format!("exec '{program}'{options} --skip {done} --json /run/report");
        guest.run(&script, latest.saturating_duration_since(Instant::now()), &mut |line| println!("{line}"))
    };
    in_guests(run, || Ok(scenarios(&guest::report())?.len()))
}

/// The scenarios that a report has so far.
fn scenarios(report: &Path) -> Result<Vec<Value>, String> {
    let said = |e: std::io::Error| format!("{}: {e}", report.display());
    let lines = std::fs::read_to_string(report).map_err(said)?;
    lines.lines().map(|line| serde_json::from_str(line).map_err(|e| said(e.into()))).collect()
}

/// What a report says. Without one nothing has passed.
fn counted(report: &Path) -> Result<Outcome, String> {
    let scenarios = scenarios(report)?;
    if scenarios.is_empty() {
        return Err("the report names no scenarios".into());
    }
    let wrong = scenarios.iter().filter(|scenario| !scenario["error"].is_null());
    let failed: Vec<String> = wrong.map(|wrong| format!("{}: {}", wrong["name"], wrong["error"])).collect();
    Ok(Outcome::tests((scenarios.len() - failed.len()) as u64, failed))
}

/// Whether this kernel can do it and this user may.
fn native() -> bool {
    let root = read(&mut command("id -u")).is_ok_and(|id| id.trim() == "0");
    root && read(&mut command("modprobe --quiet rdma_rxe")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Guests of whose kernels these die, each after so many scenarios in all. What was run, and what came of it.
    fn with_deaths(deaths: &[usize]) -> (Vec<usize>, Result<(), String>) {
        let (starts, done) = (RefCell::new(Vec::new()), RefCell::new(0));
        let run = |skip| {
            starts.borrow_mut().push(skip);
            match deaths.get(starts.borrow().len() - 1) {
                Some(death) => {
                    *done.borrow_mut() = *death;
                    Err(Stopped::Died(format!("died in {death}")))
                }
                None => Ok(()),
            }
        };
        let result = in_guests(run, || Ok(*done.borrow()));
        (starts.into_inner(), result)
    }

    #[test]
    fn guests_that_died_are_replaced_as_often_as_a_run_may_lose_them() {
        assert_eq!(with_deaths(&[]), (vec![0], Ok(())));
        assert_eq!(with_deaths(&[7]), (vec![0, 7], Ok(())));
        assert_eq!(with_deaths(&[7, 9]), (vec![0, 7, 9], Ok(())));
        assert_eq!(with_deaths(&[7, 7]), (vec![0, 7, 7], Ok(())));
        assert_eq!(with_deaths(&[7, 7, 7]), (vec![0, 7, 7], Err("died in 7".into())));
        assert_eq!(with_deaths(&[7, 8, 9]), (vec![0, 7, 8], Err("died in 9".into())));
        assert_eq!(in_guests(|_| Err(Stopped::Failed("late".into())), || Ok(0)), Err("late".into()));
    }

    #[test]
    fn a_report_is_counted_line_by_line_and_one_cut_off_is_an_error() {
        let file = std::env::temp_dir().join(format!("rdmaccl-counted-{}", std::process::id()));
        let lines = "{\"name\":\"a\",\"error\":null}\n{\"name\":\"b\",\"error\":\"why\"}\n";
        std::fs::write(&file, lines).unwrap();
        assert_eq!(counted(&file), Ok(Outcome::tests(1, vec!["\"b\": \"why\"".into()])));
        std::fs::write(&file, &lines[..lines.len() - 4]).unwrap();
        assert!(counted(&file).is_err());
        std::fs::write(&file, "").unwrap();
        assert!(counted(&file).is_err(), "nothing has run");
        std::fs::remove_file(&file).unwrap();
        assert!(counted(&file).is_err());
    }
}

//! # ccl-perf: how fast, and whether it is right
//!
//! `all_reduce_perf` and its siblings measure one collective each and check every result, with nccl-tests'
//! options, table and bandwidth formulas, on host memory and without MPI: a program starts its own
//! ranks, or joins those that torchrun, srun or mpirun started. All are one file: the name that it was called by says which is
//! meant, and `cargo xtask install` makes the links.
//!
//! The crate knows `ccl` only, as a user of the library would.

mod barrier;
mod bench;
mod buffers;
mod compare;
mod data;
mod device;
mod encode;
mod job;
mod launcher;
mod operator;
mod options;
mod plot;
mod program;
mod progress;
mod ranks;
mod report;
mod sizes;
mod table;
mod work;

use options::Options;
use program::Program;
use report::Report;
use std::io::Write as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Exit status where data was wrong.
const WRONG_DATA: u8 = 1;
/// Exit status where something failed.
const FAILED: u8 = 2;

/// The whole of the program whose name this process was called by.
pub fn run() -> ExitCode {
    // What the variable may hold is checked where the library reads its configuration.
    let filter = EnvFilter::try_from_env("RDMACCL_DEBUG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let ran = Program::called(std::env::args_os().next()).and_then(|program| {
        let options = Options::from_command_line(program);
        dispatch(program, &options)
    });
    ran.unwrap_or_else(|why| {
        say(&format!("error: {why}"));
        ExitCode::from(FAILED)
    })
}

fn dispatch(program: Program, options: &Options) -> Result<ExitCode, String> {
    if !options.reports.is_empty() {
        return draw(options);
    }
    if let Some(launcher) = options.child_of {
        launcher::tie_to(launcher)?;
        return finish(options, job::join_launcher(program, options)?);
    }
    if let Some(launch) = job::starter(options)? {
        return finish(options, job::join_starter(program, options, &launch)?);
    }
    let processes = options.processes.unwrap_or_else(|| default_processes(options.threads));
    if processes == 1 {
        return finish(options, job::threads(program, options)?);
    }
    launcher::launch(processes, options.threads)
}

/// One per core, at least two; one where the ranks are to be threads.
fn default_processes(threads: u32) -> u32 {
    if threads > 1 {
        return 1;
    }
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    cores.clamp(2, 1024) as u32
}

/// Writes what was asked for, and says by the exit status whether the data was right.
fn finish(options: &Options, (wrong, report): (u64, Option<Report>)) -> Result<ExitCode, String> {
    if let Some(report) = report {
        if let Some(path) = &options.json {
            report.save(path)?;
        }
        if let Some(path) = &options.csv {
            report::write(path, &report.csv())?;
        }
        if let Some(path) = &options.plot {
            report::write(path, &plot::svg(&[("this run".into(), report)]))?;
        }
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(WRONG_DATA) })
}

fn draw(options: &Options) -> Result<ExitCode, String> {
    let name = |path: &std::path::Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let load = |path: &std::path::PathBuf| Ok((name(path), Report::load(path)?));
    let reports: Vec<_> = options.reports.iter().map(load).collect::<Result<_, String>>()?;
    if let Some(path) = &options.plot {
        report::write(path, &plot::svg(&reports))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A line on standard error; there is nobody to tell where that is closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

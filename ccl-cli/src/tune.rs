//! `rdmaccl tune`: measures this machine's constants of the cost function and keeps them in a profile.
//!
//! Ranks that are threads of this process make calls whose time the cost function knows how to predict; then the constants are
//! fitted, so that it predicts what was measured. What a communicator takes from a profile is no more than that.

mod fit;
mod measure;

use crate::answer::{Answer, Failure};
use crate::table::Table;
use ccl::Config;
use ccl::config::{Machine, Profile};
use ccl::cost::Constants;
use fit::Sample;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// File for the profile [default: RDMACCL_PROFILE, else rdmaccl/profile.json in the user's configuration folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write no profile
    #[arg(long, conflicts_with = "output")]
    dry_run: bool,
    /// Keep what was measured although the machine was busy
    #[arg(long)]
    force: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Predictions that are still further off in the mean are not worth keeping: something else ran, or ranks lay on one core.
const BUSY: f64 = 1.6;

/// What came of it.
#[derive(Serialize)]
struct Tuning {
    constants: Vec<Constant>,
    samples: Vec<Call>,
    /// By what factor a prediction is off, in the mean: with the built-in constants and with the measured ones.
    built_in_off: f64,
    measured_off: f64,
    /// The file that was written.
    profile: Option<PathBuf>,
}

/// One constant.
#[derive(Serialize)]
struct Constant {
    name: &'static str,
    built_in: f64,
    measured: f64,
}

/// One call that was measured.
#[derive(Serialize)]
struct Call {
    collective: &'static str,
    algorithm: &'static str,
    ranks: u32,
    block_bytes: usize,
    measured_us: f64,
    /// With the built-in constants and with the measured ones.
    built_in_us: f64,
    predicted_us: f64,
}

/// Measures, writes and tells.
pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let config = Config::from_env()?;
    let path = match (&arguments.output, arguments.dry_run) {
        (_, true) => None,
        (Some(path), _) => Some(path.clone()),
        (None, _) => Some(config.profile_path().ok_or_else(|| {
            "nowhere to write the profile: set HOME or RDMACCL_PROFILE, or give -o FILE or --dry-run"
                .to_string()
        })?),
    };
    let built_in = Machine::here().built_in();
    let samples = measure::all(&config)?;
    let measured = fit::fit(&samples, built_in);
    let measured_off = off(&samples, measured);
    if let Some(path) = &path {
        if measured_off > BUSY && !arguments.force {
            return Err(Failure::from(format!(
                "nothing is written: the measured constants still predict calls wrong by a factor of {measured_off:.1}; run it \
                 again while the machine is idle, or keep them with --force"
            )));
        }
        write(path, &Profile::new(measured).text())?;
    }
    let pairs = built_in.each().into_iter().zip(measured.each());
    let tuning = Tuning {
        constants: pairs
            .map(|((name, built_in), (_, measured))| Constant { name, built_in, measured })
            .collect(),
        samples: samples.iter().map(|sample| call(sample, built_in, measured)).collect(),
        built_in_off: off(&samples, built_in),
        measured_off,
        profile: path,
    };
    if arguments.json {
        return Ok(Answer::new(serde_json::to_string_pretty(&tuning).map_err(|e| e.to_string())? + "\n"));
    }
    Ok(Answer::new(text(&tuning)))
}

fn call(sample: &Sample, built_in: Constants, measured: Constants) -> Call {
    Call {
        collective: sample.candidates.collective().name(),
        algorithm: sample.algorithm,
        ranks: sample.model.local_ranks,
        block_bytes: sample.block_bytes,
        measured_us: sample.ns / 1e3,
        built_in_us: sample.predicted_ns(built_in) / 1e3,
        predicted_us: sample.predicted_ns(measured) / 1e3,
    }
}

fn off(samples: &[Sample], constants: Constants) -> f64 {
    (samples.iter().map(|sample| sample.error(constants).abs()).sum::<f64>() / samples.len() as f64).exp()
}

/// All at once: a communicator that is made meanwhile reads the old profile or the new one.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}

fn text(tuning: &Tuning) -> String {
    let names = ["constant", "built-in", "measured"].map(str::to_string).to_vec();
    let mut table = Table::with(names, 1);
    for constant in &tuning.constants {
        let number = |value: f64| match constant.name {
            "cache_bytes" | "lead_bytes" => format!("{value:.0}"),
            _ => format!("{value:.4}"),
        };
        table.row([constant.name.to_string(), number(constant.built_in), number(constant.measured)]);
    }
    let Tuning { samples, built_in_off, measured_off, .. } = tuning;
    let kept = match &tuning.profile {
        Some(path) => format!("Written to {}; communicators read it from now on.\n", path.display()),
        None => "Not written.\n".to_string(),
    };
    format!(
        "{}\nOf {} calls, predictions were off by a factor of {built_in_off:.2} in the mean, and are now by \
         {measured_off:.2}.\n{kept}",
        table.text(0),
        samples.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_written_whole_into_folders_that_are_made() {
        let folder = std::env::temp_dir().join(format!("rdmaccl-tune-{}", std::process::id()));
        let path = folder.join("a").join("profile.json");
        write(&path, "old").unwrap();
        write(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        let why = write(&path.join("below"), "x").unwrap_err();
        assert!(why.starts_with("cannot write ") && why.contains("below"), "{why}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

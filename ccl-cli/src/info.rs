//! `rdmaccl info`: what is here, what would be chosen, and every setting with its origin.

mod choice;
mod host;
mod launcher;
mod text;
mod transport;

use crate::answer::{Answer, Failure};
use crate::plan::MOST_RANKS;
use ccl::config::Setting;
use ccl::{Config, Level};
use serde::Serialize;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Ranks on this machine for which algorithms are chosen [default: the launcher's, or one per core, at least 2]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks: Option<u32>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// All that is told.
#[derive(Serialize)]
struct Info {
    version: &'static str,
    host: host::Host,
    kernels: Kernels,
    transports: Vec<transport::Transport>,
    launcher: launcher::Launcher,
    choices: choice::Choices,
    settings: Vec<Value>,
    unknown: Vec<Unknown>,
}

/// The reduction kernels.
#[derive(Serialize)]
struct Kernels {
    /// Those that this processor can run, slowest first.
    available: Vec<&'static str>,
    /// Those that a communicator would use.
    used: String,
    /// Why none can be used as the settings want it.
    error: Option<String>,
}

/// A variable.
#[derive(Serialize)]
struct Value {
    name: &'static str,
    value: String,
    origin: String,
    default: &'static str,
    meaning: &'static str,
    error: Option<String>,
}

/// A variable that is none of ours.
#[derive(Serialize)]
struct Unknown {
    name: String,
    did_you_mean: &'static str,
}

/// Looks, and tells. Status 1 where a setting is wrong or no transport works.
pub(crate) fn run(arguments: &Arguments) -> Result<Answer, Failure> {
    let environment: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    let examined = Config::examine(environment.iter().cloned());
    let launcher = launcher::look(&environment);
    let host = host::look();
    // The environment may say anything; the command line was checked.
    let most = u32::try_from(MOST_RANKS).unwrap_or(u32::MAX);
    let ranks = arguments.ranks.or(launcher.size).unwrap_or(host.cores_allowed.max(2)).min(most);
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        kernels: kernels(&examined.config),
        transports: transport::look(&examined.config),
        choices: choice::look(&examined.config, ranks)?,
        settings: examined.settings.into_iter().map(value).collect(),
        unknown: examined
            .unknown
            .into_iter()
            .map(|(name, did_you_mean)| Unknown { name, did_you_mean })
            .collect(),
        launcher,
        host,
    };
    let good = info.settings.iter().all(|setting| setting.error.is_none())
        && info.transports.iter().any(|transport| transport.works)
        && info.kernels.error.is_none()
        && info.launcher.error.is_none()
        && !info.choices.constants.starts_with("error");
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&info).map_err(|e| e.to_string())? + "\n",
        false => text::of(&info),
    };
    Ok(Answer::new(text).with_verdict(good))
}

fn kernels(config: &Config) -> Kernels {
    let available: Vec<_> = Level::ALL.into_iter().filter(|l| l.is_available()).map(Level::name).collect();
    let wanted = config.simd.to_string();
    let (used, error) = match wanted.as_str() {
        "auto" => (Level::best().to_string(), None),
        name if available.contains(&name) => (wanted, None),
        _ => {
            let why = format!("RDMACCL_SIMD={wanted}: this processor has {}", available.join(", "));
            (String::new(), Some(why))
        }
    };
    Kernels { available, used, error }
}

fn value(setting: Setting) -> Value {
    let Setting { name, value, default, origin, doc, error, .. } = setting;
    Value { name, value, origin: origin.to_string(), default, meaning: doc, error }
}

//! The profile of a machine: the constants of the cost function as they were measured there, in a file.

use super::{Config, Machine};
use crate::cost::Constants;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The version of the file's format.
const FORMAT: u32 = 2;

/// What `RDMACCL_PROFILE` says for the built-in constants.
const NONE: &str = "none";

/// Longer files are none of ours.
const MOST_BYTES: u64 = 64 << 10;

/// What a profile's file holds: JSON, for people to read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: u32,
    /// The library that was measured: another one takes other times for the same.
    library: String,
    machine: Machine,
    /// What was measured.
    pub constants: Constants,
}

impl Profile {
    /// Of this machine and this library.
    pub fn new(constants: Constants) -> Profile {
        let library = env!("CARGO_PKG_VERSION").to_string();
        Profile { format: FORMAT, library, machine: Machine::here(), constants }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        // A struct of numbers and strings; there is nothing in it that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Reads a file's text. The error says what is wrong with it, and not what to do.
    pub fn parse(text: &str) -> Result<Profile, String> {
        let version = |value: &serde_json::Value| value.get("format").and_then(serde_json::Value::as_u64);
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| format!("it is no JSON: {e}"))?;
        if let Some(format) = version(&value).filter(|format| *format != u64::from(FORMAT)) {
            return Err(format!("it has format {format}, and this library reads format {FORMAT}"));
        }
        let profile: Profile = serde_json::from_value(value).map_err(|e| format!("it is no profile: {e}"))?;
        profile.constants.fault().map_or(Ok(profile), Err)
    }

    /// Why it is not for this machine and this library, if so.
    fn foreign(&self, machine: &Machine) -> Option<String> {
        let told = |m: &Machine| format!("{} ({}) with {} cores", m.processor, m.architecture, m.cores);
        let library = env!("CARGO_PKG_VERSION");
        if self.library != library {
            return Some(format!("it was tuned with version {}, and this is {library}", self.library));
        }
        let same = self.machine == *machine;
        (!same).then(|| format!("it was tuned on {}, and this is {}", told(&self.machine), told(machine)))
    }
}

/// The constants in force, and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// What things take.
    pub constants: Constants,
    /// The file that they are from; `None`: they are built in.
    pub profile: Option<PathBuf>,
    /// Why a file at the usual place is not used, with what to do about it.
    pub warning: Option<String>,
}

/// Where a user's configuration lies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Places {
    xdg: Option<String>,
    home: Option<String>,
}

impl Places {
    /// Takes up a variable of the environment, if it is about this.
    pub(super) fn note(&mut self, name: &str, value: &str) {
        // A path that is relative is to be passed over, as XDG has it.
        let absolute = || Path::new(value).is_absolute().then(|| value.to_string());
        match name {
            "XDG_CONFIG_HOME" => self.xdg = absolute(),
            "HOME" => self.home = absolute(),
            _ => {}
        }
    }

    fn folder(&self) -> Option<PathBuf> {
        let home = || self.home.as_ref().map(|home| Path::new(home).join(".config"));
        self.xdg.as_ref().map(PathBuf::from).or_else(home)
    }
}

impl Config {
    /// Where this machine's profile lies or would lie: what `RDMACCL_PROFILE` names, else `rdmaccl/profile.json` in the user's
    /// configuration folder. `None` where the built-in constants are wanted, or there is no such folder.
    pub fn profile_path(&self) -> Option<PathBuf> {
        match self.profile.as_deref() {
            Some(NONE) => None,
            Some(path) => Some(PathBuf::from(path)),
            None => Some(self.places.folder()?.join("rdmaccl").join("profile.json")),
        }
    }

    /// The constants of the cost function: those of the profile, or the built-in ones.
    ///
    /// # Errors
    /// `RDMACCL_PROFILE` names a file that cannot be used. One at the usual place, which nobody has asked for, is a warning.
    pub fn tuned(&self) -> Result<Tuned> {
        let machine = Machine::here();
        let built_in = |warning| Tuned { constants: machine.built_in(), profile: None, warning };
        let Some(path) = self.profile_path() else { return Ok(built_in(None)) };
        let named = self.profile.is_some();
        let profile = match read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound && !named => return Ok(built_in(None)),
            Err(e) => Err(format!("it cannot be read: {e}")),
            Ok(text) => Profile::parse(&text),
        };
        let ours = profile.and_then(|profile| match profile.foreign(&machine) {
            Some(why) => Err(why),
            None => Ok(profile),
        });
        match ours {
            Ok(Profile { constants, .. }) => Ok(Tuned { constants, profile: Some(path), warning: None }),
            Err(why) if named => Err(Error::invalid(
                format!("RDMACCL_PROFILE={}: {why}", path.display()),
                "run `rdmaccl tune` on this machine, or set it to none for the built-in constants",
            )),
            Err(why) => Ok(built_in(Some(format!(
                "{} is not used: {why}; run `rdmaccl tune` on this machine, or remove it",
                path.display()
            )))),
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own, which goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("rdmaccl-profile-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join("rdmaccl")).unwrap();
            Folder(path)
        }

        /// The configuration of a user who has this profile at the usual place.
        fn with(&self, text: &str) -> Config {
            let config = config(&[("XDG_CONFIG_HOME", self.0.to_str().unwrap())]);
            std::fs::write(config.profile_path().unwrap(), text).unwrap();
            config
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn config(vars: &[(&str, &str)]) -> Config {
        Config::from_vars(vars.iter().map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
    }

    fn own() -> Profile {
        Profile::new(Constants { alpha_ns: 77.5, ..Constants::default() })
    }

    #[test]
    fn the_usual_place_is_the_users_and_the_variable_comes_first() {
        let path = |vars: &[_]| config(vars).profile_path();
        let is = |path: &str| Some(PathBuf::from(path));
        assert_eq!(path(&[]), None);
        assert_eq!(path(&[("HOME", "/h")]), is("/h/.config/rdmaccl/profile.json"));
        let both = [("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")];
        assert_eq!(path(&both), is("/x/rdmaccl/profile.json"));
        assert_eq!(path(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")]), is("/h/.config/rdmaccl/profile.json"));
        assert_eq!(path(&[("HOME", "/h"), ("RDMACCL_PROFILE", "/p")]), is("/p"));
        assert_eq!(path(&[("HOME", "/h"), ("RDMACCL_PROFILE", "none")]), None);
    }

    #[test]
    fn a_profile_of_this_machine_is_used_to_the_bit() {
        let folder = Folder::new("own");
        let config = folder.with(&own().text());
        let tuned = config.tuned().unwrap();
        assert_eq!((tuned.constants, tuned.profile), (own().constants, config.profile_path()));
        assert_eq!(tuned.warning, None);
        assert_eq!(Profile::parse(&own().text()), Ok(own()));
    }

    #[test]
    fn without_a_profile_the_constants_are_built_in_and_nobody_is_warned() {
        let built_in = Tuned { constants: Machine::here().built_in(), profile: None, warning: None };
        assert_eq!(config(&[]).tuned().unwrap(), built_in);
        assert_eq!(config(&[("HOME", "/nonexistent")]).tuned().unwrap(), built_in);
        assert_eq!(config(&[("HOME", "/h"), ("RDMACCL_PROFILE", "none")]).tuned().unwrap(), built_in);
    }

    #[test]
    fn what_cannot_be_used_is_a_warning_at_the_usual_place_and_an_error_where_it_was_named() {
        let folder = Folder::new("wrong");
        let mut cases = vec![
            (String::new(), "no JSON"),
            ("{}".to_string(), "no profile: missing field"),
            (
                own().text().replace("\"format\": 2", "\"format\": 1"),
                "format 1, and this library reads format 2",
            ),
            (own().text().replace("77.5", "-77.5"), "alpha_ns is -77.5"),
            (own().text().replace("alpha_ns", "delta_ns"), "delta_ns"),
            ("[".repeat(100_000), "no JSON"),
        ];
        let elsewhere = Machine { processor: "another".to_string(), ..Machine::here() };
        cases.push((Profile { machine: elsewhere, ..own() }.text(), "tuned on another"));
        cases.push((Profile { library: "0.0.1".to_string(), ..own() }.text(), "tuned with version 0.0.1"));
        for (text, why) in cases {
            let usual = folder.with(&text);
            let Tuned { constants, profile, warning } = usual.tuned().unwrap();
            assert_eq!((constants, profile), (Machine::here().built_in(), None), "{why}");
            let warning = warning.unwrap();
            assert!(warning.contains(why) && warning.contains("rdmaccl tune"), "{warning}");
            let path = usual.profile_path().unwrap();
            let error =
                config(&[("RDMACCL_PROFILE", path.to_str().unwrap())]).tuned().unwrap_err().to_string();
            assert!(
                error.contains("RDMACCL_PROFILE=") && error.contains(why) && error.contains("none"),
                "{error}"
            );
        }
        let absent = config(&[("RDMACCL_PROFILE", "/nonexistent/p")]).tuned().unwrap_err().to_string();
        assert!(absent.contains("/nonexistent/p: it cannot be read"), "{absent}");
    }
}

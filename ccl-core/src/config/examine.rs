//! An environment as it is, right or wrong: for the command that shows it.

use super::{Config, Fallbacks, Found, Origin, VARIABLES};

/// A variable as an environment has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What is in force: the default where the environment's value is wrong. Secrets are not shown.
    pub value: String,
    /// Its default, as people write it.
    pub default: &'static str,
    /// Who gave the value that is in force.
    pub origin: Origin,
    /// What it means, in one sentence.
    pub doc: &'static str,
    /// What a right value looks like.
    pub expects: &'static str,
    /// Why the environment's value is not in force, if so.
    pub error: Option<String>,
}

/// What an environment says, as far as it can be read.
#[derive(Clone, Debug)]
pub struct Examined {
    /// Every variable, in the order of the documentation.
    pub settings: Vec<Setting>,
    /// Variables that look like ours and are none, each with the one that was perhaps meant.
    pub unknown: Vec<(String, &'static str)>,
    /// The settings without the wrong ones.
    pub config: Config,
}

impl Config {
    /// Reads as [`Config::from_vars`] does, but goes on after a wrong value.
    pub fn examine(vars: impl IntoIterator<Item = (String, String)>) -> Examined {
        let (mut config, mut unknown, mut errors) = (Config::default(), Vec::new(), Vec::new());
        let mut fallbacks = Fallbacks::default();
        for (name, value) in vars {
            config.places.note(&name, &value);
            fallbacks.note(&name, &value);
            match Found::of(&name, &value) {
                Found::Nothing => {}
                Found::Variable(variable) => {
                    if let Err(error) = config.set(variable, &value) {
                        errors.push((variable.name, error.to_string()));
                    }
                }
                Found::Unknown(meant) => unknown.push((name, meant)),
            }
        }
        errors.extend(fallbacks.apply(&mut config).iter().map(|(name, error)| (*name, error.to_string())));
        let error = |name| errors.iter().find(|(wrong, _)| *wrong == name).map(|(_, why)| why.clone());
        let settings = VARIABLES.iter().zip(config.explain()).map(|(v, (name, value, origin))| Setting {
            name,
            value,
            default: v.default,
            origin,
            doc: v.doc,
            expects: v.expects,
            error: error(name),
        });
        Examined { settings: settings.collect(), unknown, config }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_told_and_does_not_hide_the_others() {
        let vars = [
            ("RDMACCL_CREDITS", "many"),
            ("RDMACCL_TIMEOUT", "5"),
            ("RDMACCL_SECRET", "short"),
            ("RDMACCL_CREDTIS", "4"),
            ("PATH", "x"),
            ("RDMACCL_ALGO", " "),
        ];
        let examined = Config::examine(vars.map(|(n, v)| (n.to_string(), v.to_string())));
        let setting = |name: &str| examined.settings.iter().find(|s| s.name == name).unwrap();
        assert_eq!(examined.settings.len(), VARIABLES.len());
        assert!(setting("RDMACCL_CREDITS").error.as_ref().unwrap().contains("RDMACCL_CREDITS=many"));
        assert_eq!(
            (setting("RDMACCL_CREDITS").value.as_str(), setting("RDMACCL_CREDITS").origin),
            ("auto", Origin::Default)
        );
        assert_eq!(
            (setting("RDMACCL_TIMEOUT").value.as_str(), setting("RDMACCL_TIMEOUT").origin),
            ("5", Origin::Environment)
        );
        assert_eq!(setting("RDMACCL_ALGO").error, None);
        assert!(!setting("RDMACCL_SECRET").error.as_ref().unwrap().contains("short"));
        assert_eq!(examined.unknown, [("RDMACCL_CREDTIS".to_string(), "RDMACCL_CREDITS")]);
        assert_eq!(examined.config.timeout.as_secs(), 5);
    }
}

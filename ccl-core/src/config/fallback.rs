//! NCCL's variables, where ours are not set.

use super::ib::FALLBACKS;
use super::{Config, VARIABLES, Variable};
use crate::error::Error;

/// What an environment says in NCCL's words; ours may come after them, so they are kept until the end.
#[derive(Default)]
pub(super) struct Fallbacks {
    found: Vec<(&'static Variable, &'static str, String)>,
}

impl Fallbacks {
    /// Keeps a variable, if it is one of NCCL's that we honour.
    pub(super) fn note(&mut self, name: &str, value: &str) {
        let known = FALLBACKS.iter().find(|(_, theirs)| *theirs == name);
        let Some((ours, theirs)) = known.filter(|_| !value.trim().is_empty()) else { return };
        if let Some(variable) = VARIABLES.iter().find(|v| v.name == *ours) {
            self.found.push((variable, theirs, value.to_string()));
        }
    }

    /// Sets what our own variables have not. Values that do not parse come back as errors, under our names.
    pub(super) fn apply(self, config: &mut Config) -> Vec<(&'static str, Error)> {
        let mut wrong = Vec::new();
        for (variable, theirs, value) in self.found {
            if config.from_environment.contains(&variable.name) {
                tracing::debug!(variable = variable.name, passed_over = theirs, "ours is set too and counts");
                continue;
            }
            if (variable.set)(config, value.trim()).is_none() {
                let what = format!("{theirs}={}, read as {}", variable.told(&value), variable.name);
                let remedy = format!("set it to {}, or {} itself", variable.expects, variable.name);
                wrong.push((variable.name, Error::invalid(what, remedy)));
                continue;
            }
            tracing::debug!(variable = variable.name, taken = theirs, %value, "setting taken from NCCL's variable");
            if !config.fallbacks.iter().any(|(ours, _)| *ours == variable.name) {
                config.fallbacks.push((variable.name, theirs));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use crate::error::Result;

    fn config(vars: &[(&str, &str)]) -> Result<Config> {
        Config::from_vars(vars.iter().map(|(n, v)| (n.to_string(), v.to_string())))
    }

    #[test]
    fn every_fallback_stands_for_a_variable_of_ours() {
        for (ours, theirs) in FALLBACKS {
            assert!(VARIABLES.iter().any(|v| v.name == ours) && theirs.starts_with("NCCL_IB_"), "{ours}");
        }
    }

    #[test]
    fn theirs_count_where_ours_are_not_set_in_whatever_order() {
        let both =
            config(&[("NCCL_IB_TC", "106"), ("RDMACCL_IB_TC", "dscp:1"), ("NCCL_IB_SL", "3")]).unwrap();
        assert_eq!((both.ib.traffic_class, both.ib.service_level), (Some(4), Some(3)));
        assert_eq!(both.origin("RDMACCL_IB_TC"), Origin::Environment);
        assert_eq!(both.origin("RDMACCL_IB_SL"), Origin::Nccl("NCCL_IB_SL"));
        let automatic =
            config(&[("NCCL_IB_GID_INDEX", "-1"), ("NCCL_IB_PCI_RELAXED_ORDERING", "2")]).unwrap();
        assert_eq!(automatic.ib, Config::default().ib);
        assert_eq!(
            config(&[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]).unwrap().ib.address_family.to_string(),
            "6"
        );
    }

    #[test]
    fn a_wrong_one_is_named_with_ours() {
        let error = config(&[("NCCL_IB_TC", "much")]).unwrap_err().to_string();
        assert!(error.contains("NCCL_IB_TC=much") && error.contains("RDMACCL_IB_TC"), "{error}");
        let examined = Config::examine([("NCCL_IB_TC".to_string(), "much".to_string())]);
        let setting = examined.settings.iter().find(|s| s.name == "RDMACCL_IB_TC").unwrap();
        assert!(setting.error.as_ref().unwrap().contains("much"));
        assert!(config(&[("NCCL_IB_TC", "much"), ("RDMACCL_IB_TC", "4")]).is_ok(), "nobody reads it");
    }
}

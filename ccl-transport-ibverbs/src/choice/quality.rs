//! Traffic class and service level: how the network's switches treat our packets.

use super::Choice;
use super::rails::Rail;
use super::survey::Layer;
use ccl_core::config::Ib;

/// The traffic class of a rail's packets.
pub fn traffic_class(rail: &Rail, settings: &Ib) -> Choice<u8> {
    match (settings.traffic_class, rail.host_class) {
        (Some(class), _) => Choice::new(class, "RDMACCL_IB_TC"),
        (None, Some(class)) => Choice::new(class, "set by the host's administrator"),
        (None, None) if rail.layer == Layer::InfiniBand => {
            Choice::new(0, "InfiniBand goes by the service level")
        }
        (None, None) => Choice::new(0, "nobody set one; a lossless class wants RDMACCL_IB_TC"),
    }
}

/// The service level.
pub fn service_level(settings: &Ib) -> Choice<u8> {
    match settings.service_level {
        Some(level) => Choice::new(level, "RDMACCL_IB_SL"),
        None => Choice::new(0, "nobody set one"),
    }
}

/// A traffic class as people know it: `106 (DSCP 26, ECN 2)`.
pub fn described(class: u8) -> String {
    format!("{class} (DSCP {}, ECN {})", class >> 2, class & 3)
}

#[cfg(test)]
mod tests {
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;

    #[test]
    fn the_users_word_goes_before_the_hosts() {
        let mut survey = surveys::roce();
        let mut settings = Config::default().ib;
        let of = |survey: &_, settings: &Ib| {
            traffic_class(&rails::choose(survey, settings).unwrap().value[0], settings)
        };
        assert_eq!(of(&survey, &settings).value, 0);
        survey.devices[0].ports[0].host_class = Some(104);
        assert_eq!(of(&survey, &settings), Choice::new(104, "set by the host's administrator"));
        settings.traffic_class = Some(106);
        assert_eq!(of(&survey, &settings), Choice::new(106, "RDMACCL_IB_TC"));
        assert_eq!(described(106), "106 (DSCP 26, ECN 2)");
        settings.service_level = Some(3);
        assert_eq!(service_level(&settings).value, 3);
    }
}

//! Queue pairs of a connection, the paths that their packets take through the network, and the order of writes on PCIe.

use super::Choice;
use super::rails::Rail;
use super::survey::Layer;
use ccl_core::config::{Ib, Switch};

/// Queue pairs between two ports.
pub fn queue_pairs(rail: &Rail, settings: &Ib) -> Choice<u32> {
    match settings.qps_per_connection {
        Some(number) => Choice::new(number, "RDMACCL_IB_QPS_PER_CONNECTION"),
        None if rail.layer == Layer::InfiniBand => {
            Choice::new(1, "InfiniBand: the subnet's routes are set per port")
        }
        None if rail.software => Choice::new(1, "software: one queue does the work"),
        None if rail.is_bonded() => {
            Choice::new(8, "a bond: flows are spread over its links and the network's paths")
        }
        None => {
            Choice::new(4, "Ethernet: flows are spread over the network's paths, and one may meet another")
        }
    }
}

/// Flow labels for the queue pairs of a connection: devices make UDP source ports of them, and switches choose paths by
/// these. No two source ports are the same; connections with other seeds get others.
pub fn flow_labels(seed: u64, queue_pairs: u32) -> Vec<u32> {
    // An odd stride visits every one of the 2^14 ports before it comes back.
    let mixed = (seed ^ seed >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (start, stride) = ((mixed >> 40) as u32, (mixed >> 20) as u32 | 1);
    (0..queue_pairs).map(|i| start.wrapping_add(stride.wrapping_mul(i)) & 0x3fff | 1 << 14).collect()
}

/// The UDP source port that devices make of a flow label.
pub fn source_port(flow_label: u32) -> u16 {
    let folded = flow_label & 0x3fff ^ (flow_label & 0xf_c000) >> 14;
    0xc000 | folded as u16
}

/// Whether the device's writes may pass one another on their way to memory. A completion never passes them, and data
/// is only looked at after its completion.
pub fn relaxed_ordering(settings: &Ib) -> Choice<bool> {
    match settings.relaxed_ordering {
        Switch::Auto => Choice::new(true, "data is only read after its completion, which nothing passes"),
        Switch::On => Choice::new(true, "RDMACCL_IB_RELAXED_ORDERING"),
        Switch::Off => Choice::new(false, "RDMACCL_IB_RELAXED_ORDERING"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::survey::Survey;
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;
    use std::collections::HashSet;

    #[test]
    fn ethernet_gets_several_and_the_user_what_he_wants() {
        let settings = Config::default().ib;
        let of = |survey: &Survey, settings: &Ib| {
            queue_pairs(&rails::choose(survey, settings).unwrap().value[0], settings).value
        };
        let all = [surveys::infiniband(), surveys::roce(), surveys::bond(), surveys::softroce(1)];
        assert_eq!(all.each_ref().map(|survey| of(survey, &settings)), [1, 4, 8, 1]);
        assert_eq!(of(&surveys::infiniband(), &Ib { qps_per_connection: Some(3), ..settings }), 3);
    }

    #[test]
    fn source_ports_of_a_connection_differ() {
        for seed in 0..200u64 {
            let labels = flow_labels(seed * 0x1234_5678_9abc, 128);
            let ports: HashSet<u16> = labels.iter().map(|label| source_port(*label)).collect();
            assert_eq!(ports.len(), 128);
            assert!(labels.iter().all(|label| *label != 0 && *label < 1 << 20), "0 lets the device choose");
        }
        assert_ne!(flow_labels(1, 4), flow_labels(2, 4));
    }

    #[test]
    fn ordering_is_relaxed_unless_the_user_minds() {
        let settings = Config::default().ib;
        assert!(relaxed_ordering(&settings).value);
        assert!(!relaxed_ordering(&Ib { relaxed_ordering: Switch::Off, ..settings }).value);
    }
}

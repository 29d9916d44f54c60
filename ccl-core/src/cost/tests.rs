use super::*;
use crate::algorithms;
use crate::plan::{Collective, Placement};
use crate::transport::slot_bytes_of;

fn best(ranks: u32, collective: Collective, bytes: usize) -> Choice {
    let model = Model::shared_memory(ranks, ranks);
    choose(&model, collective, ranks, 0, bytes, false, Wish::default()).unwrap()
}

#[test]
fn short_calls_go_direct_and_long_ones_save_bytes() {
    for ranks in [2, 3, 4, 8] {
        assert_eq!(best(ranks, Collective::AllReduce, 8).algorithm.name(), "oneshot", "n={ranks}");
        let long = best(ranks, Collective::AllReduce, 64 << 20).algorithm.name();
        // Two ranks send no less by sharing the work, but read less.
        assert!(["twoshot", "ring", "halving"].contains(&long), "n={ranks}: {long}");
    }
}

#[test]
fn tiles_fit_the_slot_and_prices_are_positive_finite_and_grow() {
    for ranks in [1, 2, 3, 8, 100] {
        for collective in Collective::ALL {
            let candidates = Candidates::new(collective, ranks, ranks / 2).unwrap();
            for cores in [1, 8] {
                let model = Model::shared_memory(cores, ranks);
                let mut last = 0.0;
                for bytes in std::iter::once(0).chain((0..=40).map(|bits| 1usize << bits)) {
                    let choice = candidates.choose(&model, bytes, true, Wish::default()).unwrap();
                    assert!((1..=model.slot_bytes).contains(&choice.tile_bytes));
                    let ns = choice.predicted_ns;
                    assert!(
                        ns.is_finite() && ns > 0.0 && ns >= last,
                        "{collective} n={ranks} {bytes}: {ns} after {last}"
                    );
                    last = ns;
                }
            }
        }
    }
}

#[test]
fn an_override_is_obeyed_at_every_size() {
    let model = Model::shared_memory(2, 5);
    for algorithm in algorithms::all() {
        for bytes in [0, 8, 1 << 30] {
            let only = Wish { algorithm: Some(algorithm.name()), ..Wish::default() };
            let choice = choose(&model, Collective::AllGather, 5, 0, bytes, false, only);
            match algorithm.parts(Collective::AllGather, 5.into()) {
                Some(_) => assert_eq!(choice.unwrap().algorithm.name(), algorithm.name()),
                None => assert!(choice.is_err()),
            }
        }
    }
}

#[test]
fn an_override_that_does_not_fit_is_told_what_does() {
    let model = Model::shared_memory(2, 4);
    for name in ["rings", "pat"] {
        let error = choose(
            &model,
            Collective::Gather,
            4,
            0,
            8,
            false,
            Wish { algorithm: Some(name), ..Wish::default() },
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains(&format!("'{name}' for gather on 4 ranks")), "{error}");
        assert!(error.contains("one of oneshot, chain, binomial"), "{error}");
    }
    assert!(choose(&model, Collective::Gather, 4, 4, 8, false, Wish::default()).is_err());
    assert!(choose(&model, Collective::Gather, 0, 0, 8, false, Wish::default()).is_err());
}

#[test]
fn whoever_stands_first_wins_where_the_model_knows_no_better() {
    let model = Model::shared_memory(2, 2);
    for bytes in [64 << 10, 256 << 10, 1 << 20] {
        let choice = choose(&model, Collective::AllGather, 2, 0, bytes, false, Wish::default()).unwrap();
        assert_eq!((choice.algorithm.name(), choice.tile_bytes), ("oneshot", model.slot_bytes));
    }
}

#[test]
fn a_wish_for_pieces_is_obeyed_up_to_the_slot_and_priced() {
    let model = Model::shared_memory(2, 2);
    let choose = |tile_bytes| {
        let wish = Wish { algorithm: Some("ring"), tile_bytes };
        choose(&model, Collective::AllGather, 2, 0, 1 << 20, false, wish).unwrap()
    };
    assert_eq!(choose(Some(usize::MAX)).tile_bytes, model.slot_bytes);
    assert_eq!(choose(Some(4096)).tile_bytes, 4096);
    assert!(choose(Some(4096)).predicted_ns > choose(None).predicted_ns, "more pieces take more steps");
}

#[test]
fn constants_of_no_machine_are_told_by_name() {
    assert_eq!(Constants::default().fault(), None);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
        let constants = Constants { switch_ns: wrong, ..Constants::default() };
        assert!(constants.fault().is_some_and(|why| why.contains("switch_ns")), "{wrong}");
    }
    let mut constants = Constants::default();
    for (name, value) in Constants::default().each() {
        *constants.get_mut(name).unwrap() *= 2.0;
        assert_eq!(constants.each().into_iter().find(|(n, _)| *n == name), Some((name, 2.0 * value)));
    }
    assert!(constants.get_mut("delta_ns").is_none());
}

#[test]
fn more_ranks_than_cores_cost_more_and_favour_few_dependent_messages() {
    let (wide, narrow) = (Model::shared_memory(8, 8), Model::shared_memory(2, 8));
    let ring = algorithms::by_name("ring").unwrap();
    let cost = |model: &Model| price(model, ring, Collective::AllReduce, 8, 0, 1 << 20, 64 << 10).unwrap();
    assert!(cost(&narrow) > cost(&wide));
    let choice = choose(&narrow, Collective::AllReduce, 8, 0, 1 << 20, false, Wish::default()).unwrap();
    assert!(choice.algorithm.depth(Collective::AllReduce, 8.into()) <= 2, "{choice:?}");
}

/// As measured: the direct step wins below some 20 KiB, whether two, three or four ranks share a core.
#[test]
fn ranks_that_share_cores_take_two_steps_for_all_reduces_from_32_kib_on() {
    for ranks in [4, 5, 6, 8] {
        let model = Model::shared_memory(2, ranks);
        let chosen = |bytes| {
            let choice = choose(&model, Collective::AllReduce, ranks, 0, bytes, false, Wish::default());
            choice.unwrap().algorithm.name()
        };
        assert_eq!([8, 1 << 10, 8 << 10].map(chosen), ["oneshot"; 3], "{ranks}");
        assert_eq!([32 << 10, 64 << 10, 1 << 20].map(chosen), ["twoshot"; 3], "{ranks}");
    }
}

#[test]
fn a_rank_more_than_cores_makes_one_core_do_twice_the_work() {
    let cost = |ranks| {
        let model = Model::shared_memory(2, ranks);
        price(&model, &algorithms::OneShot, Collective::AllReduce, 2, 0, 8, 64 << 10).unwrap()
    };
    assert!(cost(3) == cost(4) && cost(2) < cost(3) && cost(4) < cost(5));
}

#[test]
fn separate_slots_make_the_one_shot_dearer() {
    let shared = Model::shared_memory(8, 8);
    let separate = Model { shared_slots: false, ..shared };
    let cost = |model: &Model| {
        price(model, &algorithms::OneShot, Collective::AllReduce, 8, 0, 1 << 20, 64 << 10).unwrap()
    };
    assert!(cost(&separate) > 1.3 * cost(&shared));
}

#[test]
fn only_calls_larger_than_the_caches_are_written_past_them() {
    let model = Model::shared_memory(2, 2);
    assert!(!model.streams(2 * (2 << 20)) && model.streams(2 * (4 << 20)));
    assert!(!Model::shared_memory(2, 1).streams(2 * (4 << 20)), "fewer ranks share them");
    assert!(model.keeps(2 * (5 << 20)) && !model.keeps(2 * (6 << 20)));
}

/// Two hosts of four ranks, with a core for each rank.
fn two_hosts(net: Net) -> (Placement, Model) {
    let placement = Placement::even(8, 2).unwrap();
    (placement, Model { net, slot_bytes: slot_bytes_of(placement), ..Model::shared_memory(4, 4) })
}

const TCP: Net = Net { latency_ns: 20_000.0, message_ns: 2500.0, ns_per_byte: 0.4, by_processor: true };

#[test]
fn long_calls_on_several_hosts_cross_as_little_as_can_be() {
    for net in [Net::default(), TCP] {
        let (placement, model) = two_hosts(net);
        let chosen = |collective, bytes| {
            choose(&model, collective, placement, 0, bytes, false, Wish::default()).unwrap().algorithm.name()
        };
        // Halving crosses as seldom.
        let middle = chosen(Collective::AllReduce, 1 << 20);
        assert!(["hierarchical", "halving"].contains(&middle), "{middle} {net:?}");
        for bytes in [4 << 20, 16 << 20, 256 << 20] {
            assert_eq!(chosen(Collective::AllReduce, bytes), "hierarchical", "{bytes} {net:?}");
            assert_eq!(chosen(Collective::ReduceScatter, bytes / 8), "hierarchical", "{bytes} {net:?}");
            assert_eq!(chosen(Collective::AllGather, bytes / 8), "hierarchical", "{bytes} {net:?}");
        }
        // A chain crosses as seldom; trees drawn over ranks do not.
        for collective in [Collective::Broadcast, Collective::Reduce] {
            let price = |name| {
                let algorithm = algorithms::by_name(name).unwrap();
                price(&model, algorithm, collective, placement, 0, 16 << 20, 64 << 10).unwrap()
            };
            assert!(price("hierarchical") < 0.8 * price("tree"), "{collective} {net:?}");
            assert!(price("hierarchical") < 1.3 * price("chain"), "{collective} {net:?}");
        }
    }
}

/// Two hosts of a rank each, which send the same bytes to each other either way: half the adding each is less than all of it.
#[test]
fn what_ranks_do_themselves_decides_where_both_send_the_same() {
    let placement = Placement::even(2, 2).unwrap();
    for ns_per_byte in [0.4, 0.8] {
        let net = Net { ns_per_byte, ..TCP };
        let model = Model { net, slot_bytes: 256 << 10, ..Model::shared_memory(1, 1) };
        let chosen = |bytes| {
            let choice = choose(&model, Collective::AllReduce, placement, 0, bytes, false, Wish::default());
            choice.unwrap().algorithm.name()
        };
        assert_eq!([8, 1 << 10, 64 << 10].map(chosen), ["oneshot"; 3], "{net:?}");
        assert_eq!([1 << 20, 2 << 20].map(chosen), ["twoshot"; 2], "{net:?}");
    }
}

#[test]
fn nothing_is_hierarchical_on_one_host_or_with_one_rank_on_each() {
    for placement in [Placement::one_host(8), Placement::even(8, 8).unwrap()] {
        for collective in Collective::ALL {
            let candidates = Candidates::new(collective, placement, 0).unwrap();
            assert!(
                candidates.algorithms().all(|a| a.name() != "hierarchical"),
                "{collective} {placement:?}"
            );
        }
    }
}

#[test]
fn what_crosses_costs_what_the_network_takes() {
    let (placement, slow) = two_hosts(TCP);
    let fast = Model { net: Net::default(), ..slow };
    let at = |model: &Model, placement: Placement, name: &str, bytes| {
        let algorithm = algorithms::by_name(name).unwrap();
        price(model, algorithm, Collective::AllReduce, placement, 0, bytes, 64 << 10).unwrap()
    };
    for name in ["oneshot", "twoshot", "ring", "tree", "recursive", "halving"] {
        for bytes in [8, 1 << 20] {
            let prices = [
                at(&fast, 8.into(), name, bytes),
                at(&fast, placement, name, bytes),
                at(&slow, placement, name, bytes),
            ];
            assert!(prices.is_sorted_by(|a, b| a < b), "{name} {bytes}: {prices:?}");
        }
    }
    // In a row: one, two, four across; and a host's network takes one message after the other.
    let short = |name| at(&slow, placement, name, 8);
    assert!(short("hierarchical") < short("twoshot") && short("hierarchical") < short("ring"));
    assert!((2.0..4.0).contains(&(short("hierarchical") / TCP.latency_ns)), "{}", short("hierarchical"));
    // Half of a ring's bytes, where the network is what takes the time.
    let long = |name| at(&slow, placement, name, 256 << 20);
    assert!(
        (1.5..2.5).contains(&(long("ring") / long("hierarchical"))),
        "{}",
        long("ring") / long("hierarchical")
    );
}

#[test]
fn ranks_that_lie_one_to_a_host_pay_the_network_for_every_message() {
    let model = Model { net: TCP, ..Model::shared_memory(4, 1) };
    let ring = algorithms::by_name("ring").unwrap();
    let cost = |hosts| {
        let placement = Placement::even(8, hosts).unwrap();
        price(&model, ring, Collective::AllReduce, placement, 0, 8, 64).unwrap()
    };
    assert!([1, 2, 4, 8].map(cost).is_sorted_by(|few, many| few < many));
    assert!(cost(8) > 14.0 * TCP.latency_ns);
}

#[test]
fn prices_on_hosts_are_positive_finite_and_grow() {
    for (ranks, hosts) in [(4, 2), (8, 2), (12, 3), (8, 8), (64, 8)] {
        let placement = Placement::even(ranks, hosts).unwrap();
        for collective in Collective::ALL {
            let candidates =
                Candidates::new(collective, placement, ranks / 2 * u32::from(collective.rooted())).unwrap();
            for net in [Net::default(), TCP] {
                let model = Model { net, ..Model::shared_memory(8, placement.locals()) };
                for algorithm in candidates.algorithms() {
                    let only = Wish { algorithm: Some(algorithm.name()), ..Wish::default() };
                    let mut last = 0.0;
                    for bytes in std::iter::once(0).chain((0..=40).map(|bits| 1usize << bits)) {
                        let ns = candidates.choose(&model, bytes, true, only).unwrap().predicted_ns;
                        assert!(
                            ns.is_finite() && ns > 0.0 && ns >= last,
                            "{} {collective} {placement:?} {bytes}: {ns} after {last}",
                            algorithm.name()
                        );
                        last = ns;
                    }
                }
            }
        }
    }
}

#[test]
fn a_network_of_no_machine_is_told_by_name() {
    assert_eq!(Net::default().fault(), None);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let (latency, bandwidth) = (Net { latency_ns: wrong, ..TCP }, Net { ns_per_byte: wrong, ..TCP });
        let message = Net { message_ns: wrong, ..TCP };
        assert!(message.fault().is_some_and(|why| why.contains("message_ns")), "{wrong}");
        assert!(latency.fault().is_some_and(|why| why.contains("latency_ns")), "{wrong}");
        assert!(bandwidth.fault().is_some_and(|why| why.contains("ns_per_byte")), "{wrong}");
    }
}

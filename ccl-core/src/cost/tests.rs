use super::*;
use crate::algorithms;
use crate::plan::Collective;

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
fn only_calls_much_larger_than_the_caches_are_written_past_them() {
    let model = Model::shared_memory(2, 2);
    assert!(!model.streams(2 * (16 << 20)) && model.streams(2 * (64 << 20)));
    assert!(!Model::shared_memory(2, 1).streams(2 * (16 << 20)), "fewer ranks share them");
}

//! The verifier on small plans written by hand: what it proves of good ones.

mod plans;

use ccl_core::verify::{Limits, min_credits, verify};
use plans::{one_shot, ring, tree};

#[test]
fn ring_is_proved() {
    for n in 2..=17 {
        let proof = verify(&ring(n), &Limits::default()).unwrap();
        assert!(proof.in_place);
        assert!(proof.order.same_on_every_rank);
        assert!(!proof.order.same_at_every_size, "each part starts at another rank");
        assert_eq!(proof.messages, u64::from(n) * 2 * u64::from(n - 1));
        assert_eq!(proof.links, u64::from(n));
        assert_eq!(min_credits(&ring(n), &Limits::default()).unwrap(), 2, "n = {n}");
    }
}

#[test]
fn one_shot_sums_in_rank_order() {
    for n in 1..=9 {
        let proof = verify(&one_shot(n), &Limits::default());
        if n == 1 {
            assert!(proof.is_err(), "a sink without peers");
            continue;
        }
        let proof = proof.unwrap();
        assert!(proof.in_place && proof.order.rank_order && proof.order.same_on_every_rank);
        assert!(proof.order.same_at_every_size);
        assert_eq!(min_credits(&one_shot(n), &Limits::default()).unwrap(), 1);
    }
}

#[test]
fn tree_lanes_are_ordered_by_messages() {
    for n in 1..=40 {
        let proof = verify(&tree(n), &Limits::default()).unwrap();
        assert!(proof.in_place, "n = {n}");
        assert!(proof.order.same_on_every_rank && proof.order.same_at_every_size);
    }
}

#[test]
fn two_million_moves_are_bounded_in_time() {
    let proof = verify(&ring(1024), &Limits::default()).unwrap();
    assert_eq!(proof.moves, 1024 * (2 * 1023 + 1));
}

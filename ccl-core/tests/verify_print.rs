//! Plans as text, pictures and files.

mod plans;

use ccl_core::error::ErrorKind;
use ccl_core::plan::{Collective, Plan};
use ccl_core::verify::{Limits, verify};
use ccl_core::{Error, algorithms};
use plans::{one_shot, ring, tree};
use proptest::prelude::*;

fn load(text: &str) -> Result<Plan, Error> {
    Plan::from_json(text, &Limits::default()).map(|(plan, _)| plan)
}

#[test]
fn text_of_a_ring() {
    let expected = "\
rank 1
  lane 0
    0: [input 1] -> [link 2]
    1: [link 0, input 0] -> [link 2]
    2: [link 0, input 2] -> [output 2, link 2]
    3: [link 0] -> [output 1, link 2]
    4: [link 0] -> [output 0]
";
    assert_eq!(ring(3).text_of(1).to_string(), expected);
    let whole = ring(3).to_string();
    assert!(whole.starts_with("all_reduce by by_hand, 3 ranks, 3 parts per block\nrank 0\n"));
    assert!(whole.contains(expected));
    assert_eq!(ring(3).text_of(3).to_string(), "rank 3: not in this plan\n");
}

#[test]
fn text_names_channels_and_groups() {
    let text = tree(3).text_of(0).to_string();
    assert_eq!(text, "rank 0\n  lane 0\n    0: [input 0, link 1, link 2] -> [output 0, links 1+2/1]\n");
}

#[test]
fn pictures_show_every_move_and_message() {
    for plan in [ring(4), one_shot(4), tree(4)] {
        let proof = verify(&plan, &Limits::default()).unwrap();
        let svg = plan.to_svg();
        assert_eq!(svg.matches("rx=\"3\"").count() as u64, proof.moves);
        assert_eq!(svg.matches("marker-end").count() as u64, proof.messages);
        let dot = plan.to_dot();
        assert_eq!(dot.matches("[label=").count() as u64, proof.moves);
        assert_eq!(dot.matches("[constraint=false]").count() as u64, proof.messages);
    }
}

#[test]
fn pictures_escape_what_a_file_says() {
    let mut plan = ring(2);
    plan.algorithm = "<b a=\"&\">\u{1}".into();
    assert!(plan.to_svg().contains("&lt;b a=&quot;&amp;&quot;&gt;\u{fffd}"));
    assert!(plan.to_dot().contains("<b a=\\\"&\\\">"));
}

#[test]
fn pictures_of_a_deadlock_end() {
    let mut plan = ring(3);
    for program in &mut plan.programs {
        program.lanes[0].moves.swap(0, 1);
    }
    assert!(verify(&plan, &Limits::default()).is_err());
    assert!(plan.to_svg().ends_with("</svg>\n"));
}

#[test]
fn files_are_refused_with_a_reason() {
    let good = ring(3).to_json();
    assert_eq!(load(&good).unwrap(), ring(3));
    let cases = [
        (good.replace("\"version\":1", "\"version\":2"), "version 2"),
        (good.replace("\"ranks\":3", "\"ranks\":3,\"colour\":1"), "unknown field `colour`"),
        (good.replacen("{\"from\":", "{\"form\":1,\"from\":", 1), "unknown field `form`"),
        (good.replace("\"ranks\":3", "\"ranks\":4000000000"), "3 programs for 4000000000 ranks"),
        (good.replace("\"parts\":3", "\"parts\":0"), "0 parts"),
        (good.replace("\"parts\":3", "\"parts\":1000000000"), "never reads input chunk 3"),
        (good.replace("\"parts\":3", "\"parts\":4000000000"), "more chunks than can be numbered"),
        (good.replace("\"root\":0", "\"root\":1"), "root must be 0"),
        (good.replacen("\"scratch\":0", "\"scratch\":4000000000", 1), "4000000000 pieces of scratch"),
        (good.replacen("\"peer\":1", "\"peer\":4000000000", 1), "names rank 4000000000 as a peer"),
        (good[..good.len() / 2].to_string(), "EOF"),
        (String::new(), "EOF"),
    ];
    for (text, reason) in cases {
        let error = load(&text).expect_err(reason);
        assert!(error.to_string().contains(reason), "wanted '{reason}', got: {error}");
    }
}

#[test]
fn an_unproved_plan_cannot_be_loaded() {
    let mut plan = ring(4);
    plan.programs[2].lanes[0].moves.pop();
    let error = load(&plan.to_json()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PlanRejected(_)), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn files_give_back_what_was_written(pick in 0usize..1000, which in 0usize..8, ranks in 1u32..12, root in 0u32..12) {
        let all = algorithms::all();
        let collective = Collective::ALL[which];
        let root = if collective.rooted() { root % ranks } else { 0 };
        if let Some(plan) = algorithms::plan(all[pick % all.len()], collective, ranks, root) {
            prop_assert_eq!(load(&plan.to_json()).unwrap(), plan);
        }
    }

    /// Whatever a file says, reading it ends without a panic.
    #[test]
    fn edited_files_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = tree(5).to_json().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Ok(text) = String::from_utf8(text) {
            let _ = load(&text);
        }
    }
}

//! Plan files that are cut, wrong, nested or enormous: refused with what is wrong, in bounded time and memory.

use ccl_core::algorithms;
use ccl_core::error::ErrorKind;
use ccl_core::plan::{Collective, MAX_FILE_BYTES, Plan};
use ccl_core::verify::Limits;

fn ring() -> String {
    algorithms::plan(&algorithms::Ring, Collective::AllReduce, 3, 0).unwrap().to_json()
}

fn refused(text: &str) -> String {
    let error = Plan::from_json(text, &Limits::default()).expect_err("it must be refused");
    assert!(matches!(error.kind(), ErrorKind::Malformed { .. } | ErrorKind::PlanRejected(_)), "{error}");
    let text = error.to_string();
    assert!(text.len() < 2000 && !text.contains('\n'), "{} bytes: {text}", text.len());
    text
}

/// The ring with a word replaced; the word must be there.
fn with(word: &str, other: &str) -> String {
    let ring = ring();
    assert!(ring.contains(word), "{word} in {ring}");
    ring.replacen(word, other, 1)
}

#[test]
fn a_file_that_was_cut_anywhere_is_refused() {
    let whole = ring();
    assert!(Plan::from_json(&whole, &Limits::default()).is_ok());
    for len in 0..whole.trim_end().len() {
        let text = refused(&whole[..len]);
        assert!(text.starts_with("malformed plan file: "), "{text}");
    }
}

#[test]
fn wrong_types_and_fields_are_named() {
    let wrong = [
        (with("\"version\":1", "\"version\":2"), "version 2; this build reads version 1"),
        (with("\"version\":1", "\"version\":\"1\""), "invalid type: string \"1\", expected u32"),
        (with("\"version\":1,", ""), "missing field `version`"),
        (with("\"ranks\":3", "\"ranks\":-3"), "invalid value: integer `-3`, expected u32"),
        (with("\"ranks\":3", "\"ranks\":4294967296"), "expected u32"),
        (with("\"ranks\":3", "\"ranks\":3.5"), "expected u32"),
        (with("\"ranks\":3", "\"ranks\":3,\"ranks\":3"), "duplicate field `ranks`"),
        (with("\"ranks\":3", "\"ranks\":3,\"colour\":1"), "unknown field `colour`"),
        (with("all_reduce", "all_reduec"), "unknown variant `all_reduec`"),
        (with("\"algorithm\":\"ring\"", "\"algorithm\":\"\""), "give it 1 to 64 bytes"),
        (
            with("\"algorithm\":\"ring\"", "\"algorithm\":\"a\\nb\""),
            "give it 1 to 64 bytes of printable text",
        ),
        (with("\"moves\":[", "\"moves\":[7,"), "expected struct Move"),
        (with("{\"lanes\":[", "{\"lanes\":[null,"), "expected struct Lane"),
        ("[]".into(), "invalid length 0"),
        ("null".into(), "expected struct Head"),
        (ring() + "x", "trailing characters"),
    ];
    for (file, told) in wrong {
        let text = refused(&file);
        assert!(text.contains(told), "{told}: {text}");
    }
}

#[test]
fn counts_are_refused_before_they_cost_memory() {
    let most = u32::MAX;
    let wrong = [
        (with("\"ranks\":3", &format!("\"ranks\":{most}")), "3 programs for 4294967295 ranks"),
        (with("\"parts\":3", &format!("\"parts\":{most}")), "more chunks than can be numbered"),
        (with("\"parts\":3", "\"parts\":1000000000"), "output chunk"),
        (with("\"parts\":3", "\"parts\":0"), "0 parts"),
        (with("\"moves\"", &format!("\"scratch\":{most},\"moves\"")), "scratch"),
        (with("{\"input\":", "{\"input\":4294967"), "4294967"),
        (with("\"peer\":", "\"peer\":99999"), "99999"),
    ];
    for (file, told) in wrong {
        let text = refused(&file);
        assert!(text.contains(told) || text.contains("chunk"), "{told}: {text}");
    }
}

#[test]
fn nesting_is_no_way_into_the_stack() {
    for open in ["[", "{\"version\":", "{\"x\":[", "{\"lanes\":[{\"moves\":["] {
        let text = refused(&open.repeat(200_000));
        let told = ["recursion limit exceeded", "invalid type", "EOF while parsing"];
        assert!(told.iter().any(|told| text.contains(told)), "{text}");
    }
}

#[test]
fn a_quotation_of_the_file_is_cut() {
    let long = "x".repeat(1_000_000);
    let text = refused(&with("all_reduce", &long));
    assert!(
        text.contains("unknown variant `xxx") && text.contains("xxx` … ") || text.contains(" … "),
        "{text}"
    );
    refused(&with("\"algorithm\":\"ring\"", &format!("\"algorithm\":\"{long}\"")));
    refused(&with("\"ranks\":3", &format!("\"{long}\":3")));
}

#[test]
fn a_text_that_is_too_long_is_not_read() {
    let text = refused(&" ".repeat(MAX_FILE_BYTES + 1));
    assert!(text.contains("268435457 bytes long; at most 268435456 are read"), "{text}");
}

/// Much of what is cheap to write: time and memory grow with the file, not with what it means.
#[test]
fn large_and_senseless_plans_are_refused_in_time() {
    let head = |ranks: u32| {
        format!(
            "{{\"version\":1,\"collective\":\"all_reduce\",\"ranks\":{ranks},\"parts\":1,\"algorithm\":\"x\",\"programs\":["
        )
    };
    let lanes = "{\"scratch\":1024,\"moves\":[]},".repeat(20_000);
    refused(&format!("{}{{\"lanes\":[{}]}}]}}", head(1), lanes.trim_end_matches(',')));
    let programs = "{\"lanes\":[]},".repeat(100_000);
    refused(&format!("{}{}]}}", head(100_000), programs.trim_end_matches(',')));
    // One value doubled again and again holds 2^5000 contributions.
    let doubled = "{\"from\":[{\"output\":0},{\"output\":0}],\"into\":[{\"output\":0}]},".repeat(5000);
    let first = "{\"from\":[{\"input\":0}],\"into\":[{\"output\":0}]},";
    let moves = format!("{first}{}", doubled.trim_end_matches(','));
    let text = refused(&format!("{}{{\"lanes\":[{{\"moves\":[{moves}]}}]}}]}}", head(1)));
    assert!(text.contains("twice"), "{text}");
    // A move that reads the same chunk a hundred thousand times.
    let many = "{\"input\":0},".repeat(100_000);
    let wide = format!("{{\"from\":[{}],\"into\":[{{\"output\":0}}]}}", many.trim_end_matches(','));
    let text = refused(&format!("{}{{\"lanes\":[{{\"moves\":[{wide}]}}]}}]}}", head(1)));
    assert!(text.contains("twice"), "{text}");
}

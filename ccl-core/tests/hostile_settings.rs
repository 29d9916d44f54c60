//! Variables with odd values: each is an error that names the variable, what it was set to, and what would be right.

use ccl_core::config::Config;
use ccl_core::error::{Error, ErrorKind};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

fn read(vars: &[(&str, &str)]) -> Result<Config, Error> {
    Config::from_vars(vars.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

fn refused(vars: &[(&str, &str)]) -> String {
    let error = read(vars).expect_err(&format!("{vars:?}"));
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    error.to_string()
}

#[test]
fn odd_numbers_are_refused_with_what_would_be_right() {
    let seconds = "set it to seconds above 0";
    let slot = "set it to auto or a multiple of 4K up to 64M";
    let wrong = [
        (
            "RDMACCL_TIMEOUT",
            &["0", "-1", "nan", "inf", "1e999", "1e-300", "30s", "30 s", "1,5", "0x10", "١"][..],
            seconds,
        ),
        ("RDMACCL_INIT_TIMEOUT", &["0", "99999999999", "five", "-0"], seconds),
        (
            "RDMACCL_SLOT_BYTES",
            &["0", "1", "4095", "65537", "64MiB", "65M", "18446744073709551616", "-4K", "K"],
            slot,
        ),
        ("RDMACCL_TILE_BYTES", &["0", "-1", "1T", "17179869184G", "64 K"], "set it to a size above 0"),
        (
            "RDMACCL_CREDITS",
            &["0", "-1", "1025", "4294967296", "4.0", "4K", "many"],
            "set it to auto or a number from 1 to 1024",
        ),
        ("RDMACCL_RANK", &["-1", "4294967296", "1.0", "one", "0x1"], "set it to a number from 0"),
        ("RDMACCL_SIZE", &["0", "-2", "99999999999999999999"], "set it to a number from 1"),
        ("RDMACCL_LOCAL_RANK", &["-1", "zero"], "set it to a number from 0"),
        (
            "RDMACCL_PORT_RANGE",
            &["1", "0-9", "9-1", "1-65536", "a-b", "1-2-3", "-"],
            "set it to two ports like",
        ),
        (
            "RDMACCL_ROOT",
            &["host", "host:", ":4711", "host:0", "host:65536", "[]:1", "a b:1"],
            "set it to host:port",
        ),
        ("RDMACCL_SOCKET_FAMILY", &["5", "ipv4", "46"], "set it to 4, 6 or any"),
        ("RDMACCL_SOCKET_IFNAME", &["^", "=", ",", "eth0,,ib0"], "set it to names like"),
        (
            "RDMACCL_ALGO",
            &["rings", "all_reduce:", ":ring", "all_reduce;ring", ","],
            "set it to an algorithm like",
        ),
        ("RDMACCL_SIMD", &["AVX2", "sse"], "set it to auto, avx512"),
        ("RDMACCL_VERIFY", &["yes", "1"], "set it to auto, always or never"),
    ];
    for (name, values, right) in wrong {
        for value in values {
            let text = refused(&[(name, value)]);
            assert!(text.contains(&format!("{name}={value};")) && text.contains(right), "{text}");
        }
    }
}

#[test]
fn a_refused_secret_is_not_repeated() {
    for (name, value) in [("RDMACCL_SECRET", "tooshort"), ("RDMACCL_ID", "0123456789abcdefg")] {
        let text = refused(&[(name, value)]);
        assert!(text.contains(&format!("{name}=…;")) && !text.contains(value), "{text}");
    }
}

#[test]
fn empty_is_as_good_as_unset_and_space_around_a_value_does_not_count() {
    let config = read(&[("RDMACCL_CREDITS", ""), ("RDMACCL_ROOT", "  "), ("RDMACCL_SIZE", " 4\n")]).unwrap();
    assert_eq!((config.credits, config.root, config.size), (None, None, Some(4)));
}

#[test]
fn twice_the_same_is_right_and_twice_differently_is_not() {
    assert_eq!(read(&[("RDMACCL_CREDITS", "4"), ("RDMACCL_CREDITS", "4")]).unwrap().credits, Some(4));
    let text = refused(&[("RDMACCL_CREDITS", "4"), ("RDMACCL_CREDITS", "5")]);
    assert!(
        text.contains("RDMACCL_CREDITS is set twice, and differently; set it to auto or a number"),
        "{text}"
    );
    let text = refused(&[("RDMACCL_SECRET", &"a".repeat(16)), ("RDMACCL_SECRET", &"b".repeat(16))]);
    assert!(text.contains("RDMACCL_SECRET is set twice") && !text.contains("aaaa"), "{text}");
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_are_ours() {
    let bytes = || OsString::from_vec(b"0123456789abcdef\xff".to_vec());
    let vars = |name: &[u8]| [(OsString::from_vec(name.to_vec()), bytes())];
    for name in ["RDMACCL_SECRET", "RDMACCL_HOSTID", "RDMACCL_CREDITS", "RDMACCL_DEBUG"] {
        let text = Config::from_os_vars(vars(name.as_bytes())).unwrap_err().to_string();
        assert!(text.contains(&format!("{name} is not UTF-8 text; set it to")), "{text}");
        assert!(!text.contains("0123"), "{text}");
    }
    for name in [&b"PATH"[..], b"RDMACCL_\xff", b"\xff\xfe"] {
        assert!(Config::from_os_vars(vars(name)).is_ok());
    }
}

#[test]
fn an_error_is_one_short_line_whatever_the_value_was() {
    let text = refused(&[("RDMACCL_CREDITS", "4\nerror: all is lost\x1b[2J")]);
    assert!(!text.contains(['\n', '\x1b']), "{text:?}");
    let text = refused(&[("RDMACCL_ALGO", &"ring".repeat(100_000))]);
    assert!(text.len() < 1000 && text.contains(" … "), "{text}");
}

#[test]
fn a_name_that_is_nearly_ours_is_told_with_the_nearest() {
    let near = [
        ("RDMACCL_CREDTIS", "RDMACCL_CREDITS"),
        ("rdmaccl_timeout", "RDMACCL_TIMEOUT"),
        ("RDMACCL-SOCKET-IFNAME", "RDMACCL_SOCKET_IFNAME"),
        ("RDMACCLROOT", "RDMACCL_ROOT"),
        ("Rdmaccl_Algo", "RDMACCL_ALGO"),
        ("RDMACCL_TIMEOUT_", "RDMACCL_TIMEOUT"),
    ];
    for (name, meant) in near {
        let vars = || [(name.to_string(), "not a value of anything".to_string())];
        assert_eq!(Config::examine(vars()).unknown, [(name.to_string(), meant)]);
        // It is a warning, not an error: the variable may be of a later version.
        assert_eq!(Config::from_vars(vars()).unwrap(), Config::default());
    }
    let others = ["RDMA_CREDITS", "NCCL_ALGO", "MY_RDMACCL_ROOT", "", "RDMACC"];
    let others = others.map(|name| (name.to_string(), "x".to_string()));
    assert!(Config::examine(others).unknown.is_empty());
}

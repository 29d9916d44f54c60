//! What variables come to.

use super::*;

fn from(name: &str, value: &str) -> Result<Config> {
    Config::from_vars([(name.to_string(), value.to_string())])
}

#[test]
fn the_table_and_the_defaults_agree() {
    for variable in VARIABLES.iter().filter(|v| !v.default.is_empty()) {
        let mut config = from(variable.name, variable.default).unwrap();
        config.from_environment.clear();
        assert_eq!(config, Config::default(), "{}", variable.name);
        assert!(Config::table_markdown().contains(variable.name));
    }
}

#[test]
fn a_wrong_value_is_named_with_what_would_be_right() {
    let wrong = [
        ("RDMACCL_TIMEOUT", "-1"),
        ("RDMACCL_INIT_TIMEOUT", "inf"),
        ("RDMACCL_SOCKET_IFNAME", "^"),
        ("RDMACCL_NET", "roce"),
        ("RDMACCL_TCP_SOCKETS", "65"),
        ("RDMACCL_SOCKET_FAMILY", "5"),
        ("RDMACCL_PORT_RANGE", "9-1"),
        ("RDMACCL_ALGO", "all_reduec:ring"),
        ("RDMACCL_ALGO", "rings"),
        ("RDMACCL_TILE_BYTES", "0"),
        ("RDMACCL_SLOT_BYTES", "99999999999999999G"),
        ("RDMACCL_CREDITS", "0"),
        ("RDMACCL_SIMD", "mmx"),
        ("RDMACCL_VERIFY", "maybe"),
        ("RDMACCL_ID", "00"),
        ("RDMACCL_RANK", "-1"),
        ("RDMACCL_SIZE", "0"),
        ("RDMACCL_ROOT", "host"),
        ("RDMACCL_SECRET", "short"),
        ("RDMACCL_IB_HCA", "a,,b"),
        ("RDMACCL_IB_TC", "dscp:64"),
        ("RDMACCL_IB_SL", "16"),
        ("RDMACCL_IB_TIMEOUT", "32"),
        ("RDMACCL_IB_RETRY_CNT", "8"),
        ("RDMACCL_IB_MTU", "1500"),
        ("RDMACCL_IB_QPS_PER_CONNECTION", "0"),
    ];
    for (name, value) in wrong {
        let error = from(name, value).unwrap_err().to_string();
        let value = if ["RDMACCL_ID", "RDMACCL_SECRET"].contains(&name) { "…" } else { value };
        assert!(error.contains(&format!("{name}={value};")) && error.contains("set it to"), "{error}");
    }
}

#[test]
fn explain_tells_value_and_origin_and_no_secret() {
    let id = "ab".repeat(128);
    let vars = [
        ("RDMACCL_CREDITS", "4"),
        ("RDMACCL_ID", &id),
        ("RDMACCL_SECRET", &id),
        ("PATH", "x"),
        ("RDMACCL_SIZE", ""),
    ];
    let config = Config::from_vars(vars.map(|(n, v)| (n.to_string(), v.to_string()))).unwrap();
    let explained = config.explain();
    assert!(explained.contains(&("RDMACCL_CREDITS", "4".to_string(), Origin::Environment)));
    assert!(explained.contains(&("RDMACCL_SLOT_BYTES", "auto".to_string(), Origin::Default)));
    assert!(explained.iter().all(|(_, value, _)| !value.contains("abab")));
}

#[test]
fn an_algorithm_for_one_collective_or_for_all_that_it_does() {
    let config = from("RDMACCL_ALGO", "all_reduce:tree,ring,oneshot").unwrap();
    assert_eq!(config.algorithm_for(Collective::AllReduce, 4), Some("tree"));
    assert_eq!(config.algorithm_for(Collective::AllGather, 4), Some("ring"));
    assert_eq!(config.algorithm_for(Collective::Gather, 4), Some("oneshot"), "no ring does it");
    assert_eq!(Config::default().algorithm_for(Collective::Gather, 4), None);
}

#[test]
fn an_unknown_variable_is_no_error_and_has_a_nearest_name() {
    assert!(from("RDMACCL_CREDTIS", "4").is_ok());
    assert_eq!(nearest("RDMACCL_CREDTIS"), "RDMACCL_CREDITS");
}

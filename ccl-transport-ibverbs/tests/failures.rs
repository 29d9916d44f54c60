//! What goes wrong, and what is said.

mod hosts;

use ccl_core::transport::conformance::{connect, mesh, receive, send};
use ccl_core::transport::{Fabric, Transport};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport};
use std::time::Duration;

/// What is said when a transport cannot be made.
fn refusal(script: &str, change: impl Fn(&mut IbConfig)) -> String {
    let _fake = Fake::start(script);
    let mut config = hosts::config(0, 8192, 4);
    change(&mut config);
    IbTransport::new(0, 2, &config).map(drop).unwrap_err().to_string()
}

/// What each of two ranks says when they cannot connect.
fn parting(fake: &Fake, change: impl Fn(u32, &mut IbConfig)) -> [String; 2] {
    let new = |rank| {
        let mut config = hosts::config(rank, 8192, 4);
        change(rank, &mut config);
        IbTransport::new(rank, 2, &config).unwrap()
    };
    let mut t: Vec<_> = (0..2).map(new).collect();
    let said = hosts::try_connect(&mut t, &mesh(2, 1)).into_iter().map(|end| end.unwrap_err().to_string());
    let said: Vec<_> = said.collect();
    drop(t);
    assert_eq!(fake.live(), 0, "a failed connection leaves nothing");
    said.try_into().unwrap()
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn a_machine_that_cannot_says_why() {
    let missing = refusal("", |c| c.ib.library = Some("/nonexistent/libibverbs.so.1".into()));
    assert_says(&missing, &["/nonexistent/libibverbs.so.1", "install rdma-core"]);
    assert_says(&refusal("", |_| {}), &["no device", "ib_uverbs"]);
    assert_says(
        &refusal("device h0r0; port h0r0/1 state=down", |_| {}),
        &["h0r0:1", "down", "ip link set up"],
    );
    assert_says(&refusal("device h0r0", |_| {}), &["GID table is empty", "ip address add"]);
    let old = "device h0r0; gid h0r0/1 0 10.0.0.1 type=v1";
    assert_says(&refusal(old, |_| {}), &["no RoCE v2 GID", "RoCE v1", "10.0.0.1"]);
    let index = |c: &mut IbConfig| c.ib.gid_index = Some(5);
    assert_says(&refusal(&hosts::script(1, 1), index), &["RDMACCL_IB_GID_INDEX=5", "10.0.0.1"]);
    let other = |c: &mut IbConfig| c.ib.hca = Some("=mlx5_0".parse().unwrap());
    assert_says(&refusal(&hosts::script(1, 1), other), &["h0r0:1", "RDMACCL_IB_HCA==mlx5_0"]);
    let few = format!("{}; limit h0r0 qp_wr=20", hosts::script(1, 1));
    assert_says(&refusal(&few, |c| c.credits = Some(32)), &["20 work requests", "RDMACCL_CREDITS"]);
    let denied = format!("{}; fail open_device errno=EACCES", hosts::script(1, 1));
    assert_says(&refusal(&denied, |_| {}), &["h0r0", "udev"]);
}

#[test]
fn a_rank_that_cannot_connect_tells_its_peers() {
    let fake = Fake::start(&hosts::script(2, 1));
    fake.run("limit h1r0 qp=0");
    let said = parting(&fake, |_, _| {});
    assert_says(&said[1], &["ibv_create_qp", "h1r0", "RDMACCL_IB_QPS_PER_CONNECTION"]);
    assert_says(&said[0], &["it could not connect", "ibv_create_qp", "rank 1"]);
    fake.run("limit h1r0 qp=100; memlock 4096");
    let said = parting(&fake, |_, _| {});
    assert!(said.iter().all(|text| text.contains("ibv_reg_mr")), "{said:?}");
}

/// The first peer's queue pair is the last that the device has.
#[test]
fn a_device_without_queue_pairs_left_says_how_many_it_has_and_the_cure() {
    let fake = Fake::start(&format!("{}; limit h1r0 qp=1", hosts::script(3, 1)));
    let mut t = hosts::transports(3, 8192, 4);
    let said = hosts::try_connect(&mut t, &mesh(3, 1)).into_iter().map(|end| end.unwrap_err().to_string());
    for (rank, text) in said.enumerate() {
        assert_says(
            &text,
            &["ibv_create_qp", "h1r0 has 1 queue pairs in all", "RDMACCL_IB_QPS_PER_CONNECTION"],
        );
        assert!(rank == 1 || text.contains("it could not connect") && text.contains("rank 1"), "{text}");
    }
    drop(t);
    fake.run("limit h1r0 qp=100; fail create_qp errno=ENOMEM");
    for text in parting(&fake, |_, _| {}) {
        assert_says(&text, &["ibv_create_qp", "end other programs that use it"]);
    }
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let fake = Fake::start(&hosts::script(2, 1));
    let said = parting(&fake, |rank, config| config.credits = Some(4 + rank));
    assert_says(&said[0], &["5 credits", "this rank 4", "must agree"]);
    fake.run("port h1r0/1 mtu=1024");
    let said = parting(&fake, |_, config| config.ib.mtu = Some(4096));
    for text in &said {
        assert_says(text, &["RDMACCL_IB_MTU=4096", "h1r0:1", "1024"]);
    }
    fake.run("nogid h1r0/1 1; gid h1r0/1 1 2001:db8::2");
    let said = parting(&fake, |_, _| {});
    for text in &said {
        assert_says(text, &["10.0.0.1", "2001:db8::2", "RDMACCL_IB_ADDR_FAMILY"]);
    }
}

#[test]
fn the_smaller_packet_size_counts() {
    let _fake = Fake::start(&format!("{}; port h1r0/1 mtu=1024", hosts::script(2, 1)));
    let mut t = hosts::transports(2, 8192, 4);
    connect(&mut t, &mesh(2, 1));
    for (rank, peer) in [(0, 1), (1, 0)] {
        assert_says(&t[rank].describe(peer), &["MTU 1024", "h1r0:1"]);
    }
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    assert!(send(&mut t[0], to, &[1; 8192], 1));
    assert_eq!(receive(&mut t[1], from).unwrap().0.len(), 8192);
}

#[test]
fn a_lost_connection_names_both_ends_the_status_and_the_port() {
    let fake = Fake::start(&hosts::script(2, 1));
    let new = |rank| {
        let recovery = Duration::from_millis(20);
        IbTransport::new(rank, 2, &IbConfig { recovery, ..hosts::config(rank, 8192, 4) }).unwrap()
    };
    let mut t: Vec<_> = (0..2).map(new).collect();
    connect(&mut t, &mesh(2, 1));
    let (to, back) = (t[0].sender(&[1], 0).unwrap(), t[0].receiver(1, 0).unwrap());
    fake.run("down h0r0/1");
    assert!(send(&mut t[0], to, b"x", 0));
    while t[0].peek(back).is_ok() {
        t[0].park(Duration::from_secs(60)).unwrap();
    }
    let ends = ["h0r0:1", "10.0.0.1", "h1r0:1", "10.0.0.2", "rank 1"];
    let status = ["transport retry counter exceeded", "status 12", "vendor 0x81", "the port here is down"];
    for text in [
        t[0].peek(back).unwrap_err().to_string(),
        t[0].reserve(to, 1).unwrap_err().to_string(),
        t[0].reserve(to, 8000).unwrap_err().to_string(),
    ] {
        assert_says(&text, &ends);
        assert_says(&text, &status);
    }
}

/// One peer is lost, the others are not. A request that breaks a rule would do so again over any queue pair.
#[test]
fn other_connections_go_on() {
    let fake = Fake::start(&hosts::script(3, 1));
    let mut t = hosts::transports(3, 8192, 4);
    connect(&mut t, &mesh(3, 1));
    fake.run("complete status=IBV_WC_REM_ACCESS_ERR vendor=7 on=h1r0");
    let to = t[1].sender(&[0], 0).unwrap();
    assert!(send(&mut t[1], to, b"lost", 0));
    for k in 0..100 {
        let (to, from) = (t[1].sender(&[2], 0).unwrap(), t[2].receiver(1, 0).unwrap());
        assert!(send(&mut t[1], to, b"goes on", k));
        assert!(receive(&mut t[2], from).is_some());
    }
    let lost = t[1].receiver(0, 0).unwrap();
    assert_says(&t[1].peek(lost).unwrap_err().to_string(), &["remote access error", "vendor 0x7", "rank 0"]);
}

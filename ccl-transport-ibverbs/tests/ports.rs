//! Ports, GIDs and events, over the fake library.

mod common;

use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::verbs::*;
use common::{End, device, fake_library, open, pair, work};

#[test]
fn a_port_says_what_it_is() {
    let fake = Fake::start(
        "device mlx5_1 ports=2 guid=0x506b4b0300c1d2e3; device mlx5_0
         port mlx5_1/2 link=infiniband state=init mtu=2048 lid=77 sm_lid=1 gids=8 pkeys=3 width=2 speed=128",
    );
    let devices = fake_library().devices().unwrap();
    assert_eq!(devices.iter().map(Device::name).collect::<Vec<_>>(), ["mlx5_0", "mlx5_1"], "by name");
    assert_eq!((devices[1].guid(), devices[1].kernel_name()), (0x506b_4b03_00c1_d2e3, "uverbs0".into()));
    let context = open("mlx5_1");
    assert_eq!((context.limits().ports, context.limits().firmware.as_str()), (2, "fake-1.0"));
    let port = context.port(2).unwrap();
    let expected = Port {
        number: 2,
        state: PortState::Initializing,
        physical_state: PhysicalState::Disabled,
        link_layer: LinkLayer::InfiniBand,
        max_mtu: Mtu::M4096,
        active_mtu: Mtu::M2048,
        max_message: 1 << 30,
        gbps: Some(400.0),
        lid: 77,
        lid_mask_bits: 0,
        sm_lid: 1,
        gids: 8,
        pkeys: 3,
        needs_global_route: false,
    };
    assert_eq!(port, expected);
    assert!(!port.is_active());
    let ethernet = context.port(1).unwrap();
    assert!(ethernet.is_active() && ethernet.needs_global_route);
    fake.run("fail query_port errno=EIO");
    assert!(context.gids(1).unwrap_err().to_string().contains("ibv_query_port of mlx5_1 port 1 failed"));
}

#[test]
fn gids_come_with_their_kind_and_interface() {
    let fake = Fake::start(
        "device left ports=2
         gid left/1 0 fe80::1 type=v1 ifindex=1; gid left/1 1 fe80::1 ifindex=1
         gid left/1 3 10.1.2.3 ifindex=999999; gid left/2 0 fe80::2 type=ib",
    );
    let context = open("left");
    let gids = context.gids(1).unwrap();
    let seen: Vec<_> = gids.iter().map(|e| (e.index, e.gid.to_string(), e.kind)).collect();
    let expected = [
        (0, "fe80::1".to_string(), GidKind::RoceV1),
        (1, "fe80::1".to_string(), GidKind::RoceV2),
        (3, "10.1.2.3".to_string(), GidKind::RoceV2),
    ];
    assert_eq!(seen, expected);
    let name = |entry: &GidEntry| entry.interface.as_ref().unwrap().name.clone();
    assert_eq!((name(&gids[0]), name(&gids[2])), ("lo".into(), "interface-999999".into()));
    assert_eq!(context.gids(2).unwrap()[0].kind, GidKind::InfiniBand);
    assert_eq!(context.gids(2).unwrap()[0].interface, None);
    fake.run("fail query_gid_table errno=EIO");
    let text = context.gids(1).unwrap_err().to_string();
    assert!(text.contains("ib: ibv_query_gid_table of left port 1 failed"), "{text}");
}

#[test]
fn old_libraries_and_kernels_tell_gids_one_by_one() {
    let sysfs = std::env::temp_dir().join(format!("rdmaccl-sysfs-{}", std::process::id()));
    let gids = sysfs.join("ports/1/gid_attrs");
    for (file, text) in [("types/1", "IB/RoCE v1\n"), ("types/2", "RoCE v2\n"), ("ndevs/2", "eth0\n")] {
        let file = gids.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    std::fs::create_dir_all(sysfs.join("device")).unwrap();
    std::fs::write(sysfs.join("device/numa_node"), "1\n").unwrap();
    std::fs::write(sysfs.join("parent"), "eth0\n").unwrap();
    std::fs::write(sysfs.join("ports/1/rate"), "800 Gb/sec (4X XDR)\n").unwrap();
    for (file, text) in
        [("counters/port_rcv_errors", "3\n"), ("counters/what", "N/A\n"), ("hw_counters/resent", "7\n")]
    {
        let file = sysfs.join("ports/1").join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let fake = Fake::start(&format!(
        "device left sysfs={}; port left/1 width=2 speed=0
         gid left/1 1 10.0.0.1 type=v1; gid left/1 2 10.0.0.1; gid left/1 5 10.0.0.2",
        sysfs.display()
    ));
    let context = open("left");
    fake.run("fail query_gid_table errno=EOPNOTSUPP times=2");
    let seen: Vec<_> = context.gids(1).unwrap().into_iter().map(|e| (e.index, e.kind, e.interface)).collect();
    let eth0 = Some(Interface { index: 0, name: "eth0".into() });
    let expected = [(1, GidKind::RoceV1, None), (2, GidKind::RoceV2, eth0), (5, GidKind::Unknown, None)];
    assert_eq!(seen, expected);
    assert_eq!((context.device().numa_node(), context.device().parent()), (Some(1), Some("eth0".into())));
    assert_eq!(context.device().pci(), None, "its device is no PCI address");
    assert_eq!(context.port(1).unwrap().gbps, Some(800.0));
    let counters = context.counters(1);
    assert_eq!(counters, [("port_rcv_errors".to_string(), 3), ("resent".to_string(), 7)]);
    assert_eq!(context.counters(2), []);
    fake.run("fail query_gid errno=EIO");
    let text = context.gids(1).unwrap_err().to_string();
    assert!(text.contains("ib: ibv_query_gid of left port 1 index 0 failed"), "{text}");
    std::fs::remove_dir_all(sysfs).unwrap();
}

#[test]
fn a_place_on_pci_express_is_read_from_sysfs() {
    let sysfs = std::env::temp_dir().join(format!("rdmaccl-pci-{}", std::process::id()));
    let place = sysfs.join("pci0000:3a/0000:3a:02.0/0000:3b:00.0");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("current_link_speed"), "16.0 GT/s PCIe\n").unwrap();
    std::fs::write(place.join("current_link_width"), "16\n").unwrap();
    std::fs::write(place.join("numa_node"), "-1\n").unwrap();
    let folder = sysfs.join("mlx5_0");
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&place, folder.join("device")).unwrap();
    let _fake = Fake::start(&format!("device mlx5_0 sysfs={}", folder.display()));
    let pci = device("mlx5_0").pci().unwrap();
    assert_eq!((pci.address.as_str(), pci.gbps.map(f64::round)), ("0000:3b:00.0", Some(252.0)));
    assert!(pci.path.ends_with("pci0000:3a/0000:3a:02.0/0000:3b:00.0"), "{}", pci.path);
    assert_eq!(device("mlx5_0").numa_node(), None);
    std::fs::remove_dir_all(sysfs).unwrap();
}

#[test]
fn what_happens_to_a_port_is_an_event() {
    let fake = Fake::pair();
    let context = open("left");
    let elsewhere = open("right");
    assert_eq!(context.next_event().unwrap(), None);
    fake.run(
        "down left/1; up left/1; gid left/1 2 10.0.0.3; nogid left/1 2; event left 8; event left 11 port=1",
    );
    fake.run("event left 12 port=1; event left 13 port=1; event left 17 port=1; event left 19");
    let mut events = Vec::new();
    while let Some(event) = context.next_event().unwrap() {
        events.push(event);
    }
    let expected = [
        Event::PortError { port: 1 },
        Event::PortActive { port: 1 },
        Event::GidChange { port: 1 },
        Event::GidChange { port: 1 },
        Event::DeviceFatal,
        Event::LidChange { port: 1 },
        Event::PkeyChange { port: 1 },
        Event::SubnetManagerChange { port: 1 },
        Event::ClientReregister { port: 1 },
        Event::Other { code: 19 },
    ];
    assert_eq!(events, expected);
    assert_eq!(elsewhere.next_event().unwrap(), None);
    assert_eq!(Event::PortError { port: 1 }.to_string(), "port 1 is down");
}

#[test]
fn traffic_over_a_port_that_is_down_fails() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("down right/1 after=1");
    right.receive(0..2);
    // The plan counts what leaves the right port.
    right.post(work(1, Verb::Write(left.at(0)), &[])).unwrap();
    left.post(work(1, Verb::WriteImmediate(right.at(0), 1), &[])).unwrap();
    right.post(work(2, Verb::Write(left.at(0)), &[])).unwrap();
    assert_eq!(left.statuses(), [(1, Status::Success)]);
    let at_right = right.statuses();
    assert_eq!(at_right[..3], [(1, Status::Success), (0, Status::Success), (2, Status::RetryExceeded)]);
    assert_eq!(at_right[3..], [(1, Status::Flushed)], "the receive that was left");
    assert_eq!(right.context.next_event().unwrap(), Some(Event::PortError { port: 1 }));
}

#[test]
fn traffic_that_stalls_goes_on_when_the_port_is_up() {
    let fake = Fake::pair();
    let (left, right) = pair();
    right.receive(0..6);
    fake.run("down left/1 after=2 traffic=stall; up left/1 after=5");
    for id in 0..5 {
        left.post(work(id, Verb::WriteImmediate(right.at(0), id as u32), &[])).unwrap();
    }
    let came = |end: &End| end.poll().iter().filter_map(Completion::immediate).collect::<Vec<_>>();
    assert_eq!(came(&right), [0, 1]);
    assert_eq!(left.poll().len(), 2);
    left.post(work(5, Verb::WriteImmediate(right.at(0), 5), &[])).unwrap();
    assert_eq!(came(&right), [2, 3, 4, 5], "each once, in order");
    assert_eq!(left.poll().len(), 4);
}

#[test]
fn traffic_that_stalled_fails_when_the_port_stays_down() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("down right/1 traffic=stall");
    left.post(work(1, Verb::Write(right.at(0)), &[])).unwrap();
    assert!(left.poll().is_empty());
    fake.run("down right/1");
    assert_eq!(left.statuses(), [(1, Status::RetryExceeded)]);
}

#[test]
fn an_address_that_moves_cuts_the_path() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("nogid right/1 1; gid right/1 2 10.0.0.2");
    // The peer's own answers start from an entry that is no longer there.
    left.post(work(1, Verb::Write(right.at(0)), &[])).unwrap();
    assert_eq!(left.statuses(), [(1, Status::RetryExceeded)]);
}

#[test]
fn who_sends_before_the_peer_is_ready_is_heard_later() {
    let _fake = Fake::pair();
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    right.pair.init(1, 0, Access::REMOTE_WRITE).unwrap();
    left.connect(&right);
    left.fill(0, b"early");
    left.post(work(1, Verb::Write(right.at(0)), &[left.sge(0, 5)])).unwrap();
    assert!(left.poll().is_empty());
    right.pair.ready_to_receive(&right.towards(&left)).unwrap();
    assert_eq!(left.statuses(), [(1, Status::Success)]);
    assert_eq!(right.bytes(0, 5), b"early");
}

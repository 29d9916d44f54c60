//! What goes wrong, over the fake library: each with its message.

mod common;

use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::verbs::*;
use common::{CAPS, End, SENDING, device, fake_library, open, pair, work};

/// The text of an error has all these parts.
#[track_caller]
fn says<T: std::fmt::Debug>(result: ccl_core::Result<T>, parts: &[&str]) {
    let text = result.unwrap_err().to_string();
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

fn queue_pair(end: &End, caps: Caps) -> ccl_core::Result<QueuePair> {
    let setup =
        QueuePairSetup { kind: QueuePairKind::Reliable, sends_to: &end.queue, receives_to: &end.queue, caps };
    end.domain.queue_pair(&setup)
}

#[test]
fn a_machine_without_devices() {
    let fake = Fake::start("");
    says(
        fake_library().devices(),
        &["RDMA: this machine has no device", "ib_uverbs", "/dev/infiniband is passed in"],
    );
    fake.run("device left; fail get_device_list errno=ENOSYS");
    says(fake_library().devices(), &["RDMA: the kernel has no RDMA"]);
    fake.run("fail get_device_list errno=EIO");
    says(fake_library().devices(), &["ib: ibv_get_device_list failed", "dmesg"]);
    assert_eq!(fake_library().devices().unwrap().len(), 1);
}

#[test]
fn a_device_that_cannot_be_opened() {
    let fake = Fake::start("device left; fail open_device errno=EACCES");
    let file = "/dev/infiniband/uverbs0";
    says(
        device("left").open(),
        &["ib: ibv_open_device of left failed", "may not read and write", file, "--device="],
    );
    fake.run("fail open_device errno=ENOENT");
    says(device("left").open(), &["is missing: load ib_uverbs", file]);
    fake.run("fail open_device errno=EIO");
    says(device("left").open(), &["look at the kernel's log (dmesg) for left"]);
    fake.run("fail query_device errno=EIO");
    says(device("left").open(), &["ibv_query_device of left failed"]);
}

#[test]
fn a_port_that_is_not_there() {
    let _fake = Fake::pair();
    let context = open("left");
    says(context.port(2), &["ib: ibv_query_port of left port 2 failed", "its ports are 1 to 1"]);
    says(context.pkey(1, 5), &["ibv_query_pkey of left port 1 index 5", "its table has 1 keys"]);
    assert_eq!(context.pkey(1, 0).unwrap(), 0xffff);
}

#[test]
fn memory_that_cannot_be_registered() {
    let fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    fake.run("memlock 8192");
    let memory = Memory::allocate(8192).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let cure = match limit {
        Some(bytes) => {
            format!("the limit of locked memory is {} KiB (ulimit -l): raise it to unlimited", bytes / 1024)
        }
        None => {
            "locked memory is not limited: free memory, or use less than the 65536 regions of left".into()
        }
    };
    let refused = left.domain.register(&memory, Access::REMOTE_WRITE.and(Access::RELAXED_ORDERING));
    says(refused, &["ib: ibv_reg_mr of 8192 bytes on left failed", &cure]);
    fake.run("fail reg_mr errno=EFAULT");
    says(left.domain.register(&memory, Access::READ), &["all of the range must be mapped"]);
    fake.run("fail reg_mr errno=EOPNOTSUPP");
    says(left.domain.register(&memory, Access::READ), &["cannot register this kind of memory"]);
    fake.run("fail reg_mr errno=EIO");
    says(left.domain.register(&memory, Access::READ), &["dmesg"]);
    let nothing = Extent::of(memory.slice(0, 0));
    says(left.domain.register_foreign(nothing, Access::READ), &["left: a region of no bytes"]);
}

#[test]
fn relaxed_ordering_is_left_out_where_it_cannot_be_had() {
    let fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    let wanted = Access::REMOTE_WRITE.and(Access::RELAXED_ORDERING);
    assert!(left.domain.register(&left.memory, wanted).unwrap().is_relaxed());
    assert!(!left.domain.register(&left.memory, Access::REMOTE_WRITE).unwrap().is_relaxed());
    fake.run("fail reg_mr_iova2 errno=EINVAL");
    assert!(!left.domain.register(&left.memory, wanted).unwrap().is_relaxed());
}

#[test]
fn limits_that_are_reached() {
    let fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    fake.run("limit left qp=1 qp_wr=100 sge=4 inline=128 cq=1 cqe=64 pd=1 ah=0");
    let context = open("left");
    assert_eq!((context.limits().queue_pairs, context.limits().completions), (1, 64));
    says(
        queue_pair(&left, CAPS),
        &[
            "ib: ibv_create_qp of 8 sends, 8 receives and 64 inline bytes on left failed",
            "left has 4096 queue pairs in all",
            "RDMACCL_IB_QPS_PER_CONNECTION",
        ],
    );
    fake.run("limit left qp=10");
    for caps in
        [Caps { sends: 101, ..CAPS }, Caps { send_sges: 5, ..CAPS }, Caps { inline_bytes: 129, ..CAPS }]
    {
        says(queue_pair(&left, caps), &["left takes at most 16384 work requests of 16 pieces"]);
    }
    fake.run("fail create_qp errno=EIO");
    says(queue_pair(&left, CAPS), &["dmesg"]);
    says(
        CompletionQueue::new(&context, 64, None, 0),
        &["ib: ibv_create_cq of 64 entries on left failed", "1 completion queues of at most 64 entries"],
    );
    says(CompletionQueue::new(&context, 65, None, 0), &["of 65 entries"]);
    says(
        ProtectionDomain::new(&context),
        &["ib: ibv_alloc_pd on left failed", "left has 1 protection domains"],
    );
    fake.run("fail create_comp_channel errno=EMFILE");
    says(CompletionChannel::new(&context), &["ib: ibv_create_comp_channel on left failed", "ulimit -n"]);
    says(
        left.domain.address_handle(&Path::to_gid(1, 1, left.gid.gid)),
        &["ib: ibv_create_ah on left port 1 to gid 10.0.0.1 failed"],
    );
}

#[test]
fn paths_that_lead_nowhere() {
    let fake = Fake::pair();
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    says(left.pair.init(2, 0, Access::REMOTE_WRITE), &["on left to init failed", "port 2 must be one of 1"]);
    says(left.pair.init(1, 9, Access::REMOTE_WRITE), &["partition key index 9"]);
    left.pair.init(1, 0, Access::REMOTE_WRITE).unwrap();
    let towards = left.towards(&right);
    let to = |path: Path| left.pair.ready_to_receive(&ReadyToReceive { path, ..towards });
    let nobody = Gid(*b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x09");
    says(
        to(Path { gid: Some(nobody), ..towards.path }),
        &[
            "to ready-to-receive from gid index 1 of port 1 to gid 10.0.0.9 queue pair 0x",
            "nobody answers for gid 10.0.0.9",
            "can be pinged",
        ],
    );
    says(
        to(Path { gid_index: 2, ..towards.path }),
        &["check that gid index 2 of port 1 is set and of the same kind"],
    );
    fake.run("gid left/1 3 10.0.0.1 type=v1");
    says(to(Path { gid_index: 3, ..towards.path }), &["of the same kind and family as gid 10.0.0.2"]);
    says(to(Path::to_lid(1, 4)), &["from port 1 to lid 4"]);
    fake.run("port left/1 mtu=512");
    says(to(towards.path), &["at mtu 1024 failed", "that the path's MTU is at most the port's"]);
    fake.run("fail modify_qp errno=EIO");
    says(to(towards.path), &["look at the kernel's log (dmesg), and that the port is active"]);
    fake.run("port left/1 mtu=4096");
    to(towards.path).unwrap();
    says(
        left.pair.ready_to_send(&ReadyToSend { timeout: 32, ..SENDING }),
        &["to ready-to-send with timeout 32, 7 retries and 7 when not ready failed", "at most 31"],
    );
    says(
        left.domain.address_handle(&Path::to_gid(1, 1, nobody)),
        &["ibv_create_ah on left port 1 to gid 10.0.0.9 failed", "nobody answers"],
    );
}

#[test]
fn states_that_do_not_follow_each_other() {
    let fake = Fake::pair();
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    says(
        left.pair.ready_to_receive(&left.towards(&right)),
        &["ibv_modify_qp of queue pair 0x", "on left to ready-to-receive"],
    );
    says(left.post(work(1, Verb::Send, &[])), &["ibv_post_send", "must be in a state that takes it"]);
    let wrong = DatagramSetup { port: 1, pkey_index: 0, key: 1, first_packet: 0 };
    says(left.pair.start_datagrams(&wrong), &["on left to init failed"]);
    fake.run("fail modify_qp errno=EIO times=2");
    says(left.pair.fail(), &["on left to error failed"]);
    says(left.pair.reset(), &["on left to reset failed"]);
    fake.run("fail query_qp errno=EIO");
    says(left.pair.query(), &["ibv_query_qp of queue pair 0x"]);
}

#[test]
fn a_peer_that_does_not_answer_exhausts_the_retries() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    right.receive(0..2);
    right.pair.fail().unwrap();
    assert_eq!(right.statuses(), [(0, Status::Flushed), (1, Status::Flushed)]);
    left.post(work(1, Verb::Write(right.at(0)), &[])).unwrap();
    left.post(work(2, Verb::Write(right.at(0)), &[])).unwrap();
    let failed = left.poll();
    assert_eq!([failed[0].status(), failed[1].status()], [Status::RetryExceeded, Status::Flushed]);
    let text = failed[0].to_string();
    let number = left.pair.number();
    assert_eq!(
        text,
        format!(
            "work request 1 on queue pair {number:#x}: transport retry counter exceeded (status 12, vendor 0x81)"
        )
    );
    assert!(failed[0].status().cause().contains("RDMACCL_IB_TIMEOUT"));
    assert_eq!(left.pair.query().unwrap().state, QueuePairState::Error);
}

#[test]
fn keys_bounds_and_rights_are_checked_at_both_ends() {
    let _fake = Fake::pair();
    for (case, here, refused_there) in [
        (0, Status::RemoteAccess, true),
        (1, Status::RemoteAccess, true),
        (2, Status::RemoteAccess, true),
        (3, Status::LocalProtection, false),
        (4, Status::ReceiverNotReady, false),
    ] {
        let (left, right) = pair();
        let read_only = right.domain.register(&right.memory, Access::READ).unwrap();
        let dropped = left.domain.register(&left.memory, Access::READ).unwrap();
        let stale = dropped.sge(left.memory.slice(0, 4));
        drop(dropped);
        let (verb, piece) = match case {
            0 => (Verb::Write(Remote { key: 0xdead, ..right.at(0) }), left.sge(0, 4)),
            1 => (Verb::Write(right.at(4092).at(1)), left.sge(0, 4)),
            2 => (Verb::Write(read_only.remote(right.memory.slice_mut(0, 4))), left.sge(0, 4)),
            3 => (Verb::Write(right.at(0)), stale),
            _ => (Verb::WriteImmediate(right.at(0), 1), left.sge(0, 4)),
        };
        left.post(work(1, verb, &[piece])).unwrap();
        assert_eq!(left.statuses(), [(1, here)], "case {case}");
        let event = right.context.next_event().unwrap();
        let refused = Event::QueuePairAccessError { queue_pair: right.pair.number() };
        assert_eq!(event, refused_there.then_some(refused), "case {case}");
        assert_eq!(right.bytes(0, 4), [0; 4], "case {case}");
    }
}

#[test]
fn a_receive_that_is_too_short_fails_both_ends() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    let mut batch = ReceiveBatch::with_capacity(1);
    batch.push(9, Some(right.region.sge_mut(right.memory.slice_mut(0, 3))));
    right.pair.post_receive(&mut batch).unwrap();
    left.post(work(1, Verb::Send, &[left.sge(0, 4)])).unwrap();
    assert_eq!(right.statuses(), [(9, Status::LocalLength)]);
    assert_eq!(left.statuses(), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn packets_longer_than_the_peer_takes_are_refused() {
    let _fake = Fake::pair();
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    for (end, peer, mtu) in [(&left, &right, Mtu::M4096), (&right, &left, Mtu::M256)] {
        end.pair.init(1, 0, Access::REMOTE_WRITE).unwrap();
        end.pair.ready_to_receive(&ReadyToReceive { mtu, ..end.towards(peer) }).unwrap();
        end.pair.ready_to_send(&SENDING).unwrap();
    }
    left.post(work(1, Verb::Write(right.at(0)), &[left.sge(0, 256)])).unwrap();
    left.post(work(2, Verb::Write(right.at(0)), &[left.sge(0, 257)])).unwrap();
    assert_eq!(left.statuses(), [(1, Status::Success), (2, Status::RemoteInvalidRequest)]);
    let expected = Event::QueuePairRequestError { queue_pair: right.pair.number() };
    assert_eq!(right.context.next_event().unwrap(), Some(expected));
}

#[test]
fn a_script_ends_the_nth_send_as_it_likes() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("complete status=IBV_WC_REM_OP_ERR vendor=0x55 nth=2 on=left; complete status=IBV_WC_FATAL_ERR on=right");
    for id in 1..=3 {
        left.post(work(id, Verb::Write(right.at(0)), &[])).unwrap();
    }
    let ended = left.poll();
    let statuses: Vec<_> = ended.iter().map(Completion::status).collect();
    assert_eq!(statuses, [Status::Success, Status::RemoteOperation, Status::Flushed]);
    assert_eq!(ended[1].vendor_error(), 0x55);
}

#[test]
fn a_queue_that_overflows_is_an_event() {
    let _fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    let right = End::new("right", QueuePairKind::Reliable);
    let small = CompletionQueue::new(&left.context, 2, None, 0).unwrap();
    let setup =
        QueuePairSetup { kind: QueuePairKind::Reliable, sends_to: &small, receives_to: &small, caps: CAPS };
    let left = End { pair: left.domain.queue_pair(&setup).unwrap(), queue: small, ..left };
    left.connect(&right);
    right.connect(&left);
    for id in 0..3 {
        left.post(work(id, Verb::Write(right.at(0)), &[])).unwrap();
    }
    assert_eq!(left.queue.entries(), 2);
    assert_eq!(
        left.context.next_event().unwrap(),
        Some(Event::CompletionQueueError { queue: left.queue.id() })
    );
    assert_eq!(left.poll().len(), 2);
}

#[test]
fn polls_and_arming_that_fail_name_the_device() {
    let fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    fake.run("fail poll_cq errno=EIO; fail req_notify_cq errno=EIO; fail post_recv errno=EINVAL");
    says(
        left.queue.poll(&mut [Completion::default()]).map(<[_]>::len),
        &["ib: ibv_poll_cq on left failed: the driver returned -5", "dmesg"],
    );
    says(left.queue.arm(false), &["ib: ibv_req_notify_cq on left failed"]);
    let mut batch = ReceiveBatch::with_capacity(1);
    batch.push(1, None);
    says(left.pair.post_receive(&mut batch), &["ibv_post_receive to queue pair 0x"]);
    assert_eq!(batch.len(), 1);
}

#[test]
#[should_panic(expected = "a piece outside of its region")]
fn pieces_of_other_memory_are_refused() {
    let _fake = Fake::pair();
    let left = End::new("left", QueuePairKind::Reliable);
    left.region.sge(Memory::allocate(4096).unwrap().slice(0, 1));
}

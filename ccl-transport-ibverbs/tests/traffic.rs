//! What queue pairs do, over the fake library.

mod common;

use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::verbs::*;
use common::{CAPS, End, pair, work};
use std::os::fd::{AsFd, BorrowedFd};

#[test]
fn a_write_lands_in_the_peers_memory_and_tells_nobody() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    left.fill(0, b"written");
    left.post(work(1, Verb::Write(right.at(100)), &[left.sge(0, 7)])).unwrap();
    assert_eq!(right.bytes(100, 7), b"written");
    assert_eq!(left.statuses(), [(1, Status::Success)]);
    assert!(right.poll().is_empty());
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_carries_a_number() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    right.receive(40..42);
    left.fill(0, b"head and body");
    // Two pieces, which the peer gets as one.
    let pieces = [left.sge(0, 5), left.sge(9, 4)];
    left.post(work(1, Verb::WriteImmediate(right.at(8), 0x0102_0304), &pieces)).unwrap();
    left.post(work(2, Verb::WriteImmediate(right.at(0), 5), &[])).unwrap();
    let came = right.poll();
    assert_eq!(came.iter().map(Completion::id).collect::<Vec<_>>(), [40, 41]);
    assert_eq!(came[0].immediate(), Some(0x0102_0304));
    assert_eq!((came[0].opcode(), came[0].bytes()), (Opcode::ReceiveWrite, 9));
    assert_eq!(came[0].queue_pair(), right.pair.number());
    assert_eq!((came[1].immediate(), came[1].bytes()), (Some(5), 0));
    assert_eq!(right.bytes(8, 9), b"head body");
    let gone = left.poll();
    assert_eq!((gone[0].opcode(), gone[0].immediate()), (Opcode::Write, None));
}

#[test]
fn inline_bytes_may_change_at_once() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("down left/1 traffic=stall");
    left.fill(0, b"before");
    left.post(SendWork { inline: true, ..work(1, Verb::Write(right.at(0)), &[left.sge(0, 6)]) }).unwrap();
    left.post(work(2, Verb::Write(right.at(6)), &[left.sge(0, 6)])).unwrap();
    left.fill(0, b"later.");
    fake.run("up left/1");
    assert_eq!(right.bytes(0, 12), b"beforelater.");
    assert_eq!(left.statuses().len(), 2);
    assert_eq!(fake.count("inline_sends"), 1);
}

#[test]
fn sends_go_to_the_memory_of_receives() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    let mut batch = ReceiveBatch::with_capacity(1);
    batch.push(9, Some(right.region.sge_mut(right.memory.slice_mut(64, 16))));
    right.pair.post_receive(&mut batch).unwrap();
    left.fill(0, b"to whoever");
    left.post(work(1, Verb::SendImmediate(77), &[left.sge(0, 10)])).unwrap();
    let came = right.poll();
    assert_eq!((came[0].id(), came[0].bytes(), came[0].immediate()), (9, 10, Some(77)));
    assert_eq!(came[0].opcode(), Opcode::Receive);
    assert_eq!(right.bytes(64, 10), b"to whoever");
}

#[test]
fn a_batch_is_one_doorbell_and_only_signaled_sends_complete() {
    let fake = Fake::pair();
    let (left, right) = pair();
    let mut batch = SendBatch::with_capacity(8);
    let piece = [left.sge(0, 1)];
    for id in 0..8 {
        let signaled = id % 4 == 3;
        batch.push(SendWork { signaled, ..work(id, Verb::Write(right.at(id as usize)), &piece) });
    }
    left.pair.post_send(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!((fake.count("post_send"), fake.count("sends"), fake.count("bytes")), (1, 8, 8));
    assert_eq!(left.statuses(), [(3, Status::Success), (7, Status::Success)]);
}

#[test]
fn a_full_queue_takes_what_it_can_and_says_what_to_do() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    let mut batch = SendBatch::with_capacity(10);
    let piece = [left.sge(0, 1)];
    for id in 0..10 {
        batch.push(work(id, Verb::Write(right.at(0)), &piece));
    }
    let text = left.pair.post_send(&mut batch).unwrap_err().to_string();
    assert!(text.contains("ib: ibv_post_send to queue pair 0x") && text.contains("on left failed"), "{text}");
    assert!(text.contains("its queue of 8 is full: poll completions first"), "{text}");
    assert_eq!(batch.len(), 2);
    assert_eq!(left.poll().len(), 8);
    left.pair.post_send(&mut batch).unwrap();
    assert_eq!(left.statuses(), [(8, Status::Success), (9, Status::Success)]);

    let mut receives = ReceiveBatch::with_capacity(10);
    (0..10).for_each(|id| receives.push(id, None));
    let text = right.pair.post_receive(&mut receives).unwrap_err().to_string();
    assert!(
        text.contains("ibv_post_receive to queue pair") && text.contains("its queue of 8 is full"),
        "{text}"
    );
    assert_eq!(receives.len(), 2);
}

#[test]
fn datagrams_reach_whom_their_way_key_and_number_name() {
    let _fake = Fake::pair();
    let (left, right) =
        (End::new("left", QueuePairKind::Datagram), End::new("right", QueuePairKind::Datagram));
    for end in [&left, &right] {
        end.pair
            .start_datagrams(&DatagramSetup { port: 1, pkey_index: 0, key: 0x1234, first_packet: 0 })
            .unwrap();
    }
    let mut batch = ReceiveBatch::with_capacity(2);
    batch.push(1, Some(right.region.sge_mut(right.memory.slice_mut(0, 128))));
    batch.push(2, Some(right.region.sge_mut(right.memory.slice_mut(128, 128))));
    right.pair.post_receive(&mut batch).unwrap();
    let way = left.domain.address_handle(&Path::to_gid(1, 1, right.gid.gid)).unwrap();
    left.fill(0, b"hello");
    let send = |queue_pair, key| {
        let verb = Verb::Datagram { way: &way, queue_pair, key, immediate: Some(3) };
        left.post(work(0, verb, &[left.sge(0, 5)])).unwrap();
    };
    send(right.pair.number(), 0x1234);
    // To a wrong key, and to nobody: lost without a word.
    send(right.pair.number(), 0x4321);
    send(0xfff, 0x1234);
    let came = right.poll();
    assert_eq!(came.len(), 1);
    assert_eq!((came[0].bytes(), came[0].immediate(), came[0].has_route()), (45, Some(3), true));
    assert_eq!(came[0].source_queue_pair(), left.pair.number());
    assert_eq!(right.bytes(40, 5), b"hello");
    assert_eq!(left.statuses(), [(0, Status::Success); 3]);
}

#[test]
fn lids_suffice_on_infiniband() {
    let _fake = Fake::start(
        "device left; device right
         port left/1 link=infiniband lid=11 sm_lid=1; port right/1 link=infiniband lid=12 sm_lid=1
         gid left/1 0 fe80::1 type=ib; gid right/1 0 fe80::2 type=ib",
    );
    let (left, right) =
        (End::new("left", QueuePairKind::Reliable), End::new("right", QueuePairKind::Reliable));
    let port = left.context.port(1).unwrap();
    assert_eq!((port.lid, port.sm_lid, port.link_layer), (11, 1, LinkLayer::InfiniBand));
    assert!(!port.needs_global_route);
    for (end, peer, lid) in [(&left, &right, 12), (&right, &left, 11)] {
        end.pair.init(1, 0, Access::REMOTE_WRITE).unwrap();
        let to = ReadyToReceive { path: Path::to_lid(1, lid), ..end.towards(peer) };
        end.pair.ready_to_receive(&to).unwrap();
        end.pair.ready_to_send(&common::SENDING).unwrap();
    }
    left.fill(0, b"by lid");
    left.post(work(1, Verb::Write(right.at(0)), &[left.sge(0, 6)])).unwrap();
    assert_eq!(right.bytes(0, 6), b"by lid");
    assert_eq!(left.statuses(), [(1, Status::Success)]);
}

#[test]
fn an_armed_queue_wakes_its_channel_once() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    right.receive(0..3);
    right.queue.arm(false).unwrap();
    assert!(!readable(right.channel.fd()));
    assert_eq!(right.channel.next_event().unwrap(), None);
    for id in 0..2 {
        left.post(work(id, Verb::WriteImmediate(right.at(0), 0), &[])).unwrap();
    }
    assert!(readable(right.channel.fd()));
    assert_eq!(right.channel.next_event().unwrap(), Some(right.queue.id()));
    assert_eq!(right.channel.next_event().unwrap(), None, "it was disarmed by the first");
    assert_eq!(right.poll().len(), 2);

    // Armed for solicited completions only.
    right.queue.arm(true).unwrap();
    left.post(SendWork { solicited: true, ..work(3, Verb::WriteImmediate(right.at(0), 0), &[]) }).unwrap();
    assert_eq!(right.channel.next_event().unwrap(), Some(right.queue.id()));
}

#[test]
fn what_is_delayed_comes_so_many_polls_later() {
    let fake = Fake::pair();
    let (left, right) = pair();
    fake.run("delay 2");
    left.post(work(1, Verb::Write(right.at(0)), &[])).unwrap();
    assert_eq!([left.poll().len(), left.poll().len(), left.poll().len()], [0, 0, 1]);
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    let fake = Fake::pair();
    let (left, right) = pair();
    let End { context, channel, queue, domain, memory, region, pair: kept, .. } = left;
    let piece = [region.sge(memory.slice(0, 4))];
    drop((context, channel, queue, domain, memory));
    let before = fake.live();
    let mut batch = SendBatch::with_capacity(1);
    batch.push(work(1, Verb::Write(right.at(0)), &piece));
    kept.post_send(&mut batch).unwrap();
    assert_eq!(kept.query().unwrap().state, QueuePairState::ReadyToSend);
    drop(region);
    assert!(fake.live() < before, "a region is deregistered with its last handle");
    drop(kept);
    drop(right);
    assert_eq!(fake.live(), 0);
}

#[test]
fn threads_share_what_they_like() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    const EACH: u64 = 200;
    std::thread::scope(|scope| {
        for (from, to) in [(&left, &right), (&right, &left)] {
            scope.spawn(move || {
                for id in 0..EACH {
                    from.post(work(id, Verb::Write(to.at(8 * id as usize % 4096)), &[from.sge(0, 0)]))
                        .unwrap();
                    while from.poll().is_empty() {}
                }
            });
        }
    });
    assert!(left.poll().is_empty() && right.poll().is_empty());
}

#[test]
fn a_queue_pair_says_what_it_is_set_to() {
    let _fake = Fake::pair();
    let (left, right) = pair();
    let now = left.pair.query().unwrap();
    assert_eq!((now.state, now.port, now.mtu), (QueuePairState::ReadyToSend, 1, Mtu::M1024));
    assert_eq!((now.peer, now.peer_gid, now.gid_index), (right.pair.number(), right.gid.gid, 1));
    assert_eq!((now.timeout, now.retries, now.caps), (14, 7, CAPS));
    left.pair.reset().unwrap();
    assert_eq!(left.pair.query().unwrap().state, QueuePairState::Reset);
    // From there it can be connected anew.
    right.pair.reset().unwrap();
    left.connect(&right);
    right.connect(&left);
    left.post(work(5, Verb::Write(right.at(0)), &[left.sge(0, 3)])).unwrap();
    assert_eq!(left.statuses(), [(5, Status::Success)]);
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let fd = fd.as_fd();
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).unwrap() == 1
}

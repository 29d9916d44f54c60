//! The verbs layer on the devices of this machine, SoftRoCE's included: each port talks to itself.
//!
//! Where there is no device the test says so; with `RDMACCL_RDMA_DEVICES=required` that is a failure.

use ccl_core::kernels::Buffers;
use ccl_transport_ibverbs::verbs::*;
use std::time::{Duration, Instant};

const CAPS: Caps = Caps { sends: 16, receives: 16, send_sges: 2, receive_sges: 1, inline_bytes: 64 };
/// A device that has not answered by then never will.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
#[allow(clippy::print_stderr)]
fn every_active_port_talks_to_itself() {
    let required = std::env::var("RDMACCL_RDMA_DEVICES").is_ok_and(|v| v == "required");
    let devices = match library(None).and_then(Library::devices) {
        Ok(devices) => devices,
        Err(why) if required => panic!("{why}"),
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let mut ports = 0;
    for device in devices {
        let context = device.open().unwrap();
        for number in 1..=context.limits().ports {
            let port = context.port(number).unwrap();
            let gids = context.gids(number).unwrap();
            eprintln!("{} {:?} {port:?} {gids:?}", device.name(), context.limits());
            let gid = gids.into_iter().rev().find(|entry| entry.kind != GidKind::RoceV1);
            if let Some(gid) = gid.filter(|_| port.is_active()) {
                let path = Path { lid: port.lid, ..Path::to_gid(number, gid.index, gid.gid) };
                connection(&context, &port, path);
                datagram(&context, path);
                ports += 1;
            }
        }
    }
    assert!(ports > 0 || !required, "no port is active");
}

fn connection(context: &Context, port: &Port, path: Path) {
    let channel = CompletionChannel::new(context).unwrap();
    let queue = CompletionQueue::new(context, 64, Some(&channel), 0).unwrap();
    let domain = ProtectionDomain::new(context).unwrap();
    let memory = Memory::allocate(1 << 16).unwrap();
    let region = domain.register(&memory, Access::REMOTE_WRITE.and(Access::RELAXED_ORDERING)).unwrap();
    let setup =
        QueuePairSetup { kind: QueuePairKind::Reliable, sends_to: &queue, receives_to: &queue, caps: CAPS };
    let ends = [domain.queue_pair(&setup).unwrap(), domain.queue_pair(&setup).unwrap()];
    for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        end.init(path.port, 0, Access::REMOTE_WRITE).unwrap();
        let to = ReadyToReceive {
            path,
            mtu: port.active_mtu,
            peer: peer.number(),
            first_packet: 5,
            reads_answered: 1,
            not_ready_timer: 12,
        };
        end.ready_to_receive(&to).unwrap();
        let with =
            ReadyToSend { timeout: 14, retries: 7, not_ready_retries: 7, first_packet: 5, reads_started: 1 };
        end.ready_to_send(&with).unwrap();
    }
    let now = ends[0].query().unwrap();
    assert_eq!(
        (now.state, now.peer, now.mtu),
        (QueuePairState::ReadyToSend, ends[1].number(), port.active_mtu)
    );
    assert!(ends[0].caps().inline_bytes >= CAPS.inline_bytes);

    let mut receives = ReceiveBatch::with_capacity(2);
    (0..2).for_each(|id| receives.push(100 + id, None));
    ends[1].post_receive(&mut receives).unwrap();
    memory.slice_mut(0, 9).copy_from(Buffers::new(b"some text", &mut []).input());
    queue.arm(false).unwrap();
    let bytes = [region.sge(memory.slice(0, 4)), region.sge(memory.slice(5, 4))];
    let long = [region.sge(memory.slice(0, 30_000))];
    let at = |offset| region.remote(memory.slice_mut(offset, 1));
    let work =
        |id, verb, bytes, inline, signaled| SendWork { id, verb, bytes, inline, signaled, solicited: false };
    let mut batch = SendBatch::with_capacity(3);
    batch.push(work(1, Verb::Write(at(32_768)), &long, false, false));
    batch.push(work(2, Verb::WriteImmediate(at(63_000), 0xdead_beef), &bytes, true, false));
    batch.push(work(3, Verb::WriteImmediate(at(0), 7), &[], false, true));
    ends[0].post_send(&mut batch).unwrap();
    let mut came = poll(&queue, 3);
    came.sort_by_key(Completion::id);
    assert!(came.iter().all(Completion::is_success), "{came:?}");
    assert_eq!(came.iter().map(Completion::id).collect::<Vec<_>>(), [3, 100, 101]);
    assert_eq!((came[1].immediate(), came[1].bytes()), (Some(0xdead_beef), 8));
    assert_eq!((came[2].immediate(), came[2].bytes()), (Some(7), 0));
    assert_eq!((came[1].opcode(), came[1].queue_pair()), (Opcode::ReceiveWrite, ends[1].number()));
    assert_eq!(memory.read::<8>(63_000), *b"sometext");
    assert_eq!(memory.read::<9>(32_768), *b"some text");
    assert_eq!(channel.next_event().unwrap(), Some(queue.id()));

    // A key that nobody has: the sender is told, and both ends are in error.
    let wrong = Remote { key: 0x00bad0bd, ..at(0) };
    batch.push(work(4, Verb::Write(wrong), &bytes, false, true));
    ends[0].post_send(&mut batch).unwrap();
    let failed = poll(&queue, 1);
    assert_eq!((failed[0].id(), failed[0].status()), (4, Status::RemoteAccess));
    assert_eq!(ends[0].query().unwrap().state, QueuePairState::Error);
}

fn datagram(context: &Context, path: Path) {
    let queue = CompletionQueue::new(context, 16, None, 0).unwrap();
    let domain = ProtectionDomain::new(context).unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let region = domain.register(&memory, Access::LOCAL_WRITE).unwrap();
    let setup =
        QueuePairSetup { kind: QueuePairKind::Datagram, sends_to: &queue, receives_to: &queue, caps: CAPS };
    let end = domain.queue_pair(&setup).unwrap();
    end.start_datagrams(&DatagramSetup { port: path.port, pkey_index: 0, key: 0x11, first_packet: 0 })
        .unwrap();
    let mut receives = ReceiveBatch::with_capacity(1);
    receives.push(1, Some(region.sge_mut(memory.slice_mut(0, 256))));
    end.post_receive(&mut receives).unwrap();
    memory.write(1024, *b"hello");
    let way = domain.address_handle(&path).unwrap();
    let mut batch = SendBatch::with_capacity(1);
    batch.push(SendWork {
        id: 2,
        verb: Verb::Datagram { way: &way, queue_pair: end.number(), key: 0x11, immediate: Some(9) },
        bytes: &[region.sge(memory.slice(1024, 5))],
        inline: false,
        signaled: true,
        solicited: false,
    });
    end.post_send(&mut batch).unwrap();
    let mut came = poll(&queue, 2);
    came.sort_by_key(Completion::id);
    assert!(came.iter().all(Completion::is_success), "{came:?}");
    assert_eq!((came[0].bytes(), came[0].immediate()), (45, Some(9)));
    assert_eq!(came[0].source_queue_pair(), end.number());
    assert_eq!(memory.read::<5>(40), *b"hello");
}

/// So many completions; on a real device they take their time.
fn poll(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut came = Vec::new();
    while came.len() < count {
        came.extend_from_slice(queue.poll(&mut [Completion::default(); 4]).unwrap());
        assert!(start.elapsed() < PATIENCE, "only {came:?}");
    }
    came
}

//! What a collective gives the devices to do, against the least that its plan needs: a message that hides in a step is
//! found here. All ranks are stepped by one thread, so every run does exactly the same.

mod hosts;

use ccl_core::algorithms::by_name;
use ccl_core::engine::{Layout, Progress, Schedule, Task};
use ccl_core::kernels::{Buffers, Reducer};
use ccl_core::plan::{Program, Sink, Spec};
use ccl_core::transport::Transport as _;
use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::{Collective, DataType, Rank, ReduceOp};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbTransport, Work};
use std::sync::Arc;

const SLOT_BYTES: usize = 8192;
const CREDITS: u32 = 32;
const CHANNELS: u16 = 2;
const HEADER: u64 = 24;
/// Receives that are posted together.
const BATCH: u64 = 16;
const CALLS: u64 = 320;

/// One rank and its call.
struct Member {
    transport: IbTransport,
    schedule: Schedule,
    task: Arc<Task>,
    send: Vec<u8>,
    recv: Vec<u8>,
}

impl Member {
    fn new(mut transport: IbTransport, spec: &Spec, program: &Program, rank: Rank, bytes: usize) -> Member {
        let schedule = Schedule::bind(spec, rank, program, &mut transport).unwrap();
        let layout = Layout::new(spec, rank, bytes / 4, DataType::F32, SLOT_BYTES).unwrap();
        let reducer = Reducer::new(DataType::F32, ReduceOp::Sum, spec.ranks).unwrap();
        let task = Arc::new(schedule.task(layout, reducer).unwrap());
        let send = 1.0f32.to_ne_bytes().repeat(bytes / 4);
        Member { transport, schedule, task, send, recv: vec![0; bytes] }
    }

    fn is_done(&mut self) -> bool {
        let buffers = Buffers::new(&self.send, &mut self.recv);
        self.schedule.step(&mut self.transport, &buffers).unwrap() == Progress::Done
    }

    /// Polls that found nothing to take, and those that found no credit.
    fn stalls(&self) -> u64 {
        self.transport.counters().iter().map(|(_, counters)| counters.stalls).sum()
    }
}

/// What a rank's devices were given.
struct Cost {
    work: Work,
    stalls: u64,
    /// Completion queues, each of which is asked in a poll of the device.
    queues: u64,
    /// Messages that the plan has the rank send, and receive.
    sends: u64,
    receives: u64,
}

/// The cost of each rank, and all bytes that travelled.
fn run(fake: &Fake, algorithm: &str, ranks: u32, bytes: usize) -> (Vec<Cost>, u64) {
    let chosen = by_name(algorithm).unwrap();
    let parts = chosen.parts(Collective::AllReduce, ranks.into()).unwrap();
    let spec = Spec::new(Collective::AllReduce, ranks, 0, parts);
    let mut transports = hosts::transports(ranks, SLOT_BYTES, CREDITS);
    let queues = fake.count("create_cq");
    connect(&mut transports, &mesh(ranks, CHANNELS));
    let queues = (fake.count("create_cq") - queues) / u64::from(ranks);
    let programs: Vec<_> = (0..ranks).map(|rank| chosen.program(&spec, rank)).collect();
    let tiles = Layout::new(&spec, 0, bytes / 4, DataType::F32, SLOT_BYTES).unwrap().tiles() as u64;
    let mut members: Vec<_> = transports
        .into_iter()
        .zip(0..)
        .map(|(transport, rank)| Member::new(transport, &spec, &programs[rank as usize], rank, bytes))
        .collect();
    let before = (fake.count("bytes"), members.iter().map(|m| m.transport.work()).collect::<Vec<_>>());
    for call in 0..CALLS {
        members.iter_mut().for_each(|m| m.schedule.start(&m.task, call, call).unwrap());
        let mut done = vec![false; members.len()];
        while done.contains(&false) {
            for (member, done) in members.iter_mut().zip(&mut done) {
                *done = *done || member.is_done();
            }
        }
    }
    let right = (ranks as f32).to_ne_bytes();
    assert!(members.iter().all(|m| m.recv.chunks_exact(4).all(|word| word == right)));
    let cost = |(rank, member): (usize, &Member)| Cost {
        work: since(member.transport.work(), before.1[rank]),
        stalls: member.stalls(),
        queues,
        sends: CALLS * tiles * messages(&programs[rank], None),
        receives: CALLS * tiles * programs.iter().map(|p| messages(p, Some(rank as Rank))).sum::<u64>(),
    };
    (members.iter().enumerate().map(cost).collect(), fake.count("bytes") - before.0)
}

/// Messages of a program for each tile, to all ranks or to one.
fn messages(program: &Program, to: Option<Rank>) -> u64 {
    let sinks = program.lanes.iter().flat_map(|lane| &lane.moves).flat_map(|one| &one.into);
    let peers = sinks.flat_map(|sink| match sink {
        Sink::Links(links) => &links.peers[..],
        Sink::Output(_) | Sink::Scratch(_) => &[],
    });
    peers.filter(|peer| to.is_none_or(|to| to == **peer)).count() as u64
}

fn since(now: Work, then: Work) -> Work {
    let mut work = now;
    work.sends -= then.sends;
    work.inline -= then.inline;
    work.signaled -= then.signaled;
    work.credits -= then.credits;
    work.receives -= then.receives;
    work.doorbells -= then.doorbells;
    work.polls -= then.polls;
    work.completions -= then.completions;
    work
}

/// Exchanges return their credits with what they send anyway; a ring of more than two goes in one direction only.
#[test]
fn a_collective_costs_what_its_plan_needs() {
    let fake = Fake::start(&hosts::script(4, 1));
    for (algorithm, ranks, bytes, each, returns) in [
        ("oneshot", 2, 8, 1, false),
        ("oneshot", 2, 8192, 1, false),
        ("oneshot", 4, 8, 3, false),
        ("recursive", 4, 128, 2, false),
        ("recursive", 4, 4096, 2, false),
        ("twoshot", 2, 256, 2, false),
        ("ring", 2, 16384, 2, false),
        ("ring", 4, 256, 6, true),
        ("ring", 4, 32768, 6, true),
        // Four pieces of each chunk.
        ("ring", 2, 65536, 8, false),
    ] {
        let name = format!("{algorithm} of {bytes} bytes on {ranks} ranks");
        let (costs, travelled) = run(&fake, algorithm, ranks, bytes);
        let mut payload = 0;
        for (rank, Cost { work, stalls, queues, sends, receives }) in costs.iter().enumerate() {
            let name = format!("{name}, rank {rank}: {work:?}, {stalls} stalls");
            assert_eq!(*sends, CALLS * each, "{name}: the plan");
            assert_eq!(work.sends - work.credits, *sends, "{name}: one work request for each message");
            let most = if returns { sends / u64::from(CREDITS / 2) } else { 0 };
            assert!(work.credits <= most, "{name}: credits that go back by themselves");
            let is_short = bytes <= 256;
            assert_eq!(work.inline, if is_short { *sends } else { 0 }, "{name}: inline or by slot");
            // Each message and each return takes a receive; they are posted together.
            assert!(work.receives <= receives + most, "{name}");
            let doorbells = work.sends + work.receives / BATCH;
            assert_eq!(work.doorbells, doorbells, "{name}: one post for each send, or for 16 receives");
            // Whoever polls has looked for something first: it took it, or was told that there is none.
            assert!(work.polls <= queues * (receives + stalls), "{name}: polls");
            assert!(work.signaled <= work.sends / 32 + 1, "{name}: completions that were asked for");
            assert!(work.completions <= receives + most + work.signaled + 1, "{name}: completions");
            payload += bytes_of(algorithm, ranks, bytes as u64);
        }
        let messages: u64 = costs.iter().map(|cost| cost.sends).sum();
        assert_eq!(travelled, CALLS * payload + HEADER * messages, "{name}: bytes");
    }
}

/// What each rank must send of a call.
fn bytes_of(algorithm: &str, ranks: u32, bytes: u64) -> u64 {
    let n = u64::from(ranks);
    match algorithm {
        "oneshot" => (n - 1) * bytes,
        "recursive" => u64::from(ranks.ilog2()) * bytes,
        _ => 2 * (n - 1) * bytes / n,
    }
}

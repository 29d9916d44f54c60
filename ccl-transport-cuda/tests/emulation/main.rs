//! The kernels on threads of the CPU: the bits of the host's engine, no data race, bounded waits, and planted bugs that are found.
//!
//! `cargo xtask kernels` runs it; it needs g++ with ThreadSanitizer.

// CI shows what was run, and what each planted bug looked like.
#![allow(clippy::print_stdout)]

mod case;
mod emulator;
mod random;
mod ways;

use case::{Call, What, may_be_in_place};
use ccl_core::algorithms;
use ccl_core::engine::Blocks;
use ccl_core::plan::{Collective, Placement, Plan};
use ccl_core::{DataType, ReduceOp};
use ccl_transport_cuda::program::{self, Geometry, Rule};
use emulator::{Emulator, Outcome, Why};
use random::Random;
use ways::Ways;

/// Seconds that a run may take: a few, and many times as long on a machine that is busy with other things, where every turn of a
/// wait costs somebody else's time slice.
const SECONDS: u64 = 900;

fn plan(name: &str, collective: Collective, placement: impl Into<Placement>, root: u32) -> Plan {
    algorithms::plan(algorithms::by_name(name).expect("known"), collective, placement, root)
        .expect("it does that")
}

/// Every plan of these placements.
fn plans() -> Vec<Plan> {
    let placements =
        [(2, 1), (3, 1), (4, 1), (5, 1), (4, 2)].map(|(n, hosts)| Placement::even(n, hosts).expect("even"));
    let mut plans = Vec::new();
    for placement in placements {
        for collective in Collective::ALL {
            let root = if collective.rooted() { placement.ranks - 1 } else { 0 };
            let all = algorithms::all().iter();
            plans.extend(
                all.filter_map(|algorithm| algorithms::plan(*algorithm, collective, placement, root)),
            );
        }
    }
    plans
}

/// Runs calls; each must give the host's bits, nobody may give up or race.
fn agree(emulator: &Emulator, name: &str, calls: &[Call]) {
    let cases: Vec<_> = (1..).zip(calls).map(|(seed, call)| call.write(seed)).collect();
    let outcome = emulator.run(name, &cases, SECONDS);
    assert_eq!(outcome.cases.len(), calls.len());
    for (call, played) in calls.iter().zip(&outcome.cases) {
        assert!(played.failures.is_empty() && played.wrong == 0, "{}: {played:?}", call.name());
    }
    assert_eq!(outcome.races, 0, "{}", outcome.first_race);
    println!("{name}: {} calls as the host's engine makes them, no race", calls.len());
}

/// A type with an operator that fits it.
fn operator(random: &mut Random, nth: usize) -> (DataType, ReduceOp) {
    // Every type in turn, and all operators by chance.
    let dtype = DataType::ALL[nth % DataType::ALL.len()];
    loop {
        let op = random.pick(&ReduceOp::ALL);
        if op.check(dtype).is_ok() {
            return (dtype, op);
        }
    }
}

#[test]
fn kernels_and_programs_have_the_same_numbers() {
    let layout = Emulator::build(None).layout();
    let says = |name: &str| {
        let number = layout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        number.unwrap_or_else(|| panic!("nothing of {name}")).parse::<usize>().expect("a number")
    };
    assert_eq!(says("version"), usize::from(program::VERSION));
    assert_eq!(says("operands"), program::MAX_OPERANDS);
    assert_eq!(says("scratch"), program::MAX_SCRATCH);
    assert_eq!(says("ends"), program::MAX_ENDS);
    assert_eq!((says("ranks"), says("blocks")), (program::MAX_TEAM, program::MAX_TEAM_BLOCKS));
    assert_eq!((says("flags"), says("packet")), (program::TEAM_FLAGS, 16));

    // Where a word with this mark is: field by field, with a mark that nothing else has.
    let place = |words: &[u64], mark: u64| 8 * words.iter().position(|word| *word == mark).expect("there");
    let wire = program::Wire { slots: 1, flags: 2, credit: 3, count: 4 }.words();
    assert_eq!(size_of_val(&wire), says("wire"));
    for (mark, field) in (1..).zip(["slots", "flags", "credit", "count"]) {
        assert_eq!(place(&wire, mark), says(&format!("Wire.{field}")), "{field}");
    }
    let rule = Rule::new(DataType::F32, ReduceOp::Avg, 3).expect("fits");
    let call = program::Call {
        program: 101,
        wires: 102,
        input: 103,
        output: 104,
        scratch: 105,
        team: 106,
        alarm: 107,
        reports: 108,
        limit: 109,
        count: 110,
        tag: 111,
        log: 112,
        rule,
        when: 113,
        wanted: 114,
    };
    let words = call.words();
    let fields = [
        "program", "wires", "input", "output", "scratch", "team", "alarm", "reports", "limit", "count",
        "tag", "log",
    ];
    assert_eq!(size_of_val(&words), says("call"));
    for (mark, field) in (101..).zip(fields) {
        assert_eq!(place(&words, mark), says(&format!("Call.{field}")), "{field}");
    }
    assert_eq!(words[says("Call.rule") / 8..][..5], rule.words());
    assert_eq!([113, 114].map(|mark| place(&words, mark)), ["Call.when", "Call.wanted"].map(says));
    let rules =
        ["op", "scales", "factor", "turn", "shift", "flip"].map(|field| says(&format!("Rule.{field}")));
    assert_eq!(rules, [0, 4, 8, 16, 24, 32]);
    let launch = program::Launch::Gang(7, 9).words();
    assert_eq!((size_of_val(&launch), says("Launch.own")), (says("launch"), 0));
    assert_eq!((place(&launch, 7), place(&launch, 9)), (says("Launch.gang"), says("Launch.blocks")));
    let member = program::Member { flags: 11, stage: 12, packets: 13, input: 14, output: 15, offers: 18 };
    let team = program::Team {
        rank: 0,
        room: 8,
        packet_room: 9,
        epochs: 10,
        agreed: 16,
        book: 17,
        members: vec![member],
        everywhere: 19,
        received: 20,
    };
    let words = team.words().expect("a team");
    assert_eq!(
        (size_of_val(&words[..]), words[0], says("Team.rank"), says("Team.ranks")),
        (says("team"), 1 << 32, 0, 4)
    );
    let fields = ["room", "packet_room", "epochs", "flags", "stage", "packets", "input", "output"];
    for (mark, field) in (8..).zip(fields) {
        assert_eq!(place(&words, mark), says(&format!("Team.{field}")), "{field}");
    }
    for (mark, field) in (16..).zip(["agreed", "book", "offers", "everywhere", "received"]) {
        assert_eq!(place(&words, mark), says(&format!("Team.{field}")), "{field}");
    }
    use program::book;
    let words = |name: &str| says(name) / 8;
    assert_eq!((says("registered"), says("offer"), says("agreed")), (book::REGISTERED, 32, 16));
    assert_eq!((words("Book.own"), words("Book.reached")), (book::own(0), book::reached(0, 0)));
    assert_eq!((words("Book.missing"), words("Book.made")), (book::missing(0), book::MADE));
    assert_eq!(words("book"), book::WORDS);
    let report = ["failure", "lane", "move", "tile", "operand", "expected", "found"]
        .map(|field| says(&format!("Report.{field}")));
    assert_eq!((report, says("report")), ([0, 8, 12, 16, 20, 24, 32], 8 * program::Report::WORDS));
}

/// One test, so that programs of so many threads do not run beside each other.
#[test]
fn kernels_do_what_the_host_does() {
    let emulator = Emulator::build(None);
    let mut random = Random(17);

    let plans = plans();
    let mut calls: Vec<_> = (plans.into_iter().enumerate())
        .map(|(nth, plan)| {
            let (dtype, op) = operator(&mut random, nth);
            let count = [0, 1, 3, 17, 70, 133, 260][random.below(7)];
            let in_place = may_be_in_place(&plan) && random.below(3) == 0;
            let (rounds, threads) = (1 + random.below(2), random.pick(&[2, 3, 4]));
            let tile_bytes = random.pick(&[64, 128]);
            let geometry = Geometry {
                slot_bytes: 128,
                credits: random.pick(&[1, 2, 4]),
                shares: random.pick(&[1, 1, 2]),
            };
            let misaligned = random.pick(&[0, 0, 0, 8]);
            // Before the first piece, and so that numbers of 32 and of 16 bits begin anew in the call.
            let start = random.pick(&[0, 0, 0xffff_fffc, 0xfffd]);
            // The real credits are what the plan was proved with.
            let geometry = Geometry { credits: geometry.credits.max(least_credits(&plan)), ..geometry };
            Call {
                in_place,
                tile_bytes,
                rounds,
                threads,
                geometry,
                misaligned,
                start,
                ..Call::new(What::Interpret, plan, count, dtype, op)
            }
        })
        .collect();
    // Every type with every operator, over a plan that combines few and one that combines all.
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok()) {
            let name = if op.code() % 2 == 0 { "oneshot" } else { "ring" };
            let plan = plan(name, Collective::AllReduce, 3, 0);
            let geometry = Geometry { slot_bytes: 512, credits: 2, shares: 1 };
            calls.push(Call {
                rounds: 1,
                threads: 2,
                tile_bytes: 512,
                geometry,
                ..Call::new(What::Interpret, plan, 331, dtype, op)
            });
        }
    }
    calls.extend(uneven(&mut random));
    calls.extend(transfers(&mut random));
    agree(&emulator, "interpreter", &calls);

    let mut calls = Vec::new();
    for ranks in [1, 2, 4] {
        let ways = [
            (What::TwoShot, "twoshot"),
            (What::Staged, "twoshot"),
            (What::OneShot, "oneshot"),
            (What::Packets, "oneshot"),
            (What::Multicast, "oneshot"),
        ];
        for (what, name) in ways {
            for dtype in [DataType::F32, DataType::F16, DataType::BF16] {
                for (count, start) in [(1, 0), (37, 0xffff_fffd), (300, 7)] {
                    let plan = plan(name, Collective::AllReduce, ranks, 0);
                    let op = random.pick(&[ReduceOp::Sum, ReduceOp::Prod]);
                    let (in_place, misaligned) = (random.below(2) == 0, random.pick(&[0, 0, 4]));
                    calls.push(Call {
                        rounds: 5,
                        in_place,
                        misaligned,
                        start,
                        ..Call::new(what, plan, count, dtype, op)
                    });
                }
            }
        }
    }
    // What does not fit goes in rounds: a line of each part at a time; four of them, and the last round two, which are other blocks' lines then unless
    // blocks keep theirs; and one that is cut off.
    for ranks in [2, 4] {
        for (room, count) in [(128, 300), (512, 160 * ranks as usize), (512, 100 * ranks as usize + 1)] {
            let plan = plan("twoshot", Collective::AllReduce, ranks, 0);
            let call = Call::new(What::Staged, plan, count, DataType::F32, ReduceOp::Sum);
            calls.push(Call { rounds: 5, room: Some(room), start: 0xffff_fffd, ..call });
        }
    }
    for what in [What::Meet, What::Ping] {
        let plan = plan("oneshot", Collective::AllReduce, 3, 0);
        calls.push(Call { start: 0xffff_fffe, ..Call::new(what, plan, 5, DataType::F32, ReduceOp::Sum) });
    }
    agree(&emulator, "all_reduce", &calls);

    // As large as the rest is small: 4 ranks x 2 blocks x 8 threads.
    let mut calls = Vec::new();
    for (what, name) in [
        (What::Interpret, "ring"),
        (What::Interpret, "twoshot"),
        (What::TwoShot, "twoshot"),
        (What::Staged, "twoshot"),
        (What::Packets, "oneshot"),
        (What::Multicast, "oneshot"),
    ] {
        let plan = plan(name, Collective::AllReduce, 4, 0);
        let geometry = Geometry { slot_bytes: 1024, credits: 2, shares: 2 };
        calls.push(Call {
            threads: 8,
            tile_bytes: 1024,
            geometry,
            ..Call::new(what, plan, 4001, DataType::BF16, ReduceOp::Sum)
        });
    }
    agree(&emulator, "wide", &calls);
    waits_end(&emulator);
}

/// Calls whose blocks differ in length, some of them empty.
fn uneven(random: &mut Random) -> Vec<Call> {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    let of = [
        ("ring", AllGather),
        ("oneshot", AllGather),
        ("ring", ReduceScatter),
        ("oneshot", ReduceScatter),
        ("exchange", AllToAll),
        ("exchange", Gather),
        ("exchange", Scatter),
    ];
    let mut calls = Vec::new();
    for (name, collective) in of {
        for ranks in [2, 4] {
            let plan = plan(name, collective, ranks, 0);
            // Elements from the one rank to the other, where each pair has its own number.
            let count = |from: u32, to: u32| match collective {
                AllToAll => (from * 37 + to * 11) as usize % 90,
                ReduceScatter | Scatter => [70, 0, 33, 5][to as usize],
                _ => [70, 0, 33, 5][from as usize],
            };
            let blocks = (0..ranks).map(|rank| {
                let side = |blocks, count: &dyn Fn(u32) -> usize| match blocks {
                    0 => Vec::new(),
                    1 => Blocks::packed(&[count(rank)]),
                    _ => Blocks::packed(&(0..ranks).map(count).collect::<Vec<_>>()),
                };
                let input = side(collective.input_blocks(ranks, rank, 0), &|to| count(rank, to));
                let output = side(collective.output_blocks(ranks, rank, 0), &|from| count(from, rank));
                Blocks { input, output }
            });
            let blocks = Some(blocks.collect());
            let (dtype, op) = (random.pick(&[DataType::F32, DataType::I32]), ReduceOp::Sum);
            let geometry = Geometry { slot_bytes: 64, credits: least_credits(&plan), shares: 2 };
            calls.push(Call {
                blocks,
                tile_bytes: 64,
                geometry,
                ..Call::new(What::Interpret, plan, 0, dtype, op)
            });
        }
    }
    calls
}

/// Sends and receives, several from one rank to another among them, and some of nothing.
fn transfers(random: &mut Random) -> Vec<Call> {
    let one = |nth: usize| {
        let ranks = 2 + nth % 3;
        let way = |_| {
            (random.below(ranks), random.below(ranks), [0, 1, 64, 128, random.below(700)][random.below(5)])
        };
        let ways = Ways { ranks, all: (0..1 + nth).map(way).collect() };
        let plan = plan("exchange", Collective::AllToAll, ranks as u32, 0);
        let geometry =
            Geometry { slot_bytes: 64, credits: random.pick(&[1, 2, 4]), shares: random.pick(&[1, 2]) };
        let start = random.pick(&[0, 0xffff_fffc, 0xfffd]);
        let call = Call::new(What::Interpret, plan, 0, DataType::U8, ReduceOp::Sum);
        Call { ways: Some(ways), tile_bytes: 64, geometry, start, ..call }
    };
    (0..12).map(one).collect()
}

/// With how few credits a plan gets through.
fn least_credits(plan: &Plan) -> u32 {
    let proved = |credits| {
        let limits = ccl_core::verify::Limits { credits, ..Default::default() };
        ccl_core::verify::verify(plan, &limits).is_ok()
    };
    [1, 2, 4, 8, 16, 32].into_iter().find(|credits| proved(*credits)).expect("a proved plan")
}

/// Every wait ends: by the host's word, by the clock, or because a peer makes another call; and says who waited for what. A call that
/// is too long for its team does not begin.
fn waits_end(emulator: &Emulator) {
    let base = |what, name| {
        let plan = plan(name, Collective::AllReduce, 3, 0);
        Call { rounds: 1, ..Call::new(what, plan, 50, DataType::F32, ReduceOp::Sum) }
    };
    let all = [
        base(What::Interpret, "ring"),
        base(What::TwoShot, "twoshot"),
        base(What::Staged, "twoshot"),
        base(What::OneShot, "oneshot"),
        base(What::Packets, "oneshot"),
        base(What::Multicast, "oneshot"),
        base(What::Meet, "oneshot"),
        base(What::Ping, "oneshot"),
    ];
    let mut calls = Vec::new();
    for call in &all {
        calls.push(Call { absent: Some(0), abort_after: 50_000_000, ..call.clone() });
        calls.push(Call { absent: Some(0), limit: 50_000_000, ..call.clone() });
    }
    let strays = calls.len();
    for call in all
        .iter()
        .filter(|call| matches!(call.what, What::Interpret | What::TwoShot | What::Staged | What::OneShot))
    {
        calls.push(Call { stray: Some(2), limit: 5_000_000_000, ..call.clone() });
    }
    let cramped = calls.len();
    for call in all.iter().filter(|call| matches!(call.what, What::OneShot | What::Packets)) {
        calls.push(Call { room: Some(128), ..call.clone() });
    }
    let cases: Vec<_> = (1..).zip(&calls).map(|(seed, call)| call.write(seed)).collect();
    let outcome = emulator.run("waits", &cases, SECONDS);
    assert_eq!((outcome.cases.len(), outcome.races), (calls.len(), 0), "{}", outcome.first_race);
    for (index, (call, played)) in calls.iter().zip(&outcome.cases).enumerate() {
        let (name, failures) = (call.name(), &played.failures);
        assert!(!failures.is_empty(), "{name}: nobody has noticed");
        if index < strays {
            let why = if call.abort_after > 0 { Why::Aborted } else { Why::Late };
            assert!(
                failures.iter().all(|failure| failure.why == why && failure.rank != 0),
                "{name}: {failures:?}"
            );
            let ranks = |rank| failures.iter().any(|failure| failure.rank == rank);
            assert!(ranks(1) && (ranks(2) || call.what == What::Ping), "{name}: {failures:?}");
        } else if index >= cramped {
            assert!(failures.iter().all(|failure| failure.why == Why::Length), "{name}: {failures:?}");
        } else {
            assert!(failures.iter().any(|failure| failure.why == Why::Mismatch), "{name}: {failures:?}");
        }
    }
    // Rank 1 waits for rank 0's first piece in its second move, as in the plan.
    let first = &outcome.cases[0].failures[0];
    assert_eq!((first.rank, first.lane, first.mv, first.operand), (1, 0, 1, 0));
    println!("waits: {} calls that cannot end have ended, with who waited for what", calls.len());
}

/// Whether something is wrong: a race, a value, or a wait without end.
fn is_caught(outcome: &Outcome) -> bool {
    outcome.races > 0 || outcome.cases.iter().any(|played| played.wrong > 0 || !played.failures.is_empty())
}

#[test]
fn planted_bugs_are_found() {
    let call = |what, name: &str| {
        let plan = plan(name, Collective::AllReduce, 4, 0);
        let geometry = Geometry { slot_bytes: 64, credits: least_credits(&plan), shares: 2 };
        // A wait that a bug makes endless ends soon.
        let limit = 2_000_000_000;
        let call = Call::new(what, plan, 300, DataType::F32, ReduceOp::Sum);
        Call { rounds: 8, tile_bytes: 64, geometry, limit, ..call }
    };
    let bugs = [
        ("BUG_NO_EXIT", What::TwoShot, "twoshot"),
        ("BUG_RELAXED", What::Interpret, "ring"),
        ("BUG_RELAXED", What::TwoShot, "twoshot"),
        ("BUG_RELAXED", What::Staged, "twoshot"),
        ("BUG_RELAXED", What::OneShot, "oneshot"),
        ("BUG_RELAXED", What::Multicast, "oneshot"),
        ("BUG_NO_ENTRY", What::Multicast, "oneshot"),
        ("BUG_ONE_MEMORY", What::Multicast, "oneshot"),
        ("BUG_OTHER_READER", What::OneShot, "oneshot"),
        ("BUG_HALF_PACKET", What::Packets, "oneshot"),
        ("BUG_NO_BARRIER", What::Interpret, "ring"),
        ("BUG_NO_CREDIT", What::Interpret, "ring"),
        ("BUG_NO_CREDIT", What::Interpret, "oneshot"),
    ];
    let mut last = ("", None);
    for (bug, what, name) in bugs {
        if last.0 != bug {
            last = (bug, Some(Emulator::build(Some(bug))));
        }
        let emulator = last.1.as_ref().expect("built");
        let outcome = emulator.run(bug, &[call(what, name).write(1)], SECONDS);
        let wrong: usize = outcome.cases.iter().map(|played| played.wrong).sum();
        let stuck: usize = outcome.cases.iter().map(|played| played.failures.len()).sum();
        assert!(is_caught(&outcome), "{bug} in {what:?} of {name} was not noticed");
        println!(
            "{bug} in {what:?} of {name}: {} races, {wrong} wrong outputs, {stuck} blocks that gave up",
            outcome.races
        );
    }
}

//! Programs of every plan of few ranks, read back; and what is refused.

use super::*;
use ccl_core::algorithms;
use ccl_core::engine::{Blocks, Layout};
use ccl_core::plan::{Collective, Placement, Plan, Sink, Source};
use ccl_core::{DataType, ReduceOp};

const GEOMETRY: Geometry = Geometry { slot_bytes: 128, credits: 4, shares: 2 };

/// Every plan of up to so many ranks, with all roots and numbers of hosts.
fn plans(ranks: u32) -> impl Iterator<Item = Plan> {
    let placements = (1..=ranks).flat_map(|n| (1..=n).filter_map(move |hosts| Placement::even(n, hosts)));
    placements.flat_map(|placement| {
        Collective::ALL.into_iter().flat_map(move |collective| {
            let roots = if collective.rooted() { placement.ranks } else { 1 };
            (0..roots).flat_map(move |root| {
                let all = algorithms::all().iter();
                all.filter_map(move |algorithm| algorithms::plan(*algorithm, collective, placement, root))
            })
        })
    })
}

fn encode(plan: &Plan, rank: u32, count: usize) -> Result<Program, ProgramError> {
    let layout = Layout::new(&plan.spec, rank, count, DataType::F32, 64)?;
    Program::encode(&plan.programs[rank as usize], &layout, GEOMETRY)
}

/// What must be read from the words of a rank's program.
fn expected(plan: &Plan, rank: u32, layout: &Layout, program: &Program) -> Vec<Vec<MoveListing>> {
    let extent = |chunk: u32| {
        let (first, last) = (layout.piece(chunk, 0), layout.piece(chunk, layout.tiles() - 1));
        (first.start as u64, (last.end - first.start) as u64)
    };
    let mut first_end = 0;
    let lanes = plan.programs[rank as usize].lanes.iter().map(|lane| {
        let ends = &program.ends()[first_end..];
        let (mut met, mut last) = (Vec::new(), 0);
        let mut end = |direction, peer, channel| {
            let at = ends.iter().position(|end| *end == End { direction, peer, channel }).unwrap();
            met.push(at);
            last = last.max(at + 1);
            at as u32
        };
        let moves = lane.moves.iter().map(|mv| {
            let mut chunk = None;
            let mut at = |index: u32| {
                chunk = Some(extent(index).1);
                extent(index).0
            };
            let from = mv.from.iter().map(|source| match *source {
                Source::Input(index) => Operand::Input(at(index)),
                Source::Output(index) => Operand::Output(at(index)),
                Source::Scratch(index) => Operand::Scratch(index),
                Source::Link(link) => Operand::Receive(end(Direction::Receive, link.peer, link.channel)),
            });
            let from = from.collect();
            let into = mv.into.iter().flat_map(|sink| match sink {
                Sink::Output(index) => vec![Operand::Output(at(*index))],
                Sink::Scratch(index) => vec![Operand::Scratch(*index)],
                Sink::Links(links) => {
                    let sends = links.peers.iter().map(|&peer| end(Direction::Send, peer, links.channel));
                    sends.map(Operand::Send).collect()
                }
            });
            let into = into.collect();
            MoveListing { from, into, chunk, salt: 0 }
        });
        let moves = moves.collect();
        first_end += last;
        moves
    });
    lanes.collect()
}

#[test]
fn every_program_of_few_ranks_reads_back_as_its_plan() {
    let mut programs = 0;
    for plan in plans(8) {
        // Parts that are short, empty, and longer than a tile.
        for count in [0, 1, 7, 100] {
            for rank in 0..plan.spec.ranks {
                let name = format!("{} {:?} rank {rank} count {count}", plan.algorithm, plan.spec);
                let program = encode(&plan, rank, count).unwrap_or_else(|e| panic!("{name}: {e}"));
                let layout = Layout::new(&plan.spec, rank, count, DataType::F32, 64).unwrap();
                let (input, output) = (layout.input_bytes() as u64, layout.output_bytes() as u64);
                let listing =
                    Listing::read(program.words(), input, output).unwrap_or_else(|e| panic!("{name}: {e}"));
                let lanes: Vec<_> = listing.lanes.iter().map(|lane| lane.moves.clone()).collect();
                assert_eq!(lanes, expected(&plan, rank, &layout, &program), "{name}");
                let ends: usize = listing.lanes.iter().map(|lane| usize::from(lane.ends)).sum();
                assert_eq!(ends, program.ends().len(), "{name}");
                let numbers =
                    (listing.rank, listing.ranks, listing.tile_bytes, listing.credits, listing.shares);
                assert_eq!(numbers, (rank, plan.spec.ranks, 64, 4, 2), "{name}");
                assert!(listing.lanes.iter().all(|lane| lane.tiles as usize == layout.tiles()), "{name}");
                assert_eq!(listing.reduces, plan.spec.collective.reduces());
                programs += 1;
            }
        }
    }
    assert!(programs > 10_000, "{programs} programs only");
}

#[test]
fn both_ends_of_every_link_are_named_once() {
    for plan in plans(6) {
        let mut ends = Vec::new();
        for rank in 0..plan.spec.ranks {
            for end in encode(&plan, rank, 10).unwrap().ends() {
                let (from, to) =
                    if end.direction == Direction::Send { (rank, end.peer) } else { (end.peer, rank) };
                ends.push((from, to, end.channel, end.direction));
            }
        }
        ends.sort_unstable();
        for link in ends.chunks(2) {
            let [(a, b, channel, Direction::Receive), (c, d, other, Direction::Send)] = link[..] else {
                panic!("{} {:?}: {link:?}", plan.algorithm, plan.spec);
            };
            assert_eq!((a, b, channel), (c, d, other));
        }
    }
}

/// Whatever one word is changed to, a program is refused, or stays within its buffers and its tables.
#[test]
fn changed_words_are_refused_or_stay_inside() {
    let plan = algorithms::plan(algorithms::by_name("bruck").unwrap(), Collective::AllGather, 5, 0).unwrap();
    let program = encode(&plan, 3, 100).unwrap();
    let (input, output) = (400, 2000);
    let mut refused = 0;
    for at in 0..program.words().len() {
        for change in [1, 2, 1 << 8, 1 << 16, 1 << 32, 1 << 40, 1 << 60, 1 << 63, u64::MAX] {
            let mut words = program.words().to_vec();
            words[at] ^= change;
            let Ok(listing) = Listing::read(&words, input, output) else {
                refused += 1;
                continue;
            };
            for mv in listing.lanes.iter().flat_map(|lane| &lane.moves) {
                for operand in mv.from.iter().chain(&mv.into) {
                    let len = mv.chunk.unwrap_or(0);
                    match operand {
                        Operand::Input(place) => assert!(place + len <= input),
                        Operand::Output(place) => assert!(place + len <= output),
                        Operand::Scratch(_) | Operand::Receive(_) | Operand::Send(_) => {}
                    }
                }
            }
        }
        assert!(Listing::read(&program.words()[..at], input, output).is_err(), "cut at {at}");
    }
    assert!(refused > 100, "{refused} refusals only");
    assert!(Listing::read(program.words(), input - 1, output).is_err(), "a short send buffer");
    assert!(Listing::read(program.words(), input, output - 1).is_err(), "a short receive buffer");
}

#[test]
fn what_a_kernel_has_no_room_for_is_an_error_that_says_so() {
    let plan = |name: &str, collective, ranks: u32| {
        algorithms::plan(algorithms::by_name(name).unwrap(), collective, ranks, 0).unwrap()
    };
    let one_shot = plan("oneshot", Collective::AllReduce, 80);
    let text = encode(&one_shot, 0, 10).unwrap_err().to_string();
    assert!(text.contains("rank 0, lane 0: 80 operands of a move, but a kernel has room for 72"), "{text}");

    let ring = plan("ring", Collective::AllReduce, 4);
    let tiled = |tile_bytes, geometry| {
        let layout = Layout::new(&ring.spec, 1, 10, DataType::F32, tile_bytes).unwrap();
        Program::encode(&ring.programs[1], &layout, geometry).unwrap_err().to_string()
    };
    let with = |geometry| tiled(64, geometry);
    let text = with(Geometry { credits: 6, ..GEOMETRY });
    assert!(text.contains("credits of 6: a power of two"), "{text}");
    let text = tiled(20, GEOMETRY);
    assert!(text.contains("tiles of 20: whole lines"), "{text}");
    let text = tiled(256, GEOMETRY);
    assert!(text.contains("tiles of 256: whole lines of 64 bytes, no longer than a slot"), "{text}");
    let text = with(Geometry { slot_bytes: 16 << 20, ..GEOMETRY });
    assert!(text.contains("less than 16 MiB"), "{text}");
    let text = with(Geometry { shares: 100_000, ..GEOMETRY });
    assert!(text.contains("thread blocks: use fewer shares"), "{text}");

    let mut stray = ring.clone();
    stray.programs[1].lanes[0].moves[0].from = vec![Source::Input(9)];
    let text = encode(&stray, 1, 10).unwrap_err().to_string();
    assert!(text.contains("rank 1, lane 0, move 0: chunk 9 of a buffer of 4 chunks"), "{text}");
}

#[test]
fn every_type_and_operator_has_a_kernel_or_is_refused() {
    let mut used = Vec::new();
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            let rule = Rule::new(dtype, op, 3);
            assert_eq!(rule.is_err(), op.check(dtype).is_err(), "{dtype} {op}");
            let Ok(rule) = rule else { continue };
            used.push(rule.family());
            let mean = op == ReduceOp::Avg;
            assert_eq!(
                (rule.scales(), rule.finish().is_some()),
                (mean && dtype.is_float(), mean && !dtype.is_float())
            );
        }
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used, Family::ALL);
    let mut names = Family::ALL.map(Family::name).to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Family::ALL.len());
}

#[test]
fn every_module_is_listed_and_has_its_kernels() {
    let listed = include_str!("../../kernels/modules.txt").lines().filter(|line| !line.starts_with('#'));
    let names: Vec<_> = listed.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, MODULES.iter().map(|module| module.name).collect::<Vec<_>>());
    for module in MODULES {
        assert_eq!(module.code.matches(".entry ").count(), module.kernels.len(), "{}", module.name);
        let (first, second) = module.since;
        assert!(module.code.contains(&format!(".target sm_{first}{second}\n")), "{}", module.name);
        assert_eq!(module.code.contains("multimem"), module.is_of_multicast(), "{}", module.name);
        for kernel in module.kernels {
            assert!(module.code.contains(&format!(".entry {kernel}(")), "{}: {kernel}", module.name);
        }
    }
    for family in Family::ALL {
        assert!(Module::interpreter(family).is_some(), "{family:?}");
    }
    let special = Family::ALL.into_iter().filter(|family| Module::all_reduce(*family).is_some());
    assert_eq!(special.clone().count(), 3);
    // What is one-shot may be so by multicast.
    assert!(special.clone().all(|family| Module::multicast(family).is_some()));
}

#[test]
fn reports_and_second_launches_are_read_and_written() {
    assert_eq!(Report::read([0, 1, 2, 3, 4]), None);
    let report = Report::read([3 | 11 << 32, 5 | 6 << 32, 7 | 8 << 32, 9, 10]).unwrap();
    assert_eq!(
        (report.failure, report.lane, report.mv, report.tile, report.operand),
        (Failure::Mismatch, 5, 6, 7, 8)
    );
    assert_eq!((report.expected, report.found, report.tag), (9, 10, 11));

    let call = |dtype, op| Call {
        program: 0,
        wires: 0,
        input: 0,
        output: 1,
        scratch: 0,
        team: 0,
        alarm: 0,
        reports: 0,
        limit: 0,
        count: 0,
        tag: 0,
        log: 12,
        rule: Rule::new(dtype, op, 3).unwrap(),
        when: 0,
        wanted: 0,
    };
    assert_eq!(call(DataType::F32, ReduceOp::Avg).finish_words(40), None);
    assert_eq!(call(DataType::I32, ReduceOp::Sum).finish_words(40), None);
    let words = call(DataType::I32, ReduceOp::Avg).finish_words(40).unwrap();
    assert_eq!((words[9], words[12], words[13]), (10, 20, 3));
    let crowd = Team { members: vec![Member::default(); MAX_TEAM + 1], ..Team::default() };
    assert!(crowd.words().unwrap_err().to_string().contains("a team of 17: at most 16"));
}

#[test]
fn lanes_of_ranks_that_know_their_own_blocks_only_run_as_often_as_these_need() {
    let plan =
        algorithms::plan(algorithms::by_name("exchange").unwrap(), Collective::AllToAll, 3, 0).unwrap();
    let blocks = Blocks { input: Blocks::packed(&[16, 16, 100]), output: Blocks::packed(&[3, 16, 50]) };
    let layout = Layout::uneven(&plan.spec, 1, &blocks, DataType::F32, 64).unwrap();
    let program = Program::encode(&plan.programs[1], &layout, GEOMETRY).unwrap();
    let (input, output) = program.buffer_bytes();
    let listing = Listing::read(program.words(), input as u64, output as u64).unwrap();
    let longest = |lane: &LaneListing| lane.moves.iter().filter_map(|mv| mv.chunk).max();
    for lane in &listing.lanes {
        let bytes = longest(lane).expect("every lane has a chunk");
        // Pieces say of how long a block they are.
        let salts = |bytes| lane.moves.iter().filter(move |mv| mv.chunk == Some(bytes)).map(|mv| mv.salt);
        assert!(
            lane.moves.iter().all(|mv| mv.chunk.is_some_and(|len| salts(len).all(|salt| salt == mv.salt)))
        );
        assert!(lane.moves.iter().any(|mv| mv.salt != 0) && !lane.is_queue);
        assert_eq!(u64::from(lane.tiles), bytes.div_ceil(64).max(1), "{bytes} bytes");
    }
    assert_eq!(listing.lanes.iter().filter_map(longest).max(), Some(400));
}

//! What the verifier says of plans that are wrong: which fault, where, in which words.

mod plans;

use ccl_core::plan::{Collective, Lane, Link, Links, Move, Plan, Sink, Source};
use ccl_core::verify::report::determinism_markdown;
use ccl_core::verify::{Fault, Limits, min_credits, verify};
use plans::{from, lane, one_shot, plan, ring, step, to, tree};

/// The text of the fault that the verifier finds.
fn fault(plan: &Plan) -> String {
    verify(plan, &Limits::default()).expect_err("a fault").to_string()
}

fn edited(mut plan: Plan, rank: usize, edit: impl FnOnce(&mut Vec<Lane>)) -> Plan {
    edit(&mut plan.programs[rank].lanes);
    plan
}

fn with_move(plan: Plan, rank: usize, step: usize, new: Move) -> Plan {
    edited(plan, rank, |lanes| lanes[0].moves[step] = new)
}

#[test]
fn a_fault_names_rank_lane_move_and_chunk() {
    use Source::{Input, Output, Scratch};
    let out = Sink::Output(0);
    let scratch = edited(one_shot(3), 2, |lanes| {
        lanes[0].scratch = 2;
        lanes[0].moves.push(step([Scratch(1)], [out.clone()]));
    });
    let cases = [
        (scratch, "rank 2, lane 0, move 2: reads scratch 1 before it is written in this tile"),
        (
            edited(one_shot(3), 0, |lanes| lanes[0].moves.insert(0, step([Output(0)], [out.clone()]))),
            "rank 0, lane 0, move 0: reads output chunk 0 before it is written in this tile",
        ),
        (
            with_move(ring(3), 1, 0, step([Input(9)], [to(2)])),
            "rank 1: never reads input chunk 1, so that its contribution is missing",
        ),
        (
            edited(ring(3), 1, |lanes| lanes[0].moves.insert(0, step([Input(9)], [to(2)]))),
            "rank 1, lane 0, move 0: reads input chunk 9, but there are 3 of it here",
        ),
        (
            edited(one_shot(3), 1, |lanes| lanes[0].moves[1].from.push(Input(0))),
            "rank 1, lane 0, move 1: counts rank 1's input chunk 0 twice, and it ends in output chunk 0 of rank 1",
        ),
        (
            edited(one_shot(3), 1, |lanes| lanes[0].moves.push(step([Input(0)], [out.clone()]))),
            "rank 1, output chunk 0 (last written by rank 1, lane 0, move 2): misses rank 0's input chunk 0",
        ),
        (
            with_move(ring(3), 1, 1, step([from(0), Input(2)], [to(2)])),
            "rank 1: never reads input chunk 0, so that its contribution is missing",
        ),
        (
            {
                let mut waiting = ring(3);
                waiting.programs.iter_mut().for_each(|program| program.lanes[0].moves.swap(0, 1));
                waiting
            },
            "deadlock with 8 credits per link: rank 0, lane 0, move 0 waits for a piece from rank 2 (channel 0); \
             rank 2, lane 0, move 0 waits for a piece from rank 1 (channel 0); \
             rank 1, lane 0, move 0 waits for a piece from rank 0 (channel 0)",
        ),
        (
            with_move(ring(3), 1, 0, step([Input(1)], [to(1)])),
            "rank 1, lane 0, move 0: names rank 1 as a peer; a peer is one of the other 2 ranks",
        ),
        (
            edited(one_shot(2), 1, |lanes| lanes[0].moves[1].from.push(from(0))),
            "rank 1, lane 0, move 1: receives from rank 0 twice in one move",
        ),
        (
            edited(one_shot(2), 1, |lanes| lanes[0].moves.push(step([from(0)], [out.clone()]))),
            "rank 1, lane 0, move 2: waits forever for message 2 of this tile from rank 0 on channel 0, which sends 1",
        ),
        (
            edited(one_shot(2), 1, |lanes| lanes[0].moves.push(step([Input(0)], [to(0)]))),
            "rank 1, lane 0, move 2: sends message 2 of this tile to rank 0 on channel 0, which receives 1",
        ),
        (
            edited(one_shot(2), 1, |lanes| {
                let tail = lanes[0].moves.split_off(1);
                lanes.push(lane(tail));
                lanes[1].moves.push(step([Input(0)], [to(0)]));
            }),
            "rank 1, lane 1, move 1: uses the sending end of the link from rank 1 to rank 0 on channel 0, which \
             belongs to lane 0; take another channel",
        ),
        (
            with_move(one_shot(2), 1, 0, step([Input(0)], [])),
            "rank 1, lane 0, move 0: has no sink; a move needs at least one source and one sink",
        ),
    ];
    for (plan, text) in cases {
        assert_eq!(fault(&plan), text);
    }
}

/// Rank 1 sends its input twice, and two lanes of rank 0 write it into one chunk.
fn racing() -> Plan {
    let on = |peer, channel| Source::Link(Link { peer, channel });
    let zero = vec![
        lane(vec![step([Source::Input(0)], [Sink::Output(0), to(1)]), step([on(1, 0)], [Sink::Output(1)])]),
        lane(vec![step([on(1, 1)], [Sink::Output(1)])]),
    ];
    let twice = [to(0), Sink::Links(Links { peers: vec![0], channel: 1 }), Sink::Output(1)];
    let one = vec![lane(vec![step([Source::Input(0)], twice), step([from(0)], [Sink::Output(0)])])];
    plan(Collective::AllGather, 1, vec![zero, one])
}

#[test]
fn a_race_between_lanes_is_found() {
    let found = verify(&racing(), &Limits::default()).unwrap_err();
    let Fault::Race { first, second, chunk: 1, .. } = found else { panic!("a race, not: {found}") };
    assert_eq!((first.rank, second.rank), (0, 0));
    assert_ne!(first.lane, second.lane);
    assert!(found.to_string().ends_with("race for output chunk 1; no message orders them"), "{found}");
}

#[test]
fn messages_order_lanes() {
    // Rank 0 answers the first copy, and only then rank 1 sends the second.
    let mut plan = racing();
    let answer = Sink::Links(Links { peers: vec![1], channel: 2 });
    plan.programs[0].lanes[0].moves[1].into.push(answer);
    let second = plan.programs[1].lanes[0].moves[0].into.remove(1);
    let answered = Source::Link(Link { peer: 0, channel: 2 });
    let code = &mut plan.programs[1].lanes[0];
    code.scratch = 1;
    code.moves.push(step([answered], [Sink::Scratch(0), second]));
    assert!(verify(&plan, &Limits::default()).is_ok());
}

#[test]
fn in_place_needs_an_order_too() {
    let lanes = |r: u32| {
        vec![
            lane(vec![
                step([Source::Input(r)], [Sink::Output(r)]),
                step([Source::Input(1 - r)], [to(1 - r)]),
            ]),
            lane(vec![step([from(1 - r)], [Sink::Output(1 - r)])]),
        ]
    };
    let swap = plan(Collective::AllToAll, 1, (0..2).map(lanes).collect());
    let proof = verify(&swap, &Limits::default()).unwrap();
    assert!(!proof.in_place, "the piece that arrives may overwrite the one not yet sent");
}

#[test]
fn elements_are_not_mixed() {
    let mut mixed = ring(3);
    for program in &mut mixed.programs {
        program.lanes[0].moves[1].from[1] = Source::Input(0);
        program.lanes[0]
            .moves
            .push(step([Source::Input(0), Source::Input(1), Source::Input(2)], [Sink::Output(0)]));
    }
    assert!(fault(&mixed).contains("combines elements that do not belong together"), "{}", fault(&mixed));
    let copies = edited(one_shot(2), 0, |_| {});
    let wrong =
        Plan { spec: ccl_core::plan::Spec { collective: Collective::Broadcast, ..copies.spec }, ..copies };
    assert!(
        fault(&wrong).contains("rank 1, lane 0, move 0: reads input chunk 0, but there are 0"),
        "{}",
        fault(&wrong)
    );
}

#[test]
fn credits_that_a_plan_needs() {
    // Three pieces go out before the first comes in.
    let burst = |r: u32| {
        let mut moves: Vec<Move> = (0..3).map(|c| step([Source::Input(c)], [to(1 - r)])).collect();
        moves.extend((0..3).map(|c| {
            let (own, theirs) = (Source::Input(c), from(1 - r));
            step(if r == 0 { [own, theirs] } else { [theirs, own] }, [Sink::Output(c)])
        }));
        vec![lane(moves)]
    };
    let plan = plan(Collective::AllReduce, 3, (0..2).map(burst).collect());
    assert_eq!(min_credits(&plan, &Limits::default()), Ok(3));
    let short = Limits { credits: 2, ..Limits::default() };
    let Err(Fault::Deadlock { credits: 2, cycle }) = verify(&plan, &short) else { panic!("a deadlock") };
    assert_eq!(cycle.len(), 2);
    assert!(verify(&plan, &Limits { credits: 3, ..Limits::default() }).is_ok());
    assert!(verify(&plan, &Limits { credits: 0, ..Limits::default() }).is_err());
}

#[test]
fn channels_tell_links_apart() {
    let mut plan = one_shot(2);
    let link = Source::Link(Link { peer: 0, channel: 7 });
    plan.programs[1].lanes[0].moves[1].from[0] = link;
    assert!(fault(&plan).contains("on channel"));
    plan.programs[0].lanes[0].moves[0].into[0] = Sink::Links(Links { peers: vec![1], channel: 7 });
    assert!(verify(&plan, &Limits::default()).is_ok());
}

#[test]
fn a_hostile_doubling_is_bounded() {
    // Sixty doublings of one contribution: 2^60 leaves, if anybody counted them.
    let mut plan = one_shot(2);
    let lane = &mut plan.programs[0].lanes[0];
    for _ in 0..60 {
        lane.moves.push(step([Source::Output(0), Source::Output(0)], [Sink::Output(0)]));
    }
    assert!(
        fault(&plan).contains("rank 0, lane 0, move 2: counts rank 0's input chunk 0 twice"),
        "{}",
        fault(&plan)
    );
}

#[test]
fn the_determinism_table_is_read_off_the_proofs() {
    let named = |mut plan: Plan, name: &str| {
        plan.algorithm = name.into();
        plan
    };
    let rings = [3, 4, 5].map(|n| named(ring(n), "ring"));
    let others = [named(one_shot(3), "one_shot"), named(tree(6), "tree")];
    let page = determinism_markdown(rings.into_iter().chain(others)).unwrap();
    assert!(page.contains("| `ring` | `all_reduce` | yes | yes | no | no | yes | 3-5 |\n"), "{page}");
    assert!(page.contains("| `one_shot` | `all_reduce` | yes | yes | yes | yes | yes | 3 |\n"), "{page}");
    assert!(page.contains("| `tree` | `all_reduce` | yes | yes | yes | no | yes | 6 |\n"), "{page}");
}

//! Whether what the verifier lets travel by reference, or into memory that was offered, arrives as it was sent: an
//! interpreter that shares nothing with it lets every such message be read as late as its receiver comes to it, or
//! written as early as its sender does.

#![allow(clippy::print_stdout)] // the counts are this test's result; CI shows them

#[path = "plans/every.rs"]
mod every;
#[path = "plans/mod.rs"]
mod plans;
#[path = "plans/reference.rs"]
mod reference;

use ccl_core::algorithms;
use ccl_core::plan::{Collective, Lane, Link, Links, Move, Plan, Program, Referent, Sink, Source, Spec};
use ccl_core::verify::mutate::{Class, mutants};
use ccl_core::verify::{Limits, May, Shortcuts, verify_shortcuts};
use every::every_plan;

const TILES: usize = 2;

/// A way that a piece may travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Reference,
    Offer,
}

const WAYS: [Way; 2] = [Way::Reference, Way::Offer];

impl Way {
    /// What the proof says of a move.
    fn may(self, shortcuts: &Shortcuts, plan: &Plan, rank: usize, lane: usize, step: usize) -> May {
        let before: usize = plan.programs[rank].lanes[..lane].iter().map(|lane| lane.moves.len()).sum();
        self.of(shortcuts, rank as u32)[before + step]
    }

    fn of(self, shortcuts: &Shortcuts, rank: u32) -> &[May] {
        match self {
            Way::Reference => shortcuts.refers(rank),
            Way::Offer => shortcuts.offers(rank),
        }
    }

    /// Whether it is a way for this move at all.
    fn fits(self, plan: &Plan, rank: usize, mv: &Move) -> bool {
        match self {
            Way::Reference => mv.referent().is_some(),
            Way::Offer => match mv.from[..] {
                // Several messages in a tile are not told apart.
                [Source::Link(link)] => mv.landing().is_some() && messages(plan, rank, link) == 1,
                _ => false,
            },
        }
    }
}

/// Messages of a tile that come to `rank` on a link.
fn messages(plan: &Plan, rank: usize, link: Link) -> usize {
    let moves = plan.programs[rank].lanes.iter().flat_map(|lane| &lane.moves);
    moves.flat_map(|mv| &mv.from).filter(|source| **source == Source::Link(link)).count()
}

fn in_mode(may: May, in_place: bool) -> bool {
    if in_place { may.in_place } else { may.apart }
}

/// Everything that is allowed at once changes no result, whatever the order. Returns how many moves may refer, and how
/// many may offer.
fn holds(plan: &Plan, seeds: u64) -> [usize; 2] {
    let limits = Limits::default();
    let (proof, shortcuts) = verify_shortcuts(plan, &limits).unwrap();
    let all = |way: Way| -> Vec<May> {
        (0..plan.spec.ranks).flat_map(|rank| way.of(&shortcuts, rank)).copied().collect()
    };
    for in_place in [false, true] {
        if in_place && !proof.in_place {
            assert!(WAYS.into_iter().flat_map(all).all(|may| !may.in_place));
            continue;
        }
        let wanted = reference::run(plan, limits.credits, TILES, 0, in_place);
        let allowed = |way: Way| {
            let shortcuts = &shortcuts;
            move |rank, lane, step| in_mode(way.may(shortcuts, plan, rank, lane, step), in_place)
        };
        let (refers, offers) = (allowed(Way::Reference), allowed(Way::Offer));
        for seed in 0..seeds {
            let credits = limits.credits;
            let got = reference::run_with_shortcuts(plan, credits, TILES, seed, in_place, &refers, &offers);
            let what = format!("{} by {} on {}", plan.spec.collective, plan.algorithm, plan.spec.ranks);
            assert!(
                got == wanted,
                "{what}, in place: {in_place}, seed {seed}: {got:?} in place of {wanted:?}"
            );
        }
    }
    WAYS.map(|way| all(way).iter().filter(|may| may.apart).count())
}

#[test]
fn what_is_allowed_arrives() {
    let (mut refers, mut offers) = (0, 0);
    for plan in every_plan(&[2, 3, 4, 5, 6, 8]) {
        let [more_refer, more_offer] = holds(&plan, 20);
        (refers, offers) = (refers + more_refer, offers + more_offer);
    }
    println!("{refers} moves may refer, {offers} may offer");
    assert!(refers > 1000 && offers > 1000);
}

/// Who may be written to by a sender that has a share of the work receives from one that only sends, and may offer it anyhow.
#[test]
fn shares_come_from_those_who_only_send() {
    let receivers = |algorithm: &str, collective: Collective| {
        let algorithm = algorithms::by_name(algorithm).unwrap();
        let plan = algorithms::plan(algorithm, collective, 4, 0).unwrap();
        let (_, shortcuts) = verify_shortcuts(&plan, &Limits::default()).unwrap();
        let has_some = |rank: &u32| shortcuts.share_offers(*rank).iter().any(|may| may.apart);
        for rank in 0..4 {
            let pairs = shortcuts.share_offers(rank).iter().zip(shortcuts.offers(rank));
            assert!(pairs.into_iter().all(|(share, offer)| *share == May::default() || share == offer));
        }
        (0..4).filter(has_some).collect::<Vec<u32>>()
    };
    assert_eq!(receivers("oneshot", Collective::Broadcast), [1, 2, 3]);
    assert_eq!(receivers("oneshot", Collective::Scatter), [1, 2, 3]);
    assert_eq!(receivers("oneshot", Collective::Gather), [0]);
    // The others have it from one that received it.
    assert_eq!(receivers("chain", Collective::Broadcast), [1]);
    // They all receive.
    assert!(receivers("oneshot", Collective::AllGather).is_empty());
    assert!(receivers("twoshot", Collective::AllReduce).is_empty());
    // What is combined is not kept as it came.
    assert!(receivers("oneshot", Collective::Reduce).is_empty());
}

/// Plans with a mistake that are still proved: orders of moves that no algorithm has.
#[test]
fn it_holds_for_mutants() {
    let limits = Limits::default();
    let mut proved = 0;
    for plan in every_plan(&[3, 4]) {
        for class in Class::ALL {
            for mutant in mutants(&plan, &limits, class) {
                if verify_shortcuts(&mutant.plan, &mutant.limits).is_ok() {
                    holds(&mutant.plan, 3);
                    proved += 1;
                }
            }
        }
    }
    assert!(proved > 500, "{proved}");
}

/// The rules are not stricter than they must be, and the interpreter would see them broken: each move that may not take
/// a way lets a wrong value arrive in some order if it does, with few exceptions at most.
#[test]
fn what_is_denied_would_go_wrong() {
    let limits = Limits::default();
    let (mut denied, mut shown) = ([0, 0], [0, 0]);
    for plan in every_plan(&[3, 4, 5]) {
        let (proof, shortcuts) = verify_shortcuts(&plan, &limits).unwrap();
        for in_place in [false, true] {
            if in_place && !proof.in_place {
                continue;
            }
            let wanted = reference::run(&plan, limits.credits, TILES, 0, in_place);
            for (rank, program) in plan.programs.iter().enumerate() {
                for (lane, code) in program.lanes.iter().enumerate() {
                    for (step, mv) in code.moves.iter().enumerate() {
                        for (index, way) in WAYS.into_iter().enumerate() {
                            let may = way.may(&shortcuts, &plan, rank, lane, step);
                            if !way.fits(&plan, rank, mv) || in_mode(may, in_place) {
                                continue;
                            }
                            denied[index] += 1;
                            let only = |of| move |r, l, s| way == of && (r, l, s) == (rank, lane, step);
                            let goes_wrong = |seed| {
                                let (refers, offers) = (&only(Way::Reference), &only(Way::Offer));
                                let credits = limits.credits;
                                reference::run_with_shortcuts(
                                    &plan, credits, TILES, seed, in_place, refers, offers,
                                ) != wanted
                            };
                            shown[index] += usize::from((0..200).any(goes_wrong));
                        }
                    }
                }
            }
        }
    }
    println!("{shown:?} of {denied:?} denied moves were seen to go wrong");
    assert!(denied[0] > 50 && shown[0] * 10 >= denied[0] * 9, "{shown:?} of {denied:?}");
    assert!(shown[1] * 10 >= denied[1] * 9, "{shown:?} of {denied:?}");
}

/// The cases by hand: what a move refers to, and the three ways in which a later write can stand to it.
#[test]
fn a_later_write_must_be_ordered() {
    let to = |peer| Sink::Links(Links { peers: vec![peer], channel: 0 });
    let from = |peer| Source::Link(Link { peer, channel: 0 });
    let mv = |from: &[Source], into: &[Sink]| Move { from: from.to_vec(), into: into.to_vec() };
    assert_eq!(mv(&[Source::Input(0)], &[Sink::Output(0), to(1)]).referent(), Some(Referent::Source));
    assert_eq!(
        mv(&[from(1), Source::Input(0)], &[to(1), Sink::Output(0)]).referent(),
        Some(Referent::Sink(1))
    );
    assert_eq!(mv(&[from(1)], &[to(1)]).referent(), None);
    assert_eq!(mv(&[Source::Input(0)], &[Sink::Output(0)]).referent(), None);

    // A one-step all-reduce of two ranks. In place the input is overwritten without waiting for its reader.
    let spec = Spec::new(Collective::AllReduce, 2, 0, 1);
    let sum = |peer| if peer == 0 { [from(0), Source::Input(0)] } else { [Source::Input(0), from(1)] };
    let plan = |moves: &dyn Fn(u32) -> Vec<Move>| {
        let program = |peer| Program { lanes: vec![Lane { scratch: 1, moves: moves(peer) }] };
        Plan { spec, algorithm: "by hand".into(), programs: vec![program(1), program(0)] }
    };
    let allowed = |plan: &Plan| {
        let (proof, shortcuts) = verify_shortcuts(plan, &Limits::default()).unwrap();
        assert!(proof.in_place);
        holds(plan, 50);
        (shortcuts.refers(0)[0].apart, shortcuts.refers(0)[0].in_place)
    };
    let eager = plan(&|peer| vec![mv(&[Source::Input(0)], &[to(peer)]), mv(&sum(peer), &[Sink::Output(0)])]);
    assert_eq!(allowed(&eager), (true, false));
    // The same, where each waits for the other's word that it has read.
    let polite = plan(&|peer| {
        vec![
            mv(&[Source::Input(0)], &[to(peer)]),
            mv(&sum(peer), &[Sink::Scratch(0), to(peer)]),
            mv(&[from(peer)], &[Sink::Output(0)]),
        ]
    });
    assert_eq!(allowed(&polite), (true, true));
}

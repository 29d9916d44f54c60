use super::*;
use crate::algorithms::plan;
use crate::plan::Plan;
use crate::verify::{Limits, verify};

/// Hosts and ranks of each, for what is tried on small ones.
const SHAPES: [(u32, u32); 6] = [(2, 2), (2, 3), (3, 2), (2, 8), (4, 4), (5, 3)];

fn plans_on(hosts: u32, locals: u32) -> Vec<Plan> {
    let placement = Placement::even(hosts * locals, hosts).expect("even");
    let root = |c: Collective| if c.rooted() { placement.ranks - 1 } else { 0 };
    Collective::ALL.into_iter().filter_map(|c| plan(&Hierarchical, c, placement, root(c))).collect()
}

/// How many pieces each rank sends to other hosts, and how many it gets from there.
fn across(plan: &Plan) -> Vec<(u32, u32)> {
    let placement = plan.spec.placement();
    let mut ends = vec![(0, 0); plan.spec.ranks as usize];
    for (rank, program) in (0..).zip(&plan.programs) {
        for sink in program.lanes.iter().flat_map(|lane| &lane.moves).flat_map(|m| &m.into) {
            let Sink::Links(links) = sink else { continue };
            for &peer in links.peers.iter().filter(|peer| placement.are_apart(rank, **peer)) {
                ends[rank as usize].0 += 1;
                ends[peer as usize].1 += 1;
            }
        }
    }
    ends
}

#[test]
fn it_takes_several_ranks_on_each_of_several_hosts() {
    for collective in Collective::ALL {
        let parts =
            |ranks, hosts| Hierarchical.parts(collective, Placement::even(ranks, hosts).expect("even"));
        assert_eq!([parts(1, 1), parts(8, 1), parts(8, 8), parts(2, 2)], [None; 4], "{collective}");
        assert_eq!(parts(8, 4).is_some(), plans_on(4, 2).iter().any(|p| p.spec.collective == collective));
    }
    assert_eq!(plans_on(2, 2).len(), 5);
}

#[test]
fn every_byte_crosses_once_and_all_ranks_of_a_host_share_that() {
    for (hosts, locals) in SHAPES {
        for plan in plans_on(hosts, locals) {
            let (others, root_host) = (hosts - 1, plan.spec.root / locals);
            for (rank, ends) in (0..).zip(across(&plan)) {
                let is_there = rank / locals == root_host;
                let wanted = match plan.spec.collective {
                    // Of h * l parts: sums and results.
                    Collective::AllReduce => (2 * others, 2 * others),
                    // Of n blocks.
                    Collective::AllGather | Collective::ReduceScatter => (others, others),
                    // Of l parts.
                    Collective::Broadcast if is_there => (others, 0),
                    Collective::Broadcast => (0, 1),
                    _ if is_there => (0, others),
                    _ => (1, 0),
                };
                assert_eq!(ends, wanted, "{} on {hosts} x {locals}, rank {rank}", plan.spec.collective);
            }
        }
    }
}

#[test]
fn no_lane_waits_for_what_comes_back_from_another_host() {
    for (hosts, locals) in SHAPES {
        for plan in plans_on(hosts, locals) {
            let placement = plan.spec.placement();
            for (rank, program) in (0..).zip(&plan.programs) {
                for lane in &program.lanes {
                    let sends = |m: &Move| m.into.iter().any(|s| matches!(s, Sink::Links(_)));
                    let across =
                        |s: &Source| matches!(s, Source::Link(link) if placement.are_apart(rank, link.peer));
                    let begins = lane
                        .moves
                        .first()
                        .is_some_and(|m| sends(m) && !m.from.iter().any(|s| matches!(s, Source::Link(_))));
                    let answered = lane.moves.iter().any(|m| m.from.iter().any(across));
                    assert!(!(begins && answered), "{} rank {rank}: {lane:?}", plan.spec.collective);
                }
            }
        }
    }
}

#[test]
fn sums_have_the_same_bits_at_every_size_and_on_every_rank() {
    for (hosts, locals) in SHAPES {
        for plan in plans_on(hosts, locals) {
            let order = verify(&plan, &Limits::default()).expect("right").order;
            assert!(order.same_on_every_rank && order.same_at_every_size, "{}", plan.spec.collective);
            assert_eq!(order.rank_order, !plan.spec.collective.reduces(), "{}", plan.spec.collective);
        }
    }
}

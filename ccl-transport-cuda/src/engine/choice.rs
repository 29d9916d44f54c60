//! How a call is made: by which kernel, and by which plan.

use super::arena::PACKET_ROOM;
use crate::program::{Module, Rule, STAGE_BYTES};
use ccl_core::algorithms::{self, Algorithm};
use ccl_core::communicator::Call;
use ccl_core::plan::{Collective, Placement, Spec};
use ccl_core::{Error, Result};

/// A way to make a call.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// All-reduce by packets.
    Packets,
    /// All-reduce in one step through staging memory.
    OneShot,
    /// The same by stores that reach all ranks at once.
    Multicast,
    /// All-reduce in two steps through staging memory.
    Staged,
    /// A plan, by the interpreter.
    Plan(&'static dyn Algorithm),
}

/// From so many ranks on, packets are for shorter calls: each thread looks for those of all ranks.
const MANY: u32 = 5;
/// The longest call by packets among many.
const PACKETS_OF_MANY: usize = 16 << 10;
/// The longest call between hosts in which each rank sends all others all that it has.
const SHORT: usize = 16 << 10;
/// The longest all-reduce in two steps by a kernel of its own: there is room for it in one round.
const STAGED: usize = STAGE_BYTES / 4;
/// The longest plan of an all-reduce in one step, as there are moves in two for each rank.
const ONE_STEP: usize = 512 << 10;
/// Longer calls from or to a root go from rank to rank, so that no rank's memory is read by all.
const CHAIN_FROM: usize = 512 << 10;
/// From so many bytes on it pays to ask whether buffers are registered.
pub(super) const MAPPED_FROM: usize = 4 << 20;
/// Up to so many ranks on several hosts all may send to one at a time.
const FEW: u32 = 8;

/// The longest one-shot call of so many ranks, each of which gives all others all of it. Two ranks have nothing shorter.
fn one_shot(ranks: u32) -> usize {
    match ranks {
        ..=2 => 4 << 20,
        3..MANY => 1 << 20,
        _ => 256 << 10,
    }
}

impl Way {
    /// For a call among these ranks of so many thread blocks each, with the algorithm that the user wants, if so. All ranks choose alike.
    /// The lengths of all-reduces at which ways change were measured with all ranks on one H200 (docs/gpu-check.md); the others are guesses.
    pub(super) fn of(
        call: &Call,
        (placement, blocks): (Placement, u32),
        rule: &Rule,
        wanted: Option<&'static str>,
    ) -> Result<Way> {
        let bytes = call.count.saturating_mul(call.dtype.size());
        if let Some(name) = wanted {
            return algorithm(&[name], call, placement, None).map(Way::Plan);
        }
        if placement.ranks == 1 {
            return algorithm(&["oneshot"], call, placement, None).map(Way::Plan);
        }
        if placement.hosts > 1 {
            let names = between_hosts(call.collective, bytes, placement);
            return algorithm(names, call, placement, Some(blocks)).map(Way::Plan);
        }
        let is_plain = call.collective == Collective::AllReduce && !rule.scales();
        if is_plain && Module::all_reduce(rule.family()).is_some() {
            let packets = if placement.ranks < MANY { PACKET_ROOM } else { PACKETS_OF_MANY };
            match bytes {
                _ if bytes <= packets => return Ok(Way::Packets),
                _ if bytes <= one_shot(placement.ranks) => return Ok(Way::OneShot),
                ..=STAGED => return Ok(Way::Staged),
                _ => {}
            }
        }
        let name = match call.collective {
            Collective::AllReduce if bytes > one_shot(placement.ranks).max(ONE_STEP) => "twoshot",
            Collective::Broadcast | Collective::Reduce if bytes > CHAIN_FROM => "chain",
            Collective::AllToAll => "exchange",
            _ => "oneshot",
        };
        algorithm(&[name], call, placement, None).map(Way::Plan)
    }

    /// It, or what does the same by multicast where there is that.
    pub(super) fn or_multicast(self, has_multicast: bool) -> Way {
        match self {
            Way::OneShot if has_multicast => Way::Multicast,
            other => other,
        }
    }

    /// Whether it may be made on buffers that all ranks have registered: all of them find out before each such call.
    pub(super) fn may_be_mapped(&self, call: &Call, placement: Placement, rule: &Rule) -> bool {
        let is_two_shot = match self {
            Way::Plan(algorithm) => algorithm.name() == "twoshot",
            Way::Staged => true,
            _ => false,
        };
        let is_long = call.count.saturating_mul(call.dtype.size()) >= MAPPED_FROM;
        let has_kernel = !rule.scales() && Module::all_reduce(rule.family()).is_some();
        let is_here = placement.hosts == 1 && placement.ranks > 1;
        is_two_shot && is_here && is_long && has_kernel && call.collective == Collective::AllReduce
    }

    /// As flight records and errors say it.
    pub(super) fn name(&self) -> String {
        match self {
            Way::Packets => "packets on devices".into(),
            Way::OneShot => "one-shot on devices".into(),
            Way::Multicast => "one-shot by multicast on devices".into(),
            Way::Staged => "two-shot on devices".into(),
            Way::Plan(algorithm) => format!("{} on devices", algorithm.name()),
        }
    }
}

/// The plan of a call whose blocks differ; `longest` is how many bytes the longest has, where all ranks know it. Where each knows its own
/// blocks only, there is one: each of its lanes has one peer.
pub(super) fn uneven(
    call: &Call,
    longest: Option<usize>,
    (placement, blocks): (Placement, u32),
    wanted: Option<&'static str>,
) -> Result<&'static dyn Algorithm> {
    match (longest, wanted) {
        (None, _) => algorithm(&["exchange"], call, placement, None),
        (Some(_), Some(name)) => algorithm(&[name], call, placement, None),
        (Some(bytes), None) if placement.hosts > 1 => {
            algorithm(between_hosts(call.collective, bytes, placement), call, placement, Some(blocks))
        }
        (Some(_), None) => algorithm(&["oneshot"], call, placement, None),
    }
}

/// Algorithms for ranks on several hosts, the best first. The last one always does.
fn between_hosts(collective: Collective, bytes: usize, placement: Placement) -> &'static [&'static str] {
    let (is_short, are_few) = (bytes <= SHORT, placement.ranks <= FEW);
    match collective {
        Collective::AllReduce if is_short && are_few => &["oneshot"],
        Collective::AllReduce if are_few => &["hierarchical", "twoshot"],
        Collective::AllReduce => &["hierarchical", "ring"],
        Collective::AllGather | Collective::ReduceScatter if is_short && are_few => &["oneshot"],
        Collective::AllGather | Collective::ReduceScatter => &["hierarchical", "ring"],
        Collective::Broadcast | Collective::Reduce if bytes > CHAIN_FROM => &["hierarchical", "chain"],
        Collective::AllToAll => &["exchange", "pairwise"],
        _ => &["oneshot"],
    }
}

/// Lanes of the rank that has most of them.
pub(super) fn lanes(algorithm: &dyn Algorithm, spec: &Spec) -> u32 {
    let lanes = (0..spec.ranks).map(|rank| algorithm.program(spec, rank).lanes.len());
    lanes.max().unwrap_or(1).max(1) as u32
}

/// The first of these that does the call, on so many blocks if they are a bound.
fn algorithm(
    names: &[&'static str],
    call: &Call,
    placement: Placement,
    blocks: Option<u32>,
) -> Result<&'static dyn Algorithm> {
    let Call { collective, root, .. } = *call;
    let is_able = |algorithm: &&'static dyn Algorithm| {
        let Some(parts) = algorithm.parts(collective, placement) else { return false };
        let fits = |blocks| lanes(*algorithm, &Spec::placed(collective, placement, root, parts)) <= blocks;
        blocks.is_none_or(fits)
    };
    let found = names.iter().filter_map(|name| algorithms::by_name(name)).find(is_able);
    found.ok_or_else(|| {
        let Placement { ranks, hosts, .. } = placement;
        let what =
            format!("algorithm {} for {collective} on {ranks} ranks of {hosts} hosts", names.join(" or "));
        Error::unsupported(what, "choose another, or let the library choose")
    })
}

#[cfg(test)]
mod tests {
    use super::super::MOST_RANKS_OF_ALL_HOSTS;
    use super::super::arena::SCRATCH;
    use super::super::links::{CHANNELS, CREDITS};
    use super::*;
    use crate::program::{Geometry, MAX_TEAM, Program, stage_room};
    use ccl_core::engine::Layout;
    use ccl_core::plan::{Sink, Source};
    use ccl_core::verify::{Limits, verify};
    use ccl_core::{DataType, ReduceOp};

    fn way(collective: Collective, count: usize, dtype: DataType, op: ReduceOp) -> String {
        let call = Call { collective, count, dtype, op, root: 0 };
        let rule = Rule::new(dtype, op, 3).expect("fits");
        Way::of(&call, (Placement::one_host(3), 32), &rule, None).expect("a way").name()
    }

    #[test]
    fn short_sums_of_floats_have_kernels_of_their_own() {
        use Collective::AllReduce;
        use DataType::{F32, F64};
        assert_eq!(way(AllReduce, 0, F32, ReduceOp::Sum), "packets on devices");
        assert_eq!(way(AllReduce, 16_384, F32, ReduceOp::Prod), "packets on devices");
        assert_eq!(way(AllReduce, 16_385, F32, ReduceOp::Sum), "one-shot on devices");
        let by_multicast = |way: Way| [true, false].map(|has| way.or_multicast(has).name());
        assert_eq!(by_multicast(Way::OneShot), ["one-shot by multicast on devices", "one-shot on devices"]);
        assert_eq!(by_multicast(Way::Packets), ["packets on devices"; 2]);
        assert_eq!(way(AllReduce, 262_145, F32, ReduceOp::Sum), "two-shot on devices");
        assert_eq!(way(AllReduce, 1 << 20, F32, ReduceOp::Sum), "two-shot on devices");
        assert_eq!(way(AllReduce, (1 << 20) + 1, F32, ReduceOp::Sum), "twoshot on devices");
        assert!((1..=MAX_TEAM).all(|ranks| one_shot(ranks as u32) <= stage_room(ranks)));
        assert_eq!(way(AllReduce, 8, F32, ReduceOp::Avg), "oneshot on devices", "scaled");
        assert_eq!(way(AllReduce, 8, F32, ReduceOp::Max), "oneshot on devices");
        assert_eq!(way(AllReduce, 131_072, F64, ReduceOp::Sum), "oneshot on devices");
        assert_eq!(way(AllReduce, 131_073, F64, ReduceOp::Sum), "twoshot on devices");
        assert_eq!(way(Collective::Broadcast, 1 << 20, F32, ReduceOp::Sum), "chain on devices");
    }

    #[test]
    fn long_sums_of_floats_may_be_made_on_registered_buffers() {
        let may = |count, dtype, op, ranks, wanted| {
            let call = Call { collective: Collective::AllReduce, count, dtype, op, root: 0 };
            let rule = Rule::new(dtype, op, ranks).expect("fits");
            let placement = Placement::one_host(ranks);
            let way = Way::of(&call, (placement, 32), &rule, wanted).expect("a way");
            way.may_be_mapped(&call, placement, &rule)
        };
        use DataType::{F32, I32};
        assert!(
            may(1 << 20, F32, ReduceOp::Sum, 3, None)
                && may(1 << 21, DataType::BF16, ReduceOp::Prod, 3, None)
        );
        assert!(!may((1 << 20) - 1, F32, ReduceOp::Sum, 3, None), "short");
        assert!(!may(1 << 20, I32, ReduceOp::Sum, 3, None) && !may(1 << 20, F32, ReduceOp::Max, 3, None));
        assert!(!may(1 << 20, F32, ReduceOp::Avg, 3, None), "scaled");
        assert!(
            !may(1 << 20, F32, ReduceOp::Sum, 3, Some("ring")) && !may(1 << 20, F32, ReduceOp::Sum, 1, None)
        );
    }

    #[test]
    fn every_plan_is_proved_with_the_links_of_an_arena() {
        let even = |ranks, hosts| Placement::even(ranks, hosts).expect("it divides");
        let one_host = [2, 3, 8, MAX_TEAM as u32].map(Placement::one_host);
        let several = [even(2, 2), even(3, 3), even(4, 2), even(6, 3), even(8, 2), even(16, 4)];
        for (placement, scratch, channels) in one_host
            .map(|placement| (placement, 0, CHANNELS[0]))
            .into_iter()
            .chain(several.map(|placement| (placement, SCRATCH, CHANNELS[1])))
        {
            for algorithm in algorithms::all() {
                for collective in Collective::ALL {
                    let Some(plan) = algorithms::plan(*algorithm, collective, placement, 0) else { continue };
                    let limits = Limits { credits: CREDITS, ..Limits::default() };
                    let name = algorithm.name();
                    assert!(verify(&plan, &limits).is_ok(), "{name} {collective} of {placement:?}");
                    for program in &plan.programs {
                        let pieces = program.lanes.iter().map(|lane| lane.scratch as usize).sum::<usize>();
                        assert!(pieces <= scratch, "{name} {collective}");
                        assert!(
                            channels_of(program).all(|channel| channel < channels),
                            "{name} {collective}"
                        );
                    }
                }
            }
        }
    }

    fn channels_of(program: &ccl_core::plan::Program) -> impl Iterator<Item = u16> {
        let moves = program.lanes.iter().flat_map(|lane| &lane.moves);
        moves.flat_map(|mv| {
            let from = mv.from.iter().filter_map(|source| match source {
                Source::Link(link) => Some(link.channel),
                _ => None,
            });
            let into = mv.into.iter().filter_map(|sink| match sink {
                Sink::Links(links) => Some(links.channel),
                _ => None,
            });
            from.chain(into)
        })
    }

    /// The algorithm on 4 ranks of 2 hosts with so many blocks.
    fn far(collective: Collective, count: usize, blocks: u32) -> String {
        let call = Call { collective, count, dtype: DataType::F32, op: ReduceOp::Sum, root: 0 };
        let rule = Rule::new(DataType::F32, ReduceOp::Sum, 4).expect("fits");
        let placement = Placement::even(4, 2).expect("it divides");
        Way::of(&call, (placement, blocks), &rule, None).expect("a way").name()
    }

    #[test]
    fn between_hosts_plans_are_taken_whose_lanes_fit() {
        use Collective::{AllReduce, AllToAll, Broadcast};
        assert_eq!(far(AllReduce, 100, 32), "oneshot on devices");
        assert_eq!(far(AllReduce, 5000, 32), "hierarchical on devices");
        assert_eq!(far(AllReduce, 5000, 4), "twoshot on devices");
        assert_eq!(far(AllToAll, 1, 3), "pairwise on devices");
        assert_eq!(far(AllToAll, 1, 4), "exchange on devices");
        assert_eq!(far(Broadcast, 1 << 20, 1), "chain on devices");
    }

    #[test]
    fn blocks_that_differ_are_exchanged_where_only_two_ranks_know_them() {
        use Collective::{AllGather, AllToAll, Gather};
        let name = |collective, longest, hosts, wanted| {
            let call = Call { collective, count: 0, dtype: DataType::F32, op: ReduceOp::Sum, root: 0 };
            let placement = Placement::even(4, hosts).expect("it divides");
            uneven(&call, longest, (placement, 32), wanted).expect("a way").name()
        };
        assert_eq!(name(AllToAll, None, 2, Some("pairwise")), "exchange");
        assert_eq!(name(Gather, None, 1, None), "exchange");
        assert_eq!(name(AllGather, Some(1 << 20), 1, None), "oneshot");
        assert_eq!(name(AllGather, Some(1000), 2, None), "oneshot");
        assert_eq!(name(AllGather, Some(1 << 20), 2, None), "hierarchical");
        assert_eq!(name(AllGather, Some(1 << 20), 2, Some("ring")), "ring");
    }

    #[test]
    fn the_most_ranks_that_there_may_be_fit_into_a_kernel() {
        let most = MOST_RANKS_OF_ALL_HOSTS as u32;
        for placement in [8, most].map(|hosts| Placement::even(most, hosts).expect("it divides")) {
            for collective in Collective::ALL.into_iter().filter(|one| *one != Collective::SendRecv) {
                for bytes in [0, 1 << 30] {
                    let call =
                        Call { collective, count: 1, dtype: DataType::U8, op: ReduceOp::Sum, root: most - 1 };
                    let names = between_hosts(collective, bytes, placement);
                    let Ok(algorithm) = algorithm(names, &call, placement, Some(32)) else {
                        panic!("no plan for {collective} on {placement:?}")
                    };
                    let parts = algorithm.parts(collective, placement).expect("it does it");
                    let spec = Spec::placed(collective, placement, call.root, parts);
                    for rank in [0, 7, most - 1] {
                        let layout = Layout::new(&spec, rank, 1000, DataType::U8, 4096).expect("a layout");
                        let geometry = Geometry { slot_bytes: 4096, credits: CREDITS, shares: 1 };
                        let program = Program::encode(&algorithm.program(&spec, rank), &layout, geometry);
                        assert!(
                            program.is_ok(),
                            "{} {collective} {placement:?}: {program:?}",
                            algorithm.name()
                        );
                    }
                }
            }
        }
    }
}

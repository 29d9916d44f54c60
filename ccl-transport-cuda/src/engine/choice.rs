//! How a call is made: by which kernel, and by which plan.

use super::arena::{ONE_SHOT_ROOM, PACKET_ROOM};
use crate::program::{Module, Rule};
use ccl_core::algorithms::{self, Algorithm};
use ccl_core::communicator::Call;
use ccl_core::plan::{Collective, Placement};
use ccl_core::{Error, Result};

/// A way to make a call.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// All-reduce by packets.
    Packets,
    /// All-reduce in one step through staging memory.
    OneShot,
    /// A plan, by the interpreter.
    Plan(&'static dyn Algorithm),
}

/// From so many ranks on, calls by one step are shorter: each rank reads all that the others have.
const MANY: u32 = 5;
/// Longer calls from or to a root go from rank to rank, so that no rank's memory is read by all.
const CHAIN_FROM: usize = 512 << 10;

impl Way {
    /// For a call among these ranks, with the algorithm that the user wants, if so. All ranks choose alike. Where the lengths lie
    /// at which ways change nobody has measured.
    pub(super) fn of(
        call: &Call,
        placement: Placement,
        rule: &Rule,
        wanted: Option<&'static str>,
    ) -> Result<Way> {
        let bytes = call.count.saturating_mul(call.dtype.size());
        if let Some(name) = wanted {
            return plan(name, call.collective, placement);
        }
        let is_plain = call.collective == Collective::AllReduce && !rule.scales();
        if is_plain && Module::all_reduce(rule.family()).is_some() {
            let most = if placement.ranks < MANY { ONE_SHOT_ROOM } else { ONE_SHOT_ROOM / 2 };
            match bytes {
                ..=PACKET_ROOM => return Ok(Way::Packets),
                _ if bytes <= most => return Ok(Way::OneShot),
                _ => {}
            }
        }
        let name = match call.collective {
            Collective::AllReduce if bytes > PACKET_ROOM => "twoshot",
            Collective::Broadcast | Collective::Reduce if bytes > CHAIN_FROM => "chain",
            Collective::AllToAll => "exchange",
            _ => "oneshot",
        };
        plan(name, call.collective, placement)
    }

    /// As flight records and errors say it.
    pub(super) fn name(&self) -> String {
        match self {
            Way::Packets => "packets on devices".into(),
            Way::OneShot => "one-shot on devices".into(),
            Way::Plan(algorithm) => format!("{} on devices", algorithm.name()),
        }
    }
}

fn plan(name: &str, collective: Collective, placement: Placement) -> Result<Way> {
    let able = |algorithm: &&'static dyn Algorithm| algorithm.parts(collective, placement).is_some();
    let found = algorithms::by_name(name).filter(able);
    found.map(Way::Plan).ok_or_else(|| {
        let what = format!("algorithm {name} for {collective} on {} ranks of one host", placement.ranks);
        Error::unsupported(what, "choose another, or let the library choose")
    })
}

#[cfg(test)]
mod tests {
    use super::super::arena::{CHANNELS, CREDITS};
    use super::*;
    use crate::program::MAX_TEAM;
    use ccl_core::plan::{Sink, Source};
    use ccl_core::verify::{Limits, verify};
    use ccl_core::{DataType, ReduceOp};

    fn way(collective: Collective, count: usize, dtype: DataType, op: ReduceOp) -> String {
        let call = Call { collective, count, dtype, op, root: 0 };
        let rule = Rule::new(dtype, op, 3).expect("fits");
        Way::of(&call, Placement::one_host(3), &rule, None).expect("a way").name()
    }

    #[test]
    fn short_sums_of_floats_have_kernels_of_their_own() {
        use Collective::AllReduce;
        use DataType::{F32, F64};
        assert_eq!(way(AllReduce, 0, F32, ReduceOp::Sum), "packets on devices");
        assert_eq!(way(AllReduce, 4096, F32, ReduceOp::Prod), "packets on devices");
        assert_eq!(way(AllReduce, 4097, F32, ReduceOp::Sum), "one-shot on devices");
        assert_eq!(way(AllReduce, 131_073, F32, ReduceOp::Sum), "twoshot on devices");
        assert_eq!(way(AllReduce, 8, F32, ReduceOp::Avg), "oneshot on devices", "scaled");
        assert_eq!(way(AllReduce, 8, F32, ReduceOp::Max), "oneshot on devices");
        assert_eq!(way(AllReduce, 8, F64, ReduceOp::Sum), "oneshot on devices");
        assert_eq!(way(Collective::Broadcast, 1 << 20, F32, ReduceOp::Sum), "chain on devices");
    }

    #[test]
    fn every_plan_is_proved_with_the_links_of_an_arena() {
        for algorithm in algorithms::all() {
            for collective in Collective::ALL {
                for ranks in [2, 3, 8, MAX_TEAM as u32] {
                    let Some(plan) = algorithms::plan(*algorithm, collective, ranks, 0) else { continue };
                    let limits = Limits { credits: CREDITS, ..Limits::default() };
                    assert!(verify(&plan, &limits).is_ok(), "{} {collective} of {ranks}", algorithm.name());
                    for lane in plan.programs.iter().flat_map(|program| &program.lanes) {
                        assert_eq!(lane.scratch, 0);
                        for mv in &lane.moves {
                            let from = mv.from.iter().filter_map(|source| match source {
                                Source::Link(link) => Some(link.channel),
                                _ => None,
                            });
                            let into = mv.into.iter().filter_map(|sink| match sink {
                                Sink::Links(links) => Some(links.channel),
                                _ => None,
                            });
                            assert!(from.chain(into).all(|channel| channel < CHANNELS));
                        }
                    }
                }
            }
        }
    }
}

//! The determinism table: what the order of every plan's reductions promises, as the verifier reads it off.

use ccl_core::algorithms;
use ccl_core::plan::Collective;
use ccl_core::verify::{Limits, verify};
use std::fmt::Write as _;

const RANKS: std::ops::RangeInclusive<u32> = 2..=16;

/// The page of the documentation.
pub(crate) fn page() -> Result<String, String> {
    let mut out = format!(
        "# Determinism\n\n<!-- written by cargo xtask gen -->\n\nA plan fixes the order in which contributions are \
         combined, so the same call gives the same bits on every run. Whether the bits are also the same elsewhere \
         is read off the verifier's ordered terms, here for every plan of {} to {} ranks (all roots of rooted \
         collectives):\n\n\
         - *every rank*: all ranks that get an element get the same bits;\n\
         - *every size*: an element's bits do not depend on its position or on the size of the message;\n\
         - *rank order*: contributions are combined as by a loop over the ranks, 0 first.\n\n\
         | algorithm | collective | every rank | every size | rank order |\n| --- | --- | --- | --- | --- |\n",
        RANKS.start(),
        RANKS.end()
    );
    for algorithm in algorithms::all() {
        for collective in Collective::ALL.into_iter().filter(|c| c.reduces()) {
            let Some(held) = promises(*algorithm, collective)? else { continue };
            let _ = write!(out, "| `{}` | `{collective}` |", algorithm.name());
            for promise in held {
                let _ = write!(out, " {} |", promise.words());
            }
            out.push('\n');
        }
    }
    out.push_str("\nCollectives that only move data give the same bits everywhere.\n");
    Ok(out)
}

/// For how many of the plans a promise holds.
#[derive(Clone, Copy, Default)]
struct Promise {
    held: u32,
    plans: u32,
}

impl Promise {
    fn words(self) -> String {
        match self.held {
            0 => "no".into(),
            held if held == self.plans => "yes".into(),
            held => format!("{held} of {} plans", self.plans),
        }
    }
}

/// None where the algorithm does not do the collective.
fn promises(
    algorithm: &'static dyn algorithms::Algorithm,
    collective: Collective,
) -> Result<Option<[Promise; 3]>, String> {
    let mut all = [Promise::default(); 3];
    for ranks in RANKS {
        for root in 0..if collective.rooted() { ranks } else { 1 } {
            let Some(plan) = algorithms::plan(algorithm, collective, ranks, root) else { continue };
            let proof = verify(&plan, &Limits::default())
                .map_err(|fault| format!("{} {collective} of {ranks} ranks: {fault}", algorithm.name()))?;
            let order = proof.order;
            let held = [order.same_on_every_rank, order.same_at_every_size, order.rank_order];
            for (promise, held) in all.iter_mut().zip(held) {
                promise.plans += 1;
                promise.held += u32::from(held);
            }
        }
    }
    Ok((all[0].plans > 0).then_some(all))
}

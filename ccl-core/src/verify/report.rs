//! What the proofs say about the order of reductions, as a table for the documentation.

use super::{Fault, Limits, Order, verify};
use crate::plan::{Collective, Plan};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A Markdown page that says, for each algorithm and reducing collective, whether the result has the same
/// bits on every rank, at every message size, and in the order of the ranks.
///
/// It is read off the proofs of `plans`, for as many numbers of ranks as they have; 1 and 2 ranks have one
/// order only and say little. Plans of collectives that do not reduce are left out.
pub fn determinism_markdown(plans: impl IntoIterator<Item = Plan>) -> Result<String, Fault> {
    let mut rows = BTreeMap::<(String, Collective), Row>::new();
    for plan in plans {
        if plan.spec.collective.reduces() {
            let proof = verify(&plan, &Limits::default())?;
            let row = rows.entry((plan.algorithm, plan.spec.collective)).or_default();
            row.orders.push(proof.order);
            row.in_place.push(proof.in_place);
            row.ranks.push(plan.spec.ranks);
        }
    }
    let mut page = String::from(HEAD);
    for ((algorithm, collective), row) in &rows {
        let ask = |property: fn(&Order) -> bool| answer(row.orders.iter().map(property));
        let _ = writeln!(
            page,
            "| `{algorithm}` | `{collective}` | yes | {} | {} | {} | {} | {} |",
            ask(|order| order.same_on_every_rank),
            ask(|order| order.same_at_every_size),
            ask(|order| order.rank_order),
            answer(row.in_place.iter().copied()),
            numbers(&row.ranks),
        );
    }
    Ok(page)
}

const HEAD: &str = "\
# Determinism

Floating-point addition is not associative, so the order of a reduction decides its bits. The order is part
of the plan and the verifier computes it, so that the answers below are proved, not promised. The page is
generated from the proofs.

- *every run*: the same call on the same number of ranks, and for `hierarchical` of hosts, gives the same bits each
  time. Always, because a move combines its sources in the order in which they are written, whichever arrives first.
- *every rank*: all ranks get the same bits.
- *every size*: an element's bits do not depend on where it stands in its block, nor on how long that is.
  The choice of the algorithm may depend on the size; name one to fix it.
- *rank order*: ((0 + 1) + 2) + …, as a loop over the ranks computes it. 16- and 8-bit types are added in
  32 bits inside a move and rounded at its end.
- *in place*: the plan also holds where the send and the receive buffer are the same.

| algorithm | collective | every run | every rank | every size | rank order | in place | proved for n |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

#[derive(Default)]
struct Row {
    orders: Vec<Order>,
    in_place: Vec<bool>,
    ranks: Vec<u32>,
}

fn answer(holds: impl Iterator<Item = bool>) -> &'static str {
    let (mut yes, mut no) = (false, false);
    holds.for_each(|holds| if holds { yes = true } else { no = true });
    match (yes, no) {
        (true, true) => "for some n",
        (true, false) => "yes",
        _ => "no",
    }
}

/// Each once, in order, as runs: `3-8, 16`.
fn numbers(ranks: &[u32]) -> String {
    crate::error::RankList(ranks).to_string()
}

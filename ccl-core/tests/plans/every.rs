//! Every plan for some numbers of ranks: those written by hand, and those of all algorithms.

use crate::plans;
use ccl_core::algorithms::{self, Hierarchical};
use ccl_core::plan::{Collective, Placement, Plan};

pub(crate) fn every_plan(sizes: &[u32]) -> Vec<Plan> {
    let mut all = Vec::new();
    for &n in sizes {
        all.extend([plans::ring(n), plans::one_shot(n), plans::tree(n)]);
        for &algorithm in algorithms::all() {
            for collective in Collective::ALL {
                let root = if collective.rooted() { n - 1 } else { 0 };
                all.extend(algorithms::plan(algorithm, collective, n, root));
            }
        }
        // The others do on several hosts what they do on one.
        for placement in (2..n).filter_map(|hosts| Placement::even(n, hosts)) {
            for collective in Collective::ALL {
                let root = if collective.rooted() { n - 1 } else { 0 };
                all.extend(algorithms::plan(&Hierarchical, collective, placement, root));
            }
        }
    }
    all
}

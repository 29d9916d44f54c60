//! What a plan is for, as the command line says it; and the machine that it would run on.

use ccl::algorithms::{self, Algorithm};
use ccl::cost::{Candidates, Choice, Model, Wish};
use ccl::plan::Placement;
use ccl::{Collective, Config, Rank, slot_bytes_of};

/// Ranks whose programs fit into memory all at once.
pub(crate) const MOST_PROGRAMS: u32 = 1024;

/// Ranks that a price can be asked for.
pub(crate) const MOST_RANKS: i64 = 65536;

/// The names of the collectives, for help texts.
pub(crate) const COLLECTIVES: &str =
    "all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather or scatter";

/// A collective by its name, also without its underscores or with dashes.
pub(crate) fn collective(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    let known = Collective::ALL.into_iter().find(|c| plain(c.name()) == plain(text));
    known.ok_or_else(|| format!("'{text}' is no collective: one of {COLLECTIVES}"))
}

/// An algorithm by its name.
pub(crate) fn algorithm(text: &str) -> Result<Named, String> {
    algorithms::by_name(text).map(Named).ok_or_else(|| {
        let names: Vec<_> = ccl::algorithm_names().collect();
        format!("'{text}' is no algorithm: one of {}", names.join(", "))
    })
}

/// An algorithm that was named.
#[derive(Clone, Copy)]
pub(crate) struct Named(pub(crate) &'static dyn Algorithm);

/// The root, if the collective has one and it is a rank.
pub(crate) fn root(collective: Collective, ranks: u32, root: Option<Rank>) -> Result<Rank, String> {
    match root {
        None => Ok(0),
        Some(_) if !collective.rooted() => Err(format!("{collective} has no root: leave --root out")),
        Some(root) if root >= ranks => {
            Err(format!("--root {root} with {ranks} ranks: a root is one of 0 to {}", ranks - 1))
        }
        Some(root) => Ok(root),
    }
}

/// How so many ranks lie on so many hosts.
pub(crate) fn placement(ranks: u32, hosts: u32) -> Result<Placement, String> {
    Placement::even(ranks, hosts)
        .ok_or_else(|| format!("--hosts {hosts}: {ranks} ranks cannot lie on them in equal numbers"))
}

/// Ranks and, if there are several, hosts.
pub(crate) fn words(placement: Placement) -> String {
    let Placement { ranks, hosts, .. } = placement;
    if hosts == 1 { format!("{ranks} ranks") } else { format!("{ranks} ranks on {hosts} hosts") }
}

/// That all programs can be written at once.
pub(crate) fn whole(ranks: u32) -> Result<(), String> {
    if ranks > MOST_PROGRAMS {
        return Err(format!("-n {ranks}: whole plans are written for at most {MOST_PROGRAMS} ranks"));
    }
    Ok(())
}

/// That the algorithm does this; the error names those that do.
pub(crate) fn able(
    algorithm: &dyn Algorithm,
    collective: Collective,
    placement: Placement,
) -> Result<(), String> {
    if algorithm.parts(collective, placement).is_some() {
        return Ok(());
    }
    let all = algorithms::all().iter().filter(|a| a.parts(collective, placement).is_some());
    let names: Vec<_> = all.map(|a| a.name()).collect();
    let (name, ranks) = (algorithm.name(), words(placement));
    Err(format!("{name} does no {collective} for {ranks}: one of {}", names.join(", ")))
}

/// This machine with ranks on it, and more of its kind if they lie on several, as a communicator would see it.
pub(crate) struct Machine {
    /// The settings in force.
    pub(crate) config: Config,
    /// What things take.
    pub(crate) model: Model,
}

impl Machine {
    /// The one that this process runs on: with its profile, if it has one, and the cores that the process may run on.
    pub(crate) fn here(config: Config, placement: impl Into<Placement>) -> Result<Machine, ccl::Error> {
        let placement = placement.into();
        let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
        let model = Model::tuned(config.tuned()?.constants, cores, placement.locals());
        Ok(Machine::of(config, placement, model))
    }

    /// One of so many cores with the built-in constants.
    pub(crate) fn built_in(config: Config, cores: u32, placement: Placement) -> Machine {
        Machine::of(config, placement, Model::shared_memory(cores, placement.locals()))
    }

    fn of(config: Config, placement: Placement, model: Model) -> Machine {
        let slot_bytes = config.slot_bytes.unwrap_or_else(|| slot_bytes_of(placement));
        Machine { model: Model { slot_bytes, ..model }, config }
    }

    /// What a communicator would do for blocks of so many bytes, unless it is told to use `only`.
    pub(crate) fn choose(
        &self,
        candidates: &Candidates,
        block: usize,
        in_place: bool,
        only: Option<&str>,
    ) -> Result<Choice, ccl::Error> {
        let set = self.config.algorithm_for(candidates.collective(), candidates.placement());
        let wish = Wish { algorithm: only.or(set), tile_bytes: self.config.tile_bytes };
        candidates.choose(&self.model, block, in_place, wish)
    }
}

/// Blocks in the longer of the two buffers, by which sizes are counted as in the perf programs.
pub(crate) fn blocks(collective: Collective, ranks: u32) -> usize {
    collective.input_blocks(ranks, 0, 0).max(collective.output_blocks(ranks, 0, 0)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_joined() {
        for text in ["all_to_all", "alltoall", "all-to-all", "AllToAll"] {
            assert_eq!(collective(text), Ok(Collective::AllToAll));
        }
        for known in Collective::ALL {
            assert_eq!(collective(known.name()), Ok(known));
            assert!(COLLECTIVES.contains(known.name()));
        }
        assert!(collective("all_reduc").unwrap_err().contains("one of all_reduce, reduce"));
        assert!(algorithm("rings").err().is_some_and(|why| why.contains("one of oneshot")));
    }

    #[test]
    fn ranks_lie_on_hosts_in_equal_numbers() {
        assert_eq!(placement(8, 2).map(words), Ok("8 ranks on 2 hosts".into()));
        assert_eq!(placement(8, 1).map(words), Ok("8 ranks".into()));
        assert!(placement(8, 3).unwrap_err().contains("8 ranks cannot lie"));
        let (tree, hierarchical) = (algorithm("tree").unwrap(), algorithm("hierarchical").unwrap());
        let able = |named: Named, hosts| able(named.0, Collective::AllReduce, placement(8, hosts).unwrap());
        assert_eq!((able(tree, 1), able(tree, 2), able(hierarchical, 2)), (Ok(()), Ok(()), Ok(())));
        assert!(
            able(hierarchical, 1)
                .unwrap_err()
                .contains("hierarchical does no all_reduce for 8 ranks: one of")
        );
    }

    #[test]
    fn roots_are_ranks_of_collectives_that_have_one() {
        assert_eq!(root(Collective::Broadcast, 4, Some(3)), Ok(3));
        assert_eq!(root(Collective::AllReduce, 4, None), Ok(0));
        assert!(root(Collective::AllReduce, 4, Some(0)).unwrap_err().contains("no root"));
        assert!(root(Collective::Gather, 4, Some(4)).unwrap_err().contains("0 to 3"));
    }
}

//! The library's own programs between hosts: one process per rank, placed on hosts as a cluster's launcher would.

use crate::network::Network;
use crate::peers::free_port;
use crate::placement::Placement;
use crate::process::{Process, wait_until};
use std::path::Path;
use std::time::Instant;

/// What to run, and where.
pub(crate) struct Job<'a> {
    /// `all_reduce_perf` or a sibling.
    pub(crate) program: &'a str,
    pub(crate) arguments: &'a str,
    /// The host of each rank.
    pub(crate) placement: &'a [usize],
    /// Beside those that every job has.
    pub(crate) variables: &'a [(&'a str, &'a str)],
    /// Words before each rank's program, such as a limit.
    pub(crate) before: &'a str,
    pub(crate) processors: Placement,
}

/// A job whose ranks run.
pub(crate) struct Running {
    ranks: Vec<Process>,
}

impl Job<'_> {
    /// Starts all ranks.
    pub(crate) fn start(&self, network: &Network, programs: &Path) -> Result<Running, String> {
        let program = programs.join(self.program);
        let line = format!("{} {}", program.display(), self.arguments);
        let root = format!("127.0.0.1:{}", free_port()?);
        let size = self.placement.len();
        let rank = |(rank, host): (usize, &usize)| {
            let mut variables = network.hosts[*host].environment();
            let mut set = |name: &str, value: String| variables.push((name.into(), value));
            set("RDMACCL_RANK", rank.to_string());
            set("RDMACCL_SIZE", size.to_string());
            set("RDMACCL_ROOT", root.clone());
            set("RDMACCL_SECRET", "sixteen characters or more".into());
            for (name, value) in self.variables {
                set(name, (*value).into());
            }
            let before = format!("{}{}", self.processors.words(*host), self.before);
            Process::start_with(&line, &variables, &before)
        };
        Ok(Running { ranks: self.placement.iter().enumerate().map(rank).collect::<Result<_, _>>()? })
    }

    /// Runs it to its end: every rank ends well, and not one element is wrong. What rank 0 said.
    pub(crate) fn run(
        &self,
        network: &Network,
        programs: &Path,
        deadline: Instant,
    ) -> Result<String, String> {
        self.start(network, programs)?.right(deadline)
    }
}

impl Running {
    /// Returns when one of these ranks has printed this.
    pub(crate) fn has_said(&mut self, ranks: &[usize], text: &str, deadline: Instant) -> Result<(), String> {
        wait_until(&format!("one of ranks {ranks:?} to say '{text}'"), deadline, || {
            let ended = ranks.iter().all(|rank| self.ranks[*rank].has_ended());
            let said: Vec<String> = ranks.iter().map(|rank| self.ranks[*rank].said()).collect();
            let is_said = said.iter().any(|said| said.contains(text));
            if ended && !is_said {
                return Err(format!("ranks {ranks:?} ended without saying '{text}':\n{}", said.join("\n")));
            }
            Ok(is_said)
        })
    }

    /// Kills a rank's process; it counts as one that has failed.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill();
    }

    /// What a rank has printed so far.
    pub(crate) fn said(&self, rank: usize) -> String {
        self.ranks[rank].said()
    }

    /// Waits for all ranks, each of which must end well, and for rank 0 to say that no element is wrong. What it said.
    pub(crate) fn right(self, deadline: Instant) -> Result<String, String> {
        let mut first = None;
        for (rank, process) in self.ranks.into_iter().enumerate() {
            let said = process.finish(deadline).map_err(|why| format!("rank {rank}: {why}"))?;
            first.get_or_insert(said);
        }
        let said = first.unwrap_or_default();
        if said.contains("# Out of bounds values : 0 OK") {
            Ok(said)
        } else {
            Err(format!("rank 0 does not say that its data is right:\n{said}"))
        }
    }

    /// Waits for all ranks, each of which must fail. What each said.
    pub(crate) fn errors(self, deadline: Instant) -> Result<Vec<String>, String> {
        let mut errors = Vec::new();
        for (rank, process) in self.ranks.into_iter().enumerate() {
            match process.end(deadline).map_err(|why| format!("rank {rank}: {why}"))? {
                (false, said) => errors.push(said),
                (true, said) => return Err(format!("rank {rank} was expected to fail:\n{said}")),
            }
        }
        Ok(errors)
    }
}

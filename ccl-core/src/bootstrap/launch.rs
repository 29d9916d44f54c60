//! Rank, size and rendezvous from a launcher's environment.
//!
//! The first launcher in this table whose rank variable is set is used:
//!
//! | launcher | rank | size | local rank | meeting point |
//! | --- | --- | --- | --- | --- |
//! | rdmaccl | `RDMACCL_RANK` | `RDMACCL_SIZE` | `RDMACCL_LOCAL_RANK` | `RDMACCL_ID` or `RDMACCL_ROOT` |
//! | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT` + 1 |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | on one host: from the job's name |
//! | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` | on one host: from the job's name |
//! | Slurm | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` | first host of the step, port from the job's id |
//!
//! `RDMACCL_ID` or `RDMACCL_ROOT` overrides every meeting point. Where none is derived, the ranks are
//! known and the error says which variable to set.

use super::UniqueId;
use super::key::Key;
use crate::error::{Error, Result};
use crate::plan::Rank;
use std::net::ToSocketAddrs;

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher's name.
    pub launcher: &'static str,
    /// This process's rank.
    pub rank: Rank,
    /// How many ranks.
    pub size: u32,
    /// Which of the ranks on this host it is, where the launcher says so.
    pub local_rank: Option<u32>,
    /// How the ranks find each other.
    pub meeting: Meeting,
}

/// How the ranks of a launcher find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The unique id, in hexadecimal.
    Id(String),
    /// For [`UniqueId::from_rendezvous`](super::UniqueId::from_rendezvous), once the host's name is resolved.
    Rendezvous {
        /// Host name or address of rank 0.
        host: String,
        /// Its port.
        port: u16,
        /// What the ranks of this run have in common.
        seed: String,
    },
}

impl Launch {
    /// The id that all ranks of this launch come to.
    pub fn unique_id(&self) -> Result<UniqueId> {
        match &self.meeting {
            Meeting::Id(text) => text.parse(),
            Meeting::Rendezvous { host, port, seed } => {
                let unknown = |cause: std::io::Error| {
                    Error::system(
                        format!("looking up rank 0's host '{host}'"),
                        cause,
                        "set RDMACCL_ROOT=host:port to an address of rank 0 that all ranks reach",
                    )
                };
                let mut addresses = (host.as_str(), *port).to_socket_addrs().map_err(unknown)?;
                let address = addresses.next().ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))?;
                Ok(UniqueId::from_rendezvous(address, seed.as_bytes()))
            }
        }
    }
}

struct Family {
    launcher: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
}

const FAMILIES: [Family; 5] = [
    family("rdmaccl", "RDMACCL_RANK", "RDMACCL_SIZE", "RDMACCL_LOCAL_RANK"),
    family("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    family("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    family("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    family("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
];

const fn family(
    launcher: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
) -> Family {
    Family { launcher, rank, size, local_rank }
}

/// What the environment says, or `None` where no launcher started this process.
pub fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
    let get = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let Some(family) = FAMILIES.iter().find(|f| get(f.rank).is_some()) else {
        return match get("RDMACCL_SIZE") {
            Some(_) => Err(Error::invalid("RDMACCL_SIZE without RDMACCL_RANK", "set both or neither")),
            None => Ok(None),
        };
    };
    let number = |name: &str| {
        let read = |text: String| {
            let wrong = |_| Error::invalid(format!("{name}={text}"), "set it to a number from 0".to_string());
            text.trim().parse::<u32>().map_err(wrong)
        };
        get(name).map(read).transpose()
    };
    let both = || Error::invalid(format!("{} without {}", family.rank, family.size), "set both or neither");
    let rank = number(family.rank)?.ok_or_else(both)?;
    let size = number(family.size)?.ok_or_else(both)?;
    if rank >= size {
        let what = format!("{}={rank} with {}={size}", family.rank, family.size);
        return Err(Error::invalid(what, "ranks go from 0 to size - 1"));
    }
    let local_rank = number(family.local_rank)?;
    let meeting = meeting(family.launcher, size, &get)?;
    Ok(Some(Launch { launcher: family.launcher, rank, size, local_rank, meeting }))
}

fn meeting(launcher: &'static str, size: u32, get: &dyn Fn(&str) -> Option<String>) -> Result<Meeting> {
    if let Some(id) = get("RDMACCL_ID") {
        return Ok(Meeting::Id(id));
    }
    if let Some(root) = get("RDMACCL_ROOT") {
        let parsed = root.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) =
            parsed.ok_or_else(|| Error::invalid(format!("RDMACCL_ROOT={root}"), "set it to host:port"))?;
        let host = host.trim_matches(['[', ']']).to_string();
        return Ok(Meeting::Rendezvous { host, port, seed: format!("root {root} {size}") });
    }
    let derived = |host: String, job: String| {
        let seed = format!("{launcher} {job} {size}");
        Meeting::Rendezvous { host, port: port_of(&seed), seed }
    };
    let found = match launcher {
        "torchrun" => match (get("MASTER_ADDR"), get("MASTER_PORT")) {
            (Some(host), Some(text)) => {
                // The port itself is the launcher's own store.
                let port = text.trim().parse::<u16>().ok().and_then(|port| port.checked_add(1));
                let port = port.ok_or_else(|| {
                    Error::invalid(format!("MASTER_PORT={text}"), "set it to a port below 65535")
                })?;
                let run = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
                let turn = get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
                let seed = format!("torchrun {host}:{text} {run} {turn} {size}");
                Some(Meeting::Rendezvous { host, port, seed })
            }
            _ => None,
        },
        "Slurm" => {
            let host = get("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
            let job =
                get("SLURM_JOB_ID").map(|id| format!("{id}.{}", get("SLURM_STEP_ID").unwrap_or_default()));
            host.or_else(|| get("SLURM_LAUNCH_NODE_IPADDR")).zip(job).map(|(host, job)| derived(host, job))
        }
        "Open MPI" => {
            let one_host = get("OMPI_COMM_WORLD_LOCAL_SIZE") == get("OMPI_COMM_WORLD_SIZE");
            let job = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
            job.filter(|_| one_host).map(|job| derived("127.0.0.1".into(), job))
        }
        "PMI" => {
            let one_host = get("MPI_LOCALNRANKS") == get("PMI_SIZE");
            let job = get("PMI_JOBID").or_else(|| get("HYDI_CONTROL_FD")).or_else(|| get("PMI_PORT"));
            job.filter(|_| one_host).map(|job| derived("127.0.0.1".into(), job))
        }
        _ => None,
    };
    found.ok_or_else(|| {
        let what = format!("{launcher} gives ranks but no place to meet");
        Error::invalid(what, "set RDMACCL_ROOT=host:port, a free port on rank 0's host, for all ranks")
    })
}

/// A port that all ranks of a job derive alike, below the range from which systems give ports away.
fn port_of(seed: &str) -> u16 {
    let [low, high, ..] = Key::from_seed(seed.as_bytes()).0;
    20_000 + u16::from_le_bytes([low, high]) % 12_000
}

/// The first host of Slurm's compressed list: `node[003-007,9],other` is `node003`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let first = match rest.strip_prefix('[') {
        Some(inside) => {
            let (ranges, suffix) = inside.split_once(']')?;
            let number = ranges.split(['-', ',']).next()?;
            format!("{prefix}{number}{}", suffix.split(',').next()?)
        }
        None => prefix.to_string(),
    };
    (!first.is_empty()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<Option<Launch>> {
        detect(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn each_launcher_is_understood() {
        let torch = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "n0"),
            ("MASTER_PORT", "29500"),
        ];
        let launch = with(&torch).unwrap().unwrap();
        assert_eq!((launch.rank, launch.size, launch.local_rank), (3, 4, Some(1)));
        assert!(matches!(launch.meeting, Meeting::Rendezvous { port: 29501, .. }));
        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_NODELIST", "n[03-4]"),
        ];
        let launch = with(&slurm).unwrap().unwrap();
        assert!(matches!(launch.meeting, Meeting::Rendezvous { host, port: 20_000.., .. } if host == "n03"));
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-host-42@1"),
        ];
        assert_eq!(with(&open_mpi).unwrap().unwrap().launcher, "Open MPI");
        let own = [("RDMACCL_RANK", "1"), ("RDMACCL_SIZE", "2"), ("RDMACCL_ROOT", "[::1]:9"), ("RANK", "0")];
        let launch = with(&own).unwrap().unwrap();
        assert!(matches!(launch.meeting, Meeting::Rendezvous { host, port: 9, .. } if host == "::1"));
        assert_eq!(with(&[("PATH", "x")]).unwrap(), None);
    }

    #[test]
    fn half_a_launcher_is_an_error_that_says_what_to_set() {
        let error = |vars: &[(&str, &str)]| with(vars).unwrap_err().to_string();
        assert!(error(&[("RANK", "1")]).contains("WORLD_SIZE"));
        assert!(error(&[("RDMACCL_SIZE", "1")]).contains("RDMACCL_RANK"));
        assert!(error(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).contains("from 0 to size - 1"));
        assert!(error(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).contains("PMI_RANK=x"));
        assert!(error(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).contains("RDMACCL_ROOT=host:port"));
    }

    #[test]
    fn the_first_host_of_a_list() {
        let cases = [("a", "a"), ("a,b", "a"), ("n[003-007,9],x", "n003"), ("r[1,2]-ib,z", "r1-ib")];
        for (list, first) in cases {
            assert_eq!(first_host(list).as_deref(), Some(first));
        }
        assert_eq!(first_host(""), None);
    }
}

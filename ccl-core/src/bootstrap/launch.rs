//! Rank, size and rendezvous from a launcher's environment.
//!
//! The first launcher in this table whose rank variable is set is used:
//!
//! | launcher | rank | size | local rank | meeting point |
//! | --- | --- | --- | --- | --- |
//! | rdmaccl | `RDMACCL_RANK` | `RDMACCL_SIZE` | `RDMACCL_LOCAL_RANK` | `RDMACCL_ID` or `RDMACCL_ROOT` |
//! | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT` + 1 |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | on one host: loopback |
//! | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` | on one host: loopback; under `srun`: Slurm's |
//! | Slurm | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID` | first host of the step |
//!
//! `RDMACCL_ID` or `RDMACCL_ROOT` overrides every meeting point. Where none is derived, the ranks are
//! known and the error says which variable to set. Ports that no variable gives are derived from the job: for
//! Open MPI from its namespace, for MPICH and Intel MPI from the process that started the ranks, for Slurm
//! from the numbers of job and step; two jobs on one host do not meet.
//!
//! # Who else could join
//!
//! A job that has an id (`RDMACCL_ID`) has a random secret. Without one the secret is made of what the
//! launcher's environment offers, and is as good as that: `RDMACCL_SECRET`, `PMI_SHARED_SECRET` and a
//! `TORCHELASTIC_RUN_ID` that is a UUID (as `torchrun --standalone` makes it) are unknown to strangers. Job numbers,
//! addresses and process ids are mixed in too, so that jobs do not mix by accident, but a stranger can
//! guess them, and then take a rank's place if it reaches the port. Rank 0 warns when there is nothing better
//! and the meeting point is not on loopback, where only this host's users can call. Set
//! `RDMACCL_SECRET` to the same random text on all ranks, or let only trusted hosts reach the ports.

use super::UniqueId;
use super::key::Key;
use crate::config::host_and_port;
use crate::error::{Error, Result, excerpt};
use crate::plan::Rank;
use rustix::fd::RawFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, getppid, pidfd_getfd, pidfd_open};
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

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
    Id(Secret),
    /// For [`UniqueId::from_rendezvous`](super::UniqueId::from_rendezvous), once the host's name is resolved.
    Rendezvous {
        /// Host name or address of rank 0.
        host: String,
        /// Its port.
        port: u16,
        /// What the ranks of this run have in common.
        seed: Secret,
        /// Whether a stranger can guess the seed.
        guessable: bool,
    },
}

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Launch {
    /// The id that all ranks of this launch come to. Looks up the host's name, which takes as long as the
    /// system's resolver allows.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let (host, port, seed, guessable) = match &self.meeting {
            Meeting::Id(Secret(text)) => return text.parse(),
            Meeting::Rendezvous { host, port, seed, guessable } => (host, *port, seed, *guessable),
        };
        let unknown = |cause: std::io::Error| {
            Error::system(
                format!("looking up rank 0's host '{host}'"),
                cause,
                "set RDMACCL_ROOT=host:port to an address of rank 0 that all ranks reach",
            )
        };
        // `localhost` is loopback by definition, also on a system without /etc/hosts.
        let looked_up = (host.as_str(), port).to_socket_addrs().or_else(|error| match host.as_str() {
            "localhost" => ("127.0.0.1", port).to_socket_addrs(),
            _ => Err(error),
        });
        let addresses: Vec<SocketAddr> = looked_up.map_err(unknown)?.collect();
        if addresses.is_empty() {
            return Err(unknown(std::io::ErrorKind::NotFound.into()));
        }
        // A host's own name may stand for loopback on that host and for the network on all others.
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if guessable && !here && self.rank == 0 && self.size > 1 {
            tracing::warn!(
                launcher = self.launcher,
                host,
                port,
                "strangers who reach this port can guess the job's secret; set RDMACCL_SECRET to the same random text \
                 on all ranks"
            );
        }
        Ok(UniqueId::meeting(&addresses, seed.0.as_bytes(), here))
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
    let in_step = |f: &&Family| f.launcher != "Slurm" || get("SLURM_STEP_ID").is_some();
    let Some(family) = FAMILIES.iter().find(|f| get(f.rank).is_some() && in_step(f)) else {
        return match get("RDMACCL_SIZE") {
            Some(_) => Err(Error::invalid("RDMACCL_SIZE without RDMACCL_RANK", "set both or neither")),
            None => Ok(None),
        };
    };
    let number = |name: &str| {
        let read = |text: String| {
            let wrong = |_| Error::invalid(format!("{name}={}", excerpt(&text)), "set it to a number from 0");
            text.trim().parse::<u32>().map_err(wrong)
        };
        get(name).map(read).transpose()
    };
    // A step may have fewer tasks than its job.
    let size_name = match family.launcher {
        "Slurm" if get("SLURM_STEP_NUM_TASKS").is_some() => "SLURM_STEP_NUM_TASKS",
        _ => family.size,
    };
    let both = || Error::invalid(format!("{} without {size_name}", family.rank), "set both or neither");
    let rank = number(family.rank)?.ok_or_else(both)?;
    let size = number(size_name)?.ok_or_else(both)?;
    if rank >= size {
        let what = format!("{}={rank} with {size_name}={size}", family.rank);
        return Err(Error::invalid(what, "ranks go from 0 to size - 1"));
    }
    let local_rank = number(family.local_rank)?;
    let meeting = meeting(family.launcher, size, &get)?;
    Ok(Some(Launch { launcher: family.launcher, rank, size, local_rank, meeting }))
}

fn meeting(launcher: &'static str, size: u32, get: &dyn Fn(&str) -> Option<String>) -> Result<Meeting> {
    if let Some(id) = get("RDMACCL_ID") {
        return Ok(Meeting::Id(Secret(id)));
    }
    let run = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let shared =
        [get("RDMACCL_SECRET"), get("PMI_SHARED_SECRET"), Some(run.clone()).filter(|run| is_uuid(run))];
    let at = |host: String, port: u16, job: String| Meeting::Rendezvous {
        host,
        port,
        seed: Secret(format!("{job}\n{shared:?}")),
        guessable: shared.iter().all(Option::is_none),
    };
    if let Some(root) = get("RDMACCL_ROOT") {
        let (host, port) = host_and_port(&root).ok_or_else(|| {
            Error::invalid(format!("RDMACCL_ROOT={}", excerpt(&root)), "set it to host:port")
        })?;
        return Ok(at(host.to_string(), port, format!("root {} {size}", root.trim())));
    }
    let derived = |host: String, job: String| {
        let job = format!("{launcher} {job} {size}");
        at(host, port_of(&job), job)
    };
    let on_loopback = |job| derived("127.0.0.1".into(), job);
    let found = match launcher {
        "torchrun" => match (get("MASTER_ADDR"), get("MASTER_PORT")) {
            (Some(host), Some(text)) => {
                // The port itself is the launcher's own store.
                let port = text.trim().parse::<u16>().ok().and_then(|port| port.checked_add(1));
                let port = port.ok_or_else(|| {
                    Error::invalid(format!("MASTER_PORT={}", excerpt(&text)), "set it to a port below 65535")
                })?;
                let turn = get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
                let job = format!("torchrun {host}:{text} {run} {turn} {size}");
                Some(at(host, port, job))
            }
            _ => None,
        },
        "Slurm" => slurm(get).map(|(host, job)| derived(host, job)),
        "Open MPI" => {
            let one_host = get("OMPI_COMM_WORLD_LOCAL_SIZE") == get("OMPI_COMM_WORLD_SIZE");
            let job = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
            job.filter(|_| one_host).map(on_loopback)
        }
        "PMI" if get("MPI_LOCALNRANKS") == get("PMI_SIZE") => Some(on_loopback(pmi_job(get))),
        // `srun --mpi=pmi2` gives the ranks in both ways.
        "PMI" if get("PMI_RANK") == get("SLURM_PROCID") => slurm(get).map(|(host, job)| derived(host, job)),
        _ => None,
    };
    found.ok_or_else(|| {
        let what = format!("{launcher} gives ranks but no place to meet");
        Error::invalid(what, "set RDMACCL_ROOT=host:port, a free port on rank 0's host, for all ranks")
    })
}

/// First host of this step, and its name among all steps.
fn slurm(get: &dyn Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let host = get("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
    let (job, step) = (get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?);
    Some((host.or_else(|| get("SLURM_LAUNCH_NODE_IPADDR"))?, format!("{job}.{step}")))
}

/// What tells this job from others of the same launcher on this host. Hydra puts no name of the job into
/// the environment, but all ranks of a host have one parent, which made the sockets behind `PMI_FD`; the
/// sockets still say so where a shell stands in between.
fn pmi_job(get: &dyn Fn(&str) -> Option<String>) -> String {
    let named = get("PMI_JOBID").or_else(|| get("I_MPI_HYDRA_UUID")).or_else(|| get("PMI_PORT"));
    named.unwrap_or_else(|| {
        let maker = get("PMI_FD").and_then(|fd| maker_of(fd.trim().parse().ok()?));
        format!("of process {}", maker.or_else(|| Some(getppid()?.as_raw_pid())).unwrap_or_default())
    })
}

/// The process that made this socket pair.
fn maker_of(fd: RawFd) -> Option<i32> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    let socket = pidfd_getfd(own, fd, PidfdGetfdFlags::empty()).ok()?;
    Some(rustix::net::sockopt::socket_peercred(socket).ok()?.pid.as_raw_pid())
}

/// Whether this is a UUID in its usual form. Its makers give it 122 random bits; a name that a person gave has few.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
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
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "n[03-4]"),
        ];
        // In a batch script itself no step has begun.
        assert_eq!(with(&slurm[..3]).unwrap(), None);
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

    /// Intel MPI's, without the variables that no rank is told by.
    const HYDRA: [(&str, &str); 5] = [
        ("MPI_LOCALNRANKS", "2"),
        ("MPI_LOCALRANKID", "1"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("I_MPI_HYDRA_UUID", "0e0e0000-df6d-ea63-c260-0600441efc5b"),
    ];

    fn seed(vars: &[(&str, &str)]) -> (Secret, bool) {
        match with(vars).unwrap().unwrap().meeting {
            Meeting::Rendezvous { seed, guessable, .. } => (seed, guessable),
            Meeting::Id(id) => (id, false),
        }
    }

    #[test]
    fn two_jobs_of_hydra_on_one_host_do_not_meet() {
        let mut other = HYDRA;
        other[4].1 = "1f0e0000-df6d-ea63-c260-0600441efc5b";
        assert_ne!(seed(&HYDRA), seed(&other));
        // MPICH says nothing of its job: the sockets of two launchers differ by who made them.
        let (pair, _other_end) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&pair).to_string();
        let mpich = [HYDRA[0], HYDRA[1], HYDRA[2], HYDRA[3], ("PMI_FD", fd.as_str())];
        assert_ne!(seed(&mpich), seed(&HYDRA[..4]), "a socket that we made, and our parent");
        assert_eq!(seed(&mpich), seed(&mpich));
    }

    #[test]
    fn srun_with_pmi_meets_at_the_first_host_of_the_step() {
        let vars = [
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("SLURM_PROCID", "1"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "n[03-4]"),
        ];
        let launch = with(&vars).unwrap().unwrap();
        assert!(matches!(launch.meeting, Meeting::Rendezvous { host, .. } if host == "n03"));
    }

    #[test]
    fn a_secret_of_the_environment_is_mixed_in_and_not_shown() {
        let torch = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")];
        let (plain, guessable) = seed(&torch);
        assert!(guessable);
        let secrets = [
            ("RDMACCL_SECRET", "correct horse battery"),
            ("PMI_SHARED_SECRET", "8246291123"),
            ("TORCHELASTIC_RUN_ID", "7d9d4bd2-7b5c-4f0e-9ad5-2f5c3ab6a4c1"),
        ];
        for secret in secrets {
            let vars = [torch[0], torch[1], torch[2], torch[3], secret];
            let (mixed, guessable) = seed(&vars);
            assert!(mixed != plain && !guessable, "{}", secret.0);
            assert!(!format!("{:?}", with(&vars)).contains(secret.1));
        }
        let named = [torch[0], torch[1], torch[2], torch[3], ("TORCHELASTIC_RUN_ID", "my-run")];
        assert!(seed(&named).0 != plain && seed(&named).1);
        let mine = [("RDMACCL_RANK", "0"), ("RDMACCL_SIZE", "1"), ("RDMACCL_ROOT", "h:9"), secrets[0]];
        assert!(!seed(&mine).1);
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

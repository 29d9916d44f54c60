//! The environment: our variables and those of launchers. An input is a list of lines `NAME=value`; a line that begins
//! with a number in place of a name means the variable of that number.

use super::Script;
use crate::bootstrap::launch::{Meeting, detect};
use crate::config::{Config, Origin, VARIABLES};

/// Variables of launchers, beside our own.
const FOREIGN: [&str; 28] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PMI_JOBID",
    "PMI_PORT",
    "PMI_SHARED_SECRET",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_LAUNCH_NODE_IPADDR",
];

fn names() -> impl Iterator<Item = &'static str> + Clone {
    VARIABLES.iter().map(|v| v.name).chain(FOREIGN)
}

fn environment(data: &[u8]) -> Vec<(String, String)> {
    let mut script = Script::new(data);
    let mut variables = Vec::new();
    while !script.is_over() {
        let line = script.line();
        let (name, value) = line.split_once('=').unwrap_or((&line, ""));
        let numbered = name.parse().ok().and_then(|number| names().nth(number));
        variables.push((numbered.unwrap_or(name).to_string(), value.to_string()));
    }
    variables
}

/// Variables are read or refused with their name; `from_vars` and `examine` agree; what is shown of a setting can be set
/// again and means the same; secrets are not shown.
pub fn config(data: &[u8]) {
    let variables = environment(data);
    let examined = Config::examine(variables.clone());
    let wrong: Vec<_> =
        examined.settings.iter().filter_map(|s| s.error.as_ref().map(|e| (s.name, e))).collect();
    for (name, error) in &wrong {
        assert!(error.contains(name) && error.contains("set it to"), "{error}");
        assert!(!error.contains('\n'), "{error:?}");
    }
    for (name, meant) in &examined.unknown {
        assert!(!is_ours(name) && is_ours(meant));
    }
    let config = match Config::from_vars(variables.clone()) {
        Err(error) => {
            assert!(wrong.iter().any(|(_, why)| **why == error.to_string()), "{error}");
            return;
        }
        Ok(config) => config,
    };
    assert_eq!(config, examined.config);
    let hidden = |name: &str| ["RDMACCL_ID", "RDMACCL_SECRET"].contains(&name);
    let set =
        config.explain().into_iter().filter(|(name, _, origin)| *origin != Origin::Default && !hidden(name));
    let again =
        Config::from_vars(set.map(|(name, value, _)| (name.to_string(), value))).expect("right values");
    for ((name, value, _), (_, same, _)) in config.explain().iter().zip(again.explain()) {
        assert!(*value == same || hidden(name), "{name}: {value} became {same}");
    }
}

fn is_ours(name: &str) -> bool {
    VARIABLES.iter().any(|v| v.name == name)
}

/// A launcher's environment gives a rank that exists, or an error, or nothing.
pub fn launch(data: &[u8]) {
    let variables = environment(data);
    let lookup = |name: &str| variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let Ok(Some(launch)) = detect(lookup) else { return };
    assert!(launch.rank < launch.size);
    // Any other meeting point is looked up in the network's directory.
    match &launch.meeting {
        Meeting::Id(_) => drop(launch.unique_id()),
        Meeting::Rendezvous { host, .. } if host == "127.0.0.1" => assert!(launch.unique_id().is_ok()),
        Meeting::Rendezvous { host, .. } => assert!(!host.is_empty()),
    }
}

fn lines(variables: &[(&str, &str)]) -> Vec<u8> {
    variables.iter().flat_map(|(name, value)| format!("{name}={value}\n").into_bytes()).collect()
}

pub(super) fn config_seeds() -> Vec<(String, Vec<u8>)> {
    let id = "ab".repeat(128);
    let all = [
        ("RDMACCL_DEBUG", "info,ccl_core=trace"),
        ("RDMACCL_TIMEOUT", "0.5"),
        ("RDMACCL_INIT_TIMEOUT", "30"),
        ("RDMACCL_SOCKET_IFNAME", "^=docker0,lo"),
        ("RDMACCL_SOCKET_FAMILY", "6"),
        ("RDMACCL_PORT_RANGE", "40000-40999"),
        ("RDMACCL_ALGO", "all_reduce:ring,tree"),
        ("RDMACCL_TILE_BYTES", "64K"),
        ("RDMACCL_SLOT_BYTES", "1m"),
        ("RDMACCL_CREDITS", "4"),
        ("RDMACCL_SIMD", "scalar"),
        ("RDMACCL_NET", "tcp"),
        ("RDMACCL_TCP_SOCKETS", "4"),
        ("RDMACCL_HOSTID", "a"),
        ("RDMACCL_VERIFY", "always"),
        ("RDMACCL_ID", &id),
        ("RDMACCL_RANK", "1"),
        ("RDMACCL_SIZE", "2"),
        ("RDMACCL_LOCAL_RANK", "0"),
        ("RDMACCL_ROOT", "[::1]:4711"),
        ("RDMACCL_SECRET", "0123456789abcdef"),
    ];
    let defaults: Vec<_> = VARIABLES.iter().map(|v| (v.name, v.default)).collect();
    vec![
        ("all".into(), lines(&all)),
        ("defaults".into(), lines(&defaults)),
        ("wrong".into(), lines(&[(concat!("RDMACCL_", "CREDTIS"), "4"), ("1", "-1"), ("PATH", "x")])),
    ]
}

pub(super) fn launch_seeds() -> Vec<(String, Vec<u8>)> {
    let own = [("RDMACCL_RANK", "1"), ("RDMACCL_SIZE", "2"), ("RDMACCL_ROOT", "[::1]:9")];
    let torchrun = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")];
    let open_mpi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-host-42@1"),
    ];
    let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("PMI_JOBID", "7")];
    let slurm = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[03-4],m"),
    ];
    let all = [
        ("own", &own[..]),
        ("torchrun", &torchrun),
        ("open-mpi", &open_mpi),
        ("pmi", &pmi),
        ("slurm", &slurm),
    ];
    all.map(|(name, variables)| (name.to_string(), lines(variables))).to_vec()
}

//! What a launcher has told this process.

use ccl::launch::{self, Meeting};
use serde::Serialize;

/// The launcher that would be believed, and the variables that speak of one.
#[derive(Serialize)]
pub(super) struct Launcher {
    pub(super) name: Option<&'static str>,
    pub(super) rank: Option<u32>,
    pub(super) size: Option<u32>,
    pub(super) local_rank: Option<u32>,
    /// Where the ranks would meet.
    pub(super) meeting: Option<String>,
    /// Why a launcher that is half there is not believed.
    pub(super) error: Option<String>,
    pub(super) variables: Vec<Variable>,
}

/// One that is set.
#[derive(Serialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// Names, or their beginnings, of launchers' variables that are looked at.
const NAMES: [&str; 18] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMI_",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "I_MPI_HYDRA_UUID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_",
    "SLURM_NTASKS",
];

/// Reads the environment.
pub(super) fn look(environment: &[(String, String)]) -> Launcher {
    let get = |name: &str| environment.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let (found, error) = match launch::detect(get) {
        Ok(found) => (found, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let meeting = found.as_ref().map(|launch| match &launch.meeting {
        Meeting::Id(_) => "RDMACCL_ID".to_string(),
        Meeting::Rendezvous { host, port, guessable, .. } => {
            let secret =
                if *guessable { "; a stranger can guess its secret: set RDMACCL_SECRET" } else { "" };
            format!("{host}:{port}{secret}")
        }
    });
    let mut variables: Vec<_> =
        environment.iter().filter(|(name, _)| is_launchers(name)).map(shown).collect();
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    Launcher {
        name: found.as_ref().map(|launch| launch.launcher),
        rank: found.as_ref().map(|launch| launch.rank),
        size: found.as_ref().map(|launch| launch.size),
        local_rank: found.as_ref().and_then(|launch| launch.local_rank),
        meeting,
        error,
        variables,
    }
}

fn is_launchers(name: &str) -> bool {
    NAMES.iter().any(|known| name == *known || known.ends_with('_') && name.starts_with(known))
}

fn shown((name, value): &(String, String)) -> Variable {
    // A run's id that is random is what keeps strangers out.
    let secret = name.contains("SECRET") || name == "TORCHELASTIC_RUN_ID";
    let value = if secret { "set (secret)" } else { value };
    Variable { name: name.clone(), value: value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Launcher {
        look(&vars.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect::<Vec<_>>())
    }

    #[test]
    fn a_launcher_is_told_with_its_variables_and_without_its_secrets() {
        let torch = [
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "n0"),
            ("MASTER_PORT", "29500"),
            ("PMI_SHARED_SECRET", "hidden"),
            ("TORCHELASTIC_RUN_ID", "hidden"),
            ("PATH", "x"),
        ];
        let launcher = with(&torch);
        assert_eq!((launcher.name, launcher.rank, launcher.size), (Some("torchrun"), Some(1), Some(4)));
        assert_eq!(launcher.meeting.as_deref(), Some("n0:29501"));
        assert_eq!(launcher.variables.len(), 6);
        assert!(launcher.variables.iter().all(|v| v.value != "hidden"));
    }

    #[test]
    fn none_and_half_a_launcher_are_told_apart() {
        let none = with(&[("HOME", "/")]);
        assert!(none.name.is_none() && none.error.is_none() && none.variables.is_empty());
        assert!(with(&[("RANK", "1")]).error.is_some_and(|why| why.contains("WORLD_SIZE")));
    }
}

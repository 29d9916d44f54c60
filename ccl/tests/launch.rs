//! Processes that find each other by the variables of a launcher alone.

use ccl::{Communicator, ReduceOp};
use std::process::{Child, Command, Stdio};

/// Says to a child of these tests how many ranks it must find.
const CHILD: &str = "CCL_TEST_LAUNCH_SIZE";

/// A rank of the other tests, which start this program again with the variable set; without it there is nothing
/// to do.
#[test]
fn a_rank() {
    let Ok(size) = std::env::var(CHILD) else { return };
    let size: f32 = size.parse().unwrap();
    let mut comm = Communicator::from_env().unwrap();
    assert_eq!(comm.size() as f32, size);
    let mut sum = [0.0];
    comm.all_reduce(&[comm.rank() as f32 + 1.0], &mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum[0], size * (size + 1.0) / 2.0);
    drop(comm);
}

/// Starts a rank with these variables and none of a launcher that may have started the tests.
fn start(rank: u32, size: u32, vars: &[(&str, String)]) -> Child {
    let prefixes = ["RDMACCL_", "OMPI_", "PMI", "MPI_", "SLURM_", "I_MPI_", "TORCHELASTIC_", "MASTER_"];
    let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) || names.contains(&&*text) {
            command.env_remove(name);
        }
    }
    command.args(["--exact", "a_rank"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env(CHILD, size.to_string()).env("RDMACCL_INIT_TIMEOUT", "60");
    let fill = |value: &str| value.replace("@rank", &rank.to_string()).replace("@size", &size.to_string());
    command.envs(vars.iter().map(|(name, value)| (name, fill(value)))).spawn().unwrap()
}

/// Runs jobs side by side; all ranks of all of them must come to the right sum.
fn run(jobs: &[(u32, Vec<(&str, String)>)]) {
    let start_all = |(size, vars): &(u32, Vec<(&str, String)>)| {
        (0..*size).map(|rank| start(rank, *size, vars)).collect::<Vec<_>>()
    };
    let children: Vec<Child> = jobs.iter().flat_map(start_all).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    }
}

fn vars<'a>(pairs: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    pairs.iter().map(|(name, value)| (*name, value.to_string())).collect()
}

/// Tells this run's jobs from those of another run of these tests on this machine.
fn own() -> String {
    std::process::id().to_string()
}

fn hydra(job: &str) -> Vec<(&'static str, String)> {
    let mut vars = vars(&[
        ("PMI_RANK", "@rank"),
        ("PMI_SIZE", "@size"),
        ("MPI_LOCALNRANKS", "@size"),
        ("MPI_LOCALRANKID", "@rank"),
    ]);
    vars.push(("I_MPI_HYDRA_UUID", format!("{}-{job}", own())));
    vars
}

#[test]
fn two_jobs_of_intel_mpi_side_by_side() {
    run(&[(3, hydra("first")), (2, hydra("second")), (2, hydra("third"))]);
}

#[test]
fn mpich_names_no_job() {
    let mut unnamed = hydra("");
    unnamed.pop();
    run(&[(3, unnamed)]);
}

#[test]
fn open_mpi() {
    let mut job = vars(&[
        ("OMPI_COMM_WORLD_RANK", "@rank"),
        ("OMPI_COMM_WORLD_SIZE", "@size"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "@rank"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "@size"),
    ]);
    job.push(("PMIX_NAMESPACE", format!("prterun-host-{}@1", own())));
    run(&[(3, job)]);
}

#[test]
fn torchrun_whose_store_holds_the_port() {
    let store = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = vars(&[
        ("RANK", "@rank"),
        ("WORLD_SIZE", "@size"),
        ("LOCAL_RANK", "@rank"),
        ("MASTER_ADDR", "localhost"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ]);
    job.push(("MASTER_PORT", (store.local_addr().unwrap().port() - 1).to_string()));
    run(&[(2, job)]);
}

#[test]
fn a_step_of_slurm_smaller_than_its_job() {
    let mut job = vars(&[
        ("SLURM_PROCID", "@rank"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_STEP_NUM_TASKS", "@size"),
        ("SLURM_LOCALID", "@rank"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "localhost"),
        ("RDMACCL_SECRET", "known to these ranks only"),
    ]);
    job.push(("SLURM_JOB_ID", own()));
    run(&[(2, job)]);
}

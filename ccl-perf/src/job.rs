//! How the ranks of this process come into the job.

use crate::device;
use crate::options::{Options, Place};
use crate::report::Report;
use crate::{Program, bench};
use ccl::launch::{self, Launch};
use ccl::{Builder, Communicator, Config, UniqueId};
use std::io::Write as _;
use std::sync::mpsc;

/// What rank 0 of this process has to say: wrong elements on all ranks, and the report if it is rank 0
/// of the job.
pub(crate) type Outcome = (u64, Option<Report>);

/// Environment by which the launcher tells a process its place; the names are the library's own.
pub(crate) const RANK: &str = "RDMACCL_RANK";
/// Ranks in all.
pub(crate) const SIZE: &str = "RDMACCL_SIZE";
/// The job's unique id, in hexadecimal digits; absent for the process that makes it.
pub(crate) const ID: &str = "RDMACCL_ID";

/// Who started this process as one rank of a job, if anybody. A job of one rank, such as an interactive
/// allocation, does not stand in the way of starting ranks here.
pub(crate) fn starter(options: &Options) -> Result<Option<Launch>, String> {
    let launch = launch::detect(|name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let several = options.processes.unwrap_or(1) * options.threads > 1;
    Ok(launch.filter(|launch| launch.size > 1 || !several))
}

/// Joins the ranks that a launcher started.
pub(crate) fn join_starter(program: Program, options: &Options, launch: &Launch) -> Result<Outcome, String> {
    let local = options.threads * options.processes.unwrap_or(1);
    if local > 1 {
        let starter = launch.launcher;
        return Err(format!(
            "-g and -t ask for {local} ranks here, but {starter} already started this process as one rank: \
             leave them out and let {starter} start more"
        ));
    }
    let id = launch.unique_id().map_err(|e| e.to_string())?;
    join(program, options, (launch.rank, launch.size), id)
}

fn join(program: Program, options: &Options, place: (u32, u32), id: UniqueId) -> Result<Outcome, String> {
    let builder = builder(options, place, id).map_err(|e| e.to_string())?;
    measure(builder.build(), program, options)
}

fn builder(options: &Options, (rank, size): (u32, u32), id: UniqueId) -> ccl::Result<Builder> {
    let mut config = Config::from_env()?;
    if let Some(hosts) = options.hosts {
        config.host_id = Some(host_of(rank, size, hosts));
    }
    let mut builder = Communicator::builder().rank(rank).size(size).unique_id(id);
    if options.memory == Place::Device {
        builder = builder.device(device::number(&config, rank)?);
    }
    let builder = builder.config(config);
    Ok(match options.timeout() {
        Some(timeout) => builder.timeout(timeout),
        None => builder,
    })
}

/// The name of a rank's pretended host: ranks are dealt in blocks that differ by one at most.
fn host_of(rank: u32, size: u32, hosts: u32) -> String {
    let host = u64::from(rank) * u64::from(hosts.min(size)) / u64::from(size);
    format!("host-{host}")
}

/// Ranks that are threads of this process and nothing else.
pub(crate) fn threads(program: Program, options: &Options) -> Result<Outcome, String> {
    let id = create_id()?;
    run_threads(program, options, 0, options.threads, id)
}

/// The place that the launcher gave this process.
pub(crate) fn join_launcher(program: Program, options: &Options) -> Result<Outcome, String> {
    let first = number(RANK)?;
    let size = number(SIZE)?;
    let id = match std::env::var(ID) {
        Ok(text) => text.parse().map_err(|e: ccl::Error| e.to_string())?,
        Err(_) => {
            let id = create_id()?;
            hand_out(&id).map_err(|e| format!("cannot give the unique id to the launcher: {e}"))?;
            id
        }
    };
    run_threads(program, options, first, size, id)
}

/// Writes the id into the launcher's pipe, which is this process's standard input: a descriptor that is
/// there without anybody having to agree on a number.
fn hand_out(id: &UniqueId) -> std::io::Result<()> {
    let mut pipe = std::fs::OpenOptions::new().write(true).open("/proc/self/fd/0")?;
    writeln!(pipe, "{id}")
}

fn number(name: &str) -> Result<u32, String> {
    let text =
        std::env::var(name).map_err(|_| format!("{name} is not set: --child-of is for the launcher"))?;
    text.parse().map_err(|_| format!("{name} is '{text}', which is no number"))
}

fn create_id() -> Result<UniqueId, String> {
    Config::from_env().and_then(|config| UniqueId::create(&config)).map_err(|e| e.to_string())
}

fn measure(
    joined: ccl::Result<Communicator>,
    program: Program,
    options: &Options,
) -> Result<Outcome, String> {
    let all = || {
        let mut comm = joined?;
        let outcome = bench::run(&mut comm, program, options)?;
        Ok(outcome)
    };
    all().map_err(|e: ccl::Error| e.to_string())
}

/// Runs `options.threads` ranks from `first` on, each in a thread; ends with the first that fails.
fn run_threads(
    program: Program,
    options: &Options,
    first: u32,
    size: u32,
    id: UniqueId,
) -> Result<Outcome, String> {
    let rank = move |options: &Options, rank: u32| join(program, options, (rank, size), id);
    if options.threads == 1 {
        return rank(options, first);
    }
    // Not scoped: when one rank fails the others may hang, and the process has to end all the same.
    let (done, outcomes) = mpsc::channel();
    for thread in 0..options.threads {
        let (done, options, rank) = (done.clone(), options.clone(), rank);
        let name = format!("rank {}", first + thread);
        let body = move || {
            let outcome = rank(&options, first + thread);
            let _ = done.send((first + thread, outcome));
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(body)
            .map_err(|e| format!("cannot start a thread: {e}"))?;
    }
    drop(done);
    let mut all = (0, None);
    for _ in 0..options.threads {
        let (rank, outcome) = outcomes.recv().map_err(|_| "a rank's thread panicked".to_string())?;
        let (wrong, report) = outcome.map_err(|e| format!("rank {rank}: {e}"))?;
        all = (wrong, report.or(all.1));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_dealt_to_hosts_in_blocks() {
        let hosts = |size: u32, hosts: u32| -> Vec<String> {
            (0..size).map(|rank| host_of(rank, size, hosts).replace("host-", "")).collect()
        };
        assert_eq!(hosts(4, 2).concat(), "0011");
        assert_eq!(hosts(5, 2).concat(), "00011");
        assert_eq!(hosts(2, 9).concat(), "01");
        assert_eq!(hosts(3, 1).concat(), "000");
    }
}

//! # ccl-softroce: RDMA on a real kernel stack, without RDMA hardware
//!
//! The kernel's software device, rdma_rxe, runs the verbs over ordinary network interfaces. This program makes *hosts*
//! out of it, all in one kernel: each host has an interface, a device and an address per rail, each rail a bridge
//! between them, and routes that let nothing take a short cut. On these it runs *scenarios*: what must be right about
//! devices, links and faults, and the library's own programs between such hosts. Every scenario has its network made
//! anew, a deadline, and a line in the report; everything that it started or made is gone when it ends.
//!
//! `cargo xtask softroce` builds and starts it, in a guest where the machine's kernel has no RDMA. It needs root, and
//! the programs ip, rdma, tc, modprobe, setpriv, taskset and prlimit. `docs/softroce.md` says how to read it.

// A command-line program talks to people.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod faults;
mod job;
mod network;
mod peers;
mod placement;
mod process;
mod report;
mod scenarios;
mod sysfs;

use clap::Parser;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(name = "ccl-softroce", about = "RDMA tests on the kernel's software RDMA device")]
struct Arguments {
    /// Run these scenarios only: names, or parts of them
    only: Vec<String>,
    /// Make hosts, run this shell command among them instead of scenarios, and remove them
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Hosts for --run
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Rails of each host for --run
    #[arg(long, default_value_t = 2)]
    rails: usize,
    /// Say what there is, and run nothing
    #[arg(long)]
    list: bool,
    /// Where the library's programs lie, if not beside this one
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Pass over the first so many of those chosen: a run before this one has made them
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Append what came out of each scenario, with everything measured, to this file: a line of JSON, as soon as it ends
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for scenario in scenarios::ALL.iter().chain(scenarios::NAMED) {
            println!("{:<28} {}", scenario.name, scenario.proves);
        }
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    network::prepare_kernel()?;
    if let Some(shell) = &arguments.run {
        let _network = network::Network::new(arguments.hosts, arguments.rails, network::MTU)?;
        let status = Command::new("sh").args(["-c", shell]).status();
        return status.map(|status| status.success()).map_err(|e| format!("cannot run sh: {e}"));
    }
    let named = |name: &str| arguments.only.iter().any(|o| name.contains(&**o));
    let all = scenarios::ALL.iter().filter(|s| arguments.only.is_empty() || named(s.name));
    let chosen: Vec<_> = all.chain(scenarios::NAMED.iter().filter(|s| named(s.name))).collect();
    if chosen.is_empty() {
        return Err(format!("no scenario is called {}: --list names them", arguments.only.join(" or ")));
    }
    let programs = match &arguments.programs {
        Some(folder) => folder.clone(),
        None => {
            let here =
                std::env::current_exe().map_err(|e| format!("cannot find this program's file: {e}"))?;
            here.parent().map(PathBuf::from).unwrap_or_default()
        }
    };
    let mut report = report::Report::new(arguments.json.as_deref())?;
    for scenario in chosen.into_iter().skip(arguments.skip) {
        // So that the kernel's complaints stand below the name of what led to them. Without them nothing is missing.
        let _ = std::fs::write("/dev/kmsg", format!("<3>softroce: {} begins\n", scenario.name));
        report.add(scenarios::run(scenario, &programs))?;
    }
    Ok(report.close())
}

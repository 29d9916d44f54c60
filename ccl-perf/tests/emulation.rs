//! The programs with `--memory device` where kernels make the calls: over the fake driver, with the kernels on threads of the CPU.
//! `cargo xtask kernels` runs it; it needs g++.

use ccl_fake_cuda::{Fake, compile_kernels};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 4] = ["all_reduce_perf", "all_gather_perf", "alltoall_perf", "sendrecv_perf"];

#[test]
fn programs_measure_calls_by_kernels_in_processes_threads_and_between_hosts() {
    let kernels = compile_kernels(Path::new(env!("CARGO_TARGET_TMPDIR")), None);
    for program in PROGRAMS {
        for line in ["-g 2 -b 64 -e 64K -f 32", "-t 2 -b 4K -e 4K -u 8", "-g 4 -b 64 -e 64K -f 32 --hosts 2"]
        {
            for (engine, said) in [
                ("auto", "kernels make calls on device memory"),
                ("off", "calls on device memory go through the host"),
            ] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_all_reduce_perf"));
                command
                    .arg0(program)
                    .args(line.split_whitespace())
                    .args("-n 2 -w 1 --memory device".split(' '));
                command.stdin(Stdio::null());
                command.env("RDMACCL_CUDA", Fake::library()).env("RDMACCL_TIMEOUT", "60");
                command.env("RDMACCL_FAKE_CUDA", format!("kernels {}", kernels.display()));
                command.env("RDMACCL_DEVICE_BLOCKS", "4").env("RDMACCL_DEVICE_THREADS", "8");
                command.env("RDMACCL_DEVICE_ENGINE", engine).env("RDMACCL_DEBUG", "cuda=info");
                let output = command.output().expect("started");
                let table = String::from_utf8_lossy(&output.stdout);
                let log = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{program} {line}: {}\n{table}\n{log}", output.status);
                assert!(table.contains("# Out of bounds values : 0 OK"), "{program} {line}:\n{table}");
                assert!(log.contains(said), "{program} {line}: {log}");
            }
        }
    }
}

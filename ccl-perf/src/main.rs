//! `all_reduce_perf` and, under their names, its siblings: a link to this file is another program.

fn main() -> std::process::ExitCode {
    ccl_perf::run()
}

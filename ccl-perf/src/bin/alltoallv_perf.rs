//! `alltoallv_perf`: measures and checks all_to_all with blocks that differ, with nccl-tests' options and table.
fn main() -> std::process::ExitCode {
    ccl_perf::run(ccl_perf::Program::AllToAllV)
}

//! `all_reduce_perf`: measures and checks all_reduce, with nccl-tests' options and table.
fn main() -> std::process::ExitCode {
    ccl_perf::run(ccl_perf::Collective::AllReduce)
}

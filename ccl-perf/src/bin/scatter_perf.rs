//! `scatter_perf`: measures and checks scatter, with nccl-tests' options and table.
fn main() -> std::process::ExitCode {
    ccl_perf::run(ccl_perf::Collective::Scatter)
}

//! `sendrecv_perf`: measures and checks a ring of sends and receives, with nccl-tests' options and table.
fn main() -> std::process::ExitCode {
    ccl_perf::run(ccl_perf::Collective::SendRecv)
}

//! `barrier_perf`: measures a barrier and checks that it holds everybody back.
fn main() -> std::process::ExitCode {
    ccl_perf::run(ccl_perf::Program::Barrier)
}

//! A child process that uses its parent's communicator. Alone in its program: a child of a process whose other threads
//! run tests would inherit their locks.

mod common;
use common::*;

#[test]
fn a_child_gets_errors_and_can_have_its_own() {
    let comms = init_all::<2>();
    let stream = stream();
    on_threads(&comms, |_, comm| ok(all_reduce(&mut [1f32], comm, 0)));
    // SAFETY: no other thread is in the library: the stream's sleeps, and so may be lost.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut buffer = [1f32];
        let is_refused = |code| code == INVALID_USAGE && last_error(0).contains("parent process");
        let on_comm = |on| ON_COMM.iter().all(|(_, call)| is_refused(call(comms[0], on)));
        let mut passed = on_comm(0) && on_comm(stream);
        passed &= is_refused(cclHostStreamSynchronize(stream));
        passed &= is_refused(cclHostStreamQuery(stream));
        passed &= is_refused(cclHostStreamWait(stream, 0));
        passed &= is_refused(cclHostStreamDestroy(stream));
        let mut own = 0;
        passed &= cclCommInitAll(&mut own, 1, std::ptr::null()) == SUCCESS;
        passed &= all_reduce(&mut buffer, own, 0) == SUCCESS && cclCommDestroy(own) == SUCCESS;
        // SAFETY: ends the child at once, without the test harness's end.
        unsafe { libc::_exit(if passed { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    on_threads(&comms, |_, comm| ok(all_reduce(&mut [1f32], comm, 0)));
    ok(cclHostStreamDestroy(stream));
    destroy_all(&comms);
}

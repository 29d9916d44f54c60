//! Device memory of one process in another: the test's program starts itself again as the other one.

// The two talk over the harness's output.
#![allow(clippy::print_stdout)]

use ccl_fake_cuda::{Fake, Memory};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The handle, for the other process.
const HANDLE: &str = "FAKE_CUDA_TEST_HANDLE";
const LEN: usize = 5000;
const INVALID_VALUE: i32 = 1;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_STATE: i32 = 401;

/// The other process, which says lines that begin with `peer:` and is told to go on. It is killed should the test fail.
struct Peer {
    child: Child,
    tell: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts `test` of this program again.
    fn start(test: &str, handle: [u8; 64]) -> Peer {
        let hex = handle.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(HANDLE, hex);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let tell = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Peer { child, tell, said }
    }

    fn hear(&mut self, word: &str) {
        let wanted = format!("peer: {word}");
        assert!(
            self.said.any(|line| line.unwrap().ends_with(&wanted)),
            "the peer ended before it said {word}"
        );
    }

    fn go_on(&mut self) {
        self.tell.write_all(b"\n").unwrap();
    }

    fn succeed(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the other process: says a word, and waits until it is told to go on.
fn say(word: &str) {
    println!("peer: {word}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The handle, if this is the other process.
fn given() -> Option<[u8; 64]> {
    let hex = std::env::var(HANDLE).ok()?;
    Some(std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()))
}

#[test]
fn two_processes_have_the_same_bytes() {
    let fake = Fake::start("devices 2");
    if let Some(handle) = given() {
        let (first, again) = (fake.import(0, handle).unwrap(), fake.import(0, handle).unwrap());
        assert_eq!(first, again, "opened again");
        assert_eq!(fake.read(first, LEN), [7; LEN]);
        fake.write(first + 10, b"from the peer");
        assert_eq!(fake.try_free(first), INVALID_VALUE, "it is not this process's");
        assert_eq!(fake.export(0, first), Err(INVALID_VALUE), "nor can it be passed on");
        say("written");
        assert_eq!((fake.close(0, first), fake.close(0, first)), (0, 0));
        assert_eq!(fake.close(0, first), INVALID_VALUE, "closed once too often");
        assert_eq!(fake.live(), 0);
        return;
    }
    let at = fake.alloc(Memory::Device, 1, LEN);
    fake.write(at, &[7; LEN]);
    let handle = fake.export(1, at).unwrap();
    assert_eq!(fake.import(0, handle), Err(INVALID_CONTEXT), "it is this process's");
    assert_eq!(fake.export(1, at + 8), Err(INVALID_VALUE), "not where it begins");
    let mut peer = Peer::start("two_processes_have_the_same_bytes", handle);
    peer.hear("written");
    assert_eq!(fake.read(at + 10, 13), b"from the peer");
    assert_eq!(fake.try_free(at), ILLEGAL_STATE, "freed while the peer has it open");
    assert_eq!((fake.live(), fake.count("freed while open")), (1, 1));
    peer.go_on();
    peer.succeed();
    fake.free(Memory::Device, at);
}

#[test]
fn what_a_dead_process_had_open_is_free_again() {
    let fake = Fake::start("");
    if let Some(handle) = given() {
        fake.import(0, handle).unwrap();
        say("opened");
        unreachable!("it is killed");
    }
    let at = fake.alloc(Memory::Device, 0, LEN);
    let mut peer = Peer::start("what_a_dead_process_had_open_is_free_again", fake.export(0, at).unwrap());
    peer.hear("opened");
    assert_eq!(fake.try_free(at), ILLEGAL_STATE);
    drop(peer);
    fake.free(Memory::Device, at);
}

#[test]
fn handles_of_nothing_and_faults_are_errors() {
    let fake = Fake::start("");
    if let Some(handle) = given() {
        assert_eq!(fake.import(0, [0; 64]), Err(INVALID_VALUE), "no handle");
        assert_eq!(fake.import(0, handle), Err(INVALID_HANDLE), "freed");
        fake.run("fail cuIpcOpenMemHandle code=205");
        assert_eq!(fake.import(0, handle), Err(205));
        return;
    }
    let (at, host) = (fake.alloc(Memory::Device, 0, LEN), fake.alloc(Memory::Pinned, 0, LEN));
    assert_eq!(fake.export(0, host), Err(INVALID_VALUE));
    let handle = fake.export(0, at).unwrap();
    fake.free(Memory::Device, at);
    // It may have the freed one's descriptor.
    let other = fake.alloc(Memory::Device, 0, LEN);
    Peer::start("handles_of_nothing_and_faults_are_errors", handle).succeed();
    fake.free(Memory::Device, other);
    fake.free(Memory::Pinned, host);
}

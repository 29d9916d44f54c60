//! Settings from programs of other versions, and wrong ones.

mod common;
use common::*;
use std::ffi::{CStr, c_int};
use std::mem::offset_of;
use std::ptr::null;

fn init(config: *const Config) -> (c_int, Comm) {
    let mut comm = 1;
    let code = cclCommInitRankConfig(&mut comm, 1, id(), 0, config);
    (code, comm)
}

fn accepted(config: *const Config) {
    let (code, comm) = init(config);
    ok(code);
    ok(cclCommDestroy(comm));
}

#[track_caller]
fn wrong(config: Config, words: &str) {
    let (code, comm) = init(&config);
    refused(code, INVALID_ARGUMENT, words);
    assert_eq!(comm, 0);
}

#[test]
fn nothing_set_and_everything_set() {
    accepted(null());
    accepted(&CONFIG);
    let (name, algorithm) = (c"training", c"ring");
    let all = Config {
        blocking: 1,
        timeout_ms: 5000,
        init_timeout_ms: 5000,
        split_share: 1,
        name: name.as_ptr(),
        algorithm: algorithm.as_ptr(),
        network: c"tcp".as_ptr(),
        ..CONFIG
    };
    let (code, comm) = init(&all);
    ok(code);
    let text = cclCommDescribe(comm);
    // SAFETY: a text, or NULL, which would fail here.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    assert!(text.contains(r#""name":"training""#), "{text}");
    ok(cclCommDestroy(comm));
    assert!(cclCommDescribe(comm).is_null());
}

/// Fields behind the end of an older struct are not read: they hold what would be refused.
#[test]
fn an_older_struct_is_read_to_its_end() {
    let bad = Config { blocking: 7, timeout_ms: -5, init_timeout_ms: -5, split_share: 7, ..CONFIG };
    accepted(&Config { size: offset_of!(Config, blocking), ..bad });
    accepted(&Config { size: offset_of!(Config, timeout_ms), blocking: 1, ..bad });
    wrong(Config { size: offset_of!(Config, init_timeout_ms), blocking: 1, ..bad }, "timeoutMs = -5");
    // In the middle of a field, which is then not a field.
    accepted(&Config { size: offset_of!(Config, timeout_ms) + 2, blocking: 1, ..bad });
}

#[test]
fn a_newer_struct_is_read_as_far_as_it_is_known() {
    #[repr(C)]
    struct Newer {
        config: Config,
        more: [usize; 40],
    }
    let newer = Newer { config: Config { size: size_of::<Newer>(), ..CONFIG }, more: [usize::MAX; 40] };
    accepted((&raw const newer).cast());
    assert_eq!(newer.more.len(), 40);
}

#[test]
fn wrong_settings_are_named() {
    wrong(Config { magic: 0xcafe_beef, ..CONFIG }, "magic 0xcafebeef");
    wrong(Config { size: 0, ..CONFIG }, "0 bytes");
    wrong(Config { size: usize::MAX, ..CONFIG }, "CCL_CONFIG_INITIALIZER");
    wrong(Config { blocking: 2, ..CONFIG }, "blocking = 2");
    wrong(Config { split_share: -1, ..CONFIG }, "splitShare = -1");
    wrong(Config { timeout_ms: 0, ..CONFIG }, "timeoutMs = 0");
    wrong(Config { init_timeout_ms: -1, ..CONFIG }, "initTimeoutMs = -1");
    wrong(Config { algorithm: c"warp".as_ptr(), ..CONFIG }, "warp");
    wrong(Config { network: c"pigeon".as_ptr(), ..CONFIG }, "network 'pigeon'");
    wrong(Config { name: c"\xff".as_ptr(), ..CONFIG }, "UTF-8");
}

#[test]
fn properties_are_filled_in_as_far_as_the_program_knows_them() {
    let comms = init_all::<3>();
    let untouched = Properties {
        size: size_of::<Properties>(),
        rank: -1,
        ranks: -1,
        host_ranks: -1,
        unreachable_peers: -1,
        memory_bytes: u64::MAX,
        calls: u64::MAX,
        transports: [-1; 64],
    };
    let mut now = untouched;
    ok(cclCommGetProperties(comms[1], &mut now));
    assert_eq!((now.rank, now.ranks, now.host_ranks, now.unreachable_peers, now.calls), (1, 3, 3, 0, 0));
    // SAFETY: it ends with 0.
    assert_eq!(unsafe { CStr::from_ptr(now.transports.as_ptr()) }, c"shm");
    let mut older = Properties { size: offset_of!(Properties, memory_bytes), ..untouched };
    ok(cclCommGetProperties(comms[1], &mut older));
    assert_eq!((older.host_ranks, older.memory_bytes, older.calls), (3, u64::MAX, u64::MAX));
    for size in [0, 7, usize::MAX] {
        let mut wrong = Properties { size, ..untouched };
        refused(cclCommGetProperties(comms[1], &mut wrong), INVALID_ARGUMENT, "INITIALIZER");
    }
    let mut device = 0;
    ok(cclCommDevice(comms[1], &mut device));
    assert_eq!(device, -1);
    destroy_all(&comms);
}

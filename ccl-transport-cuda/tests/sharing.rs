//! Device memory of one rank in another: in one process, on two devices, and in two processes, for which the test's program starts
//! itself again.

use ccl_core::{Error, ErrorKind};
use ccl_fake_cuda::Fake;
use ccl_transport_cuda::driver::Driver;
use ccl_transport_cuda::sharing::{Handle, Mapped};
use ccl_transport_cuda::{DeviceMemory, Primary};
use std::fmt::Write as _;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The handle, for the other process.
const HANDLE: &str = "CUDA_TEST_HANDLE";

fn primary(ordinal: u32) -> Arc<Primary> {
    Driver::open(Fake::library().to_str()).unwrap().device(ordinal).unwrap().primary().unwrap()
}

fn sent(handle: &Handle) -> Handle {
    Handle::from_bytes(&handle.to_bytes()).unwrap()
}

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

/// Runs `test` of this program again with a handle; it must succeed.
fn in_another_process(test: &str, handle: &Handle) {
    let hex = handle.to_bytes().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--test-threads", "1"]).env(HANDLE, hex).stdout(Stdio::null());
    struct Peer(Child);
    impl Drop for Peer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut peer = Peer(command.spawn().unwrap());
    assert!(peer.0.wait().unwrap().success(), "in the other process");
}

/// The handle, if this is the other process.
fn given() -> Option<Handle> {
    let hex = std::env::var(HANDLE).ok()?;
    let bytes = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());
    Some(Handle::from_bytes(&bytes.collect::<Vec<_>>()).unwrap())
}

/// Does this in the other process, on device 0; whether this is it.
fn is_other(part: impl FnOnce(&Arc<Primary>, &Handle)) -> bool {
    given().map(|handle| part(&primary(0), &handle)).is_some()
}

#[test]
fn two_processes_and_two_devices_have_the_same_bytes() {
    let fake = Fake::start("devices 2");
    if let Some(handle) = given() {
        let mapped = [0, 1].map(|ordinal| Mapped::open(&primary(ordinal), &handle).unwrap());
        for of in &mapped {
            assert_eq!((of.len(), fake.read(of.address(), 200)), (200, vec![7; 200]));
        }
        fake.write(mapped[0].address() + 190, b"the peer's");
        drop(mapped);
        assert_eq!((fake.count("cuIpcOpenMemHandle"), fake.live()), (2, 0), "closed");
        return;
    }
    let primary = primary(0);
    let memory = DeviceMemory::alloc(&primary, 5000).unwrap();
    fake.write(memory.address() + 100, &[7; 200]);
    let handle = Handle::of(&primary, memory.address() + 100, 200).unwrap();
    assert!(handle.opens_elsewhere());
    in_another_process("two_processes_and_two_devices_have_the_same_bytes", &handle);
    assert_eq!(fake.read(memory.address() + 290, 11), b"the peer's\0");
    drop((memory, primary));
    assert_eq!(fake.count("freed while open"), 0);
}

#[test]
fn threads_of_a_process_take_the_address_and_devices_are_let_in() {
    let fake = Fake::start("devices 2");
    let (zero, one) = (primary(0), primary(1));
    let memory = DeviceMemory::alloc(&zero, 64).unwrap();
    let handle = sent(&memory.export().unwrap());
    let peers = || fake.count("cuCtxEnablePeerAccess");
    let own = Mapped::open(&zero, &handle).unwrap();
    assert_eq!((own.address(), own.len(), peers()), (memory.address(), 64, 0));
    // A second time it is enabled already.
    for times in [1, 2] {
        let other = Mapped::open(&one, &handle).unwrap();
        assert_eq!((other.address(), peers()), (memory.address(), times));
    }
    assert_eq!(fake.count("cuIpcOpenMemHandle"), 0);
    drop((own, memory));
    let freed = text(Mapped::open(&zero, &handle));
    assert!(
        freed.contains("on device 0: no memory: freed") && freed.contains("keep memory until"),
        "{freed}"
    );
    drop((zero, one));
}

#[test]
fn devices_without_a_way_are_named() {
    let fake = Fake::start("devices 2; no-peers");
    let (zero, one) = (primary(0), primary(1));
    let memory = DeviceMemory::alloc(&one, 64).unwrap();
    let none = text(Mapped::open(&zero, &memory.export().unwrap()));
    assert!(
        none.contains("device 0 does not reach the memory of device 1") && none.contains("topo"),
        "{none}"
    );
    drop((memory, zero, one, fake));
}

#[test]
fn what_cannot_be_shared_is_said_by_the_owner() {
    let fake = Fake::start("");
    let zero = primary(0);
    let memory = DeviceMemory::alloc(&zero, 64).unwrap();
    for (offset, len) in [(0, 65), (60, 5), (0, 0)] {
        let error = text(Handle::of(&zero, memory.address() + offset, len));
        assert!(error.contains(&format!("{offset} bytes into an allocation of 64")), "{error}");
    }
    let unknown = text(Handle::of(&zero, 0x1000, 1));
    assert!(
        unknown.contains("cuMemGetAddressRange of 0x1000 on device 0") && unknown.contains("(500)"),
        "{unknown}"
    );
    fake.run("fail cuIpcGetMemHandle code=2");
    let memory_is_short = memory.export().unwrap_err();
    assert!(matches!(memory_is_short.kind(), ErrorKind::Device { .. }));
    assert!(text::<()>(Err(memory_is_short)).contains("cuIpcGetMemHandle"));
    drop((memory, zero));
}

#[test]
fn memory_that_other_processes_are_not_given_is_for_threads_only() {
    let fake = Fake::start("");
    let zero = primary(0);
    if let Some(handle) = given() {
        let error = text(Mapped::open(&zero, &handle));
        for words in
            ["cuIpcGetMemHandle", "in process", "CUDA_ERROR_NOT_SUPPORTED (801)", "expandable segments"]
        {
            assert!(error.contains(words), "{error}");
        }
        return;
    }
    fake.run("fail cuIpcGetMemHandle code=801");
    let memory = DeviceMemory::alloc(&zero, 64).unwrap();
    let handle = memory.export().unwrap();
    assert!(!handle.opens_elsewhere());
    assert_eq!(Mapped::open(&zero, &handle).unwrap().address(), memory.address());
    in_another_process("memory_that_other_processes_are_not_given_is_for_threads_only", &handle);
    drop((memory, zero));
}

/// Bytes of an allocation without an address.
const PIECE: usize = 1 << 16;

#[test]
fn memory_with_a_file_descriptor_is_for_other_processes_and_devices() {
    let fake = Fake::start("devices 2");
    if let Some(handle) = given() {
        let mapped = [0, 1].map(|ordinal| Mapped::open(&primary(ordinal), &handle).unwrap());
        for of in &mapped {
            assert_eq!((of.len(), fake.read(of.address(), 200)), (200, vec![7; 200]));
        }
        fake.write(mapped[0].address() + 190, b"the peer's");
        drop(mapped);
        assert_eq!(
            (fake.count("cuMemImportFromShareableHandle"), fake.live()),
            (2, 0),
            "unmapped and released"
        );
        return;
    }
    let (zero, one) = (primary(0), primary(1));
    let at = fake.alloc_virtual(0, 2 * PIECE, true);
    fake.write(at + 100, &[7; 200]);
    let live = fake.live();
    let handle = Handle::of(&zero, at + 100, 200).unwrap();
    assert_eq!((handle.opens_elsewhere(), fake.live()), (true, live), "nothing is held but the descriptor");
    in_another_process("memory_with_a_file_descriptor_is_for_other_processes_and_devices", &handle);
    assert_eq!(fake.read(at + 290, 11), b"the peer's\0");
    // Here the address does; another device is let in where the memory lies.
    let before = fake.count("cuMemSetAccess");
    assert_eq!(Mapped::open(&one, &handle).unwrap().address(), at + 100);
    assert_eq!((fake.count("cuMemSetAccess") - before, fake.count("cuCtxEnablePeerAccess")), (1, 0));
    fake.free_virtual(at, 2 * PIECE);
    drop((zero, one));
}

#[test]
fn a_descriptor_that_cannot_be_taken_is_named_and_nothing_is_left() {
    let fake = Fake::start("");
    let part = |zero: &_, handle: &_| {
        let error = text(Mapped::open(zero, handle));
        assert!(error.contains("pidfd_getfd of descriptor") && error.contains("SYS_PTRACE"), "{error}");
    };
    if is_other(part) {
        return;
    }
    let zero = primary(0);
    let at = fake.alloc_virtual(0, PIECE, true);
    // The kernel gives the least free number, and other threads open files meanwhile: theirs must not be the handle's.
    let lower: Vec<_> = (0..64).map(|_| File::open("/dev/null").unwrap()).collect();
    let handle = Handle::of(&zero, at, PIECE).unwrap();
    let closed = Handle::from_bytes(&handle.to_bytes()).unwrap();
    drop((handle, lower));
    in_another_process("a_descriptor_that_cannot_be_taken_is_named_and_nothing_is_left", &closed);
    fake.free_virtual(at, PIECE);
    drop(zero);
}

#[test]
fn an_import_that_fails_half_way_leaves_nothing() {
    let fake = Fake::start("");
    let part = |zero: &_, handle: &_| {
        let calls = ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"];
        for call in calls {
            let live = fake.live();
            fake.run(&format!("fail {call} code=999"));
            let error = text(Mapped::open(zero, handle));
            assert!(error.contains(call) && error.contains("(999)"), "{error}");
            assert_eq!(fake.live(), live, "{call}");
        }
    };
    if is_other(part) {
        return;
    }
    let zero = primary(0);
    let at = fake.alloc_virtual(0, PIECE, true);
    let handle = Handle::of(&zero, at, PIECE).unwrap();
    in_another_process("an_import_that_fails_half_way_leaves_nothing", &handle);
    fake.free_virtual(at, PIECE);
    drop(zero);
}

#[test]
fn memory_that_was_made_without_a_descriptor_is_for_threads_only() {
    let fake = Fake::start("");
    let part = |zero: &_, handle: &_| {
        let error = text(Mapped::open(zero, handle));
        assert!(error.contains("file descriptors") && error.contains("expandable segments"), "{error}");
    };
    if is_other(part) {
        return;
    }
    let zero = primary(0);
    let at = fake.alloc_virtual(0, PIECE, false);
    let handle = Handle::of(&zero, at, 64).unwrap();
    assert!(!handle.opens_elsewhere());
    assert_eq!(Mapped::open(&zero, &handle).unwrap().address(), at);
    in_another_process("memory_that_was_made_without_a_descriptor_is_for_threads_only", &handle);
    fake.free_virtual(at, PIECE);
    drop(zero);
}

#[test]
fn an_open_that_fails_names_device_function_number_process_and_cure() {
    let fake = Fake::start("");
    let zero = primary(0);
    if let Some(handle) = given() {
        for (code, cure) in [
            (205, "--ipc=host"),
            (400, "the owner must be alive"),
            (217, "topo -p2p"),
            (711, "eight"),
            (719, "compute-sanitizer"),
        ] {
            fake.run(&format!("fail cuIpcOpenMemHandle code={code}"));
            let error = text(Mapped::open(&zero, &handle));
            for words in
                ["cuIpcOpenMemHandle on device 0 of 64 bytes", "in process", &format!("({code})"), cure]
            {
                assert!(error.contains(words), "{words}: {error}");
            }
        }
        return;
    }
    let memory = DeviceMemory::alloc(&zero, 64).unwrap();
    let handle = memory.export().unwrap();
    in_another_process("an_open_that_fails_names_device_function_number_process_and_cure", &handle);
    // The first byte behind the magic is one of the host's boot.
    let mut foreign = handle.to_bytes();
    foreign[8] ^= 1;
    let error = text(Mapped::open(&zero, &Handle::from_bytes(&foreign).unwrap()));
    assert!(error.contains("of another host"), "{error}");
    drop((memory, zero));
}

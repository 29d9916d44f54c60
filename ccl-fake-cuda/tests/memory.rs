//! What the fake is for: host code that touches device memory dies.

use ccl_fake_cuda::{Fake, Memory};

/// How a child process that reads a byte there ends: by a signal, or not (0).
fn fate_of_reading(at: usize) -> i32 {
    // SAFETY: the child reads one byte and leaves, without any call in between.
    unsafe {
        match libc::fork() {
            0 => {
                std::hint::black_box(std::ptr::with_exposed_provenance::<u8>(at).read_volatile());
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
            }
        }
    }
}

#[test]
fn the_host_dies_of_reading_device_memory_also_freed_and_of_no_other() {
    let fake = Fake::start("");
    let (device, pinned) = (fake.alloc(Memory::Device, 0, 5000), fake.alloc(Memory::Pinned, 0, 5000));
    fake.write(device, &[7; 5000]);
    assert_eq!(fake.read(device, 5000), [7; 5000]);
    assert_eq!(fate_of_reading(device), libc::SIGSEGV);
    assert_eq!(fate_of_reading(device + 4999), libc::SIGSEGV);
    assert_eq!(fate_of_reading(pinned), 0);
    fake.free(Memory::Device, device);
    assert_eq!(fate_of_reading(device), libc::SIGSEGV);
    fake.free(Memory::Pinned, pinned);
}

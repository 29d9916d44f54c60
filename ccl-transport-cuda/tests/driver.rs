//! The driver's library, opened: good ones, old ones, wrong ones, and what is said of devices and pointers.

use ccl_core::{Error, ErrorKind};
use ccl_fake_cuda::{Fake, Memory};
use ccl_transport_cuda::driver::{Attribute, Driver, Kind, Version};

/// The fake under a name of this test's own: what was once opened under a name stays as it was.
struct Copy(std::path::PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let path = std::env::temp_dir().join(format!("ccl-cuda-{}-{name}.so", std::process::id()));
        std::os::unix::fs::symlink(Fake::library(), &path).unwrap();
        Copy(path)
    }

    fn open(&self) -> Result<Driver, Error> {
        Driver::open(self.0.to_str())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn driver() -> Driver {
    Driver::open(Fake::library().to_str()).unwrap()
}

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_missing_library_is_said_with_its_name_and_the_cure() {
    let text = text(Driver::open(Some("/nonexistent/libcuda.so.1")));
    for words in
        ["/nonexistent/libcuda.so.1", "cannot be opened", "install the NVIDIA driver", "RDMACCL_CUDA"]
    {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_library_that_is_no_driver_is_refused() {
    let text = text(Driver::open(Some("libc.so.6")));
    assert!(text.contains("libc.so.6 has no cuDriverGetVersion") && text.contains("12.0"), "{text}");
}

#[test]
fn an_old_driver_is_refused_with_its_version_and_the_one_that_is_needed() {
    let _fake = Fake::start("version 11040");
    let text = text(Copy::new("old").open());
    assert!(text.contains("is of CUDA 11.4") && text.contains("CUDA 12.0 or newer is needed"), "{text}");
}

#[test]
fn a_driver_without_a_function_is_refused_by_the_functions_name() {
    let _fake = Fake::start("version 12040; missing cuStreamWaitValue32");
    let text = text(Copy::new("partial").open());
    assert!(text.contains("says that it is of CUDA 12.4, but has no cuStreamWaitValue32"), "{text}");
}

#[test]
fn no_device_and_a_failing_start_are_errors_with_name_number_and_cure() {
    let fake = Fake::start("devices 0");
    let driver = driver();
    let none = driver.devices().unwrap_err();
    assert!(matches!(none.kind(), ErrorKind::Device { .. }));
    let none = none.to_string();
    assert!(
        none.contains("cuInit failed: CUDA_ERROR_NO_DEVICE (100)") && none.contains("CUDA_VISIBLE_DEVICES"),
        "{none}"
    );
    fake.run("devices 1; fail cuInit code=999");
    let unknown = text(driver.devices());
    assert!(unknown.contains("CUDA_ERROR_UNKNOWN (999)") && unknown.contains("nvidia-smi"), "{unknown}");
    assert_eq!(driver.devices().unwrap().len(), 1);
}

#[test]
fn devices_are_described() {
    let _fake = Fake::start("devices 2; version 12080");
    let driver = driver();
    assert!(driver.version() >= Version(12_000));
    let devices = driver.devices().unwrap();
    assert_eq!(devices.len(), 2);
    let second = &devices[1];
    assert_eq!((second.ordinal, second.capability, &*second.pci), (1, (9, 0), "0000:0b:00.0"));
    assert_eq!(second.uuid_text(), "GPU-01010101-0101-0101-0101-010101010101");
    assert_eq!(second.attribute(Attribute::Multiprocessors).unwrap(), Some(132));
    let out_of_range = text(driver.device(2));
    assert!(out_of_range.contains("device 2 of 2"), "{out_of_range}");
}

#[test]
fn pointers_are_told_apart_and_the_driver_is_not_started_for_it() {
    let fake = Fake::start("devices 2");
    let driver = driver();
    let byte = 7u8;
    let here = (&raw const byte).addr();
    assert_eq!(driver.kind(here).unwrap(), Kind::Host, "before cuInit");
    assert_eq!(fake.count("cuInit"), 0);
    fake.keep_context(1);
    let made = |memory| (memory, fake.alloc(memory, 1, 5000));
    let made = [made(Memory::Device), made(Memory::Pinned), made(Memory::Managed)];
    let kinds = [Kind::Device(1), Kind::Pinned, Kind::Managed];
    for ((memory, at), kind) in made.into_iter().zip(kinds) {
        assert_eq!(driver.kind(at).unwrap(), kind);
        assert_eq!(driver.kind(at + 4999).unwrap(), kind, "inside of it");
        fake.free(memory, at);
    }
    assert_eq!(driver.kind(made[0].1).unwrap(), Kind::Nothing, "freed");
    assert_eq!(driver.kind(here).unwrap(), Kind::Host);
    fake.drop_context(1);
}

//! Streams, events, flags and memory over the fake driver.

use super::{DeviceMemory, Event, Flags, Multicast, PinnedMemory, Stream};
use crate::driver::Driver;
use ccl_core::Error;
use ccl_core::kernels::PieceMut;
use ccl_fake_cuda::Fake;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

fn driver() -> Driver {
    Driver::open(Fake::library().to_str()).unwrap()
}

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

fn device_piece(memory: &mut DeviceMemory) -> PieceMut {
    DeviceMemory::buffers((memory, 0..0), (memory, 0..memory.len()), false).output()
}

#[test]
fn bytes_go_to_a_device_and_back_in_the_order_of_streams_events_and_flags() {
    let fake = Fake::start("delay 5 300");
    let primary = driver().device(0).unwrap().primary().unwrap();
    let len = 100_000;
    let (from, back) =
        (PinnedMemory::alloc(&primary, len).unwrap(), PinnedMemory::alloc(&primary, len).unwrap());
    let mut device = DeviceMemory::alloc(&primary, len).unwrap();
    let (one, two) = (Stream::new(&primary).unwrap(), Stream::new(&primary).unwrap());
    let (event, flags) = (Event::new(&primary).unwrap(), Flags::new(&primary, 2).unwrap());
    assert!(event.is_done().unwrap());
    one.wait_for(&flags, 1, 7).unwrap();
    one.copy(from.piece().as_piece(), device_piece(&mut device)).unwrap();
    event.record(&one).unwrap();
    two.wait(&event).unwrap();
    two.copy(device_piece(&mut device).as_piece(), back.piece()).unwrap();
    assert!(!event.is_done().unwrap() && !two.is_done().unwrap());
    flags.set(0, 9); // another one
    flags.set(1, 8); // passed
    two.synchronize().unwrap();
    assert!(event.is_done().unwrap() && one.is_done().unwrap());
    assert_eq!(fake.read(device.address(), len), vec![0; len]);
    drop((one, two, event, flags, device, from, back));
    assert_eq!(fake.live(), 1, "the context");
    drop(primary);
}

#[test]
fn work_that_went_wrong_is_known_by_its_name() {
    let _fake = Fake::start("spoil code=700");
    let primary = driver().device(0).unwrap().primary().unwrap();
    let pinned = PinnedMemory::alloc(&primary, 64).unwrap();
    let mut device = DeviceMemory::alloc(&primary, 64).unwrap();
    let stream = Stream::new(&primary).unwrap();
    let event = Event::new(&primary).unwrap();
    stream.copy(pinned.piece().as_piece(), device_piece(&mut device)).unwrap();
    event.record(&stream).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let error = loop {
        match event.is_done() {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < end, "nothing went wrong"),
        }
    };
    assert!(
        error.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)") && error.contains("compute-sanitizer"),
        "{error}"
    );
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let fake = Fake::start("devices 2");
    let driver = driver();
    let primary = driver.device(0).unwrap().primary().unwrap();
    fake.keep_context(1);
    let stream = fake.stream(1);
    assert_eq!(driver.device_of(stream).unwrap(), Some(1));
    assert_eq!(driver.device_of(0).unwrap(), None);
    let foreign = text(Stream::borrowed(&primary, stream).map(drop));
    assert!(foreign.contains("not of the primary context of device 0"), "{foreign}");
    let garbage = text(driver.device_of(0x1234));
    assert!(garbage.contains("0x1234 is no stream"), "{garbage}");
    fake.run("fail cuStreamGetCtx code=700 nth=1");
    let before = text(driver.device_of(stream));
    assert!(before.contains("ILLEGAL_ADDRESS") && !before.contains("is no stream"), "{before}");
    let own = fake.stream(0);
    assert!(!Stream::borrowed(&primary, own).unwrap().is_capturing().unwrap());
    fake.capture(own, true);
    assert!(Stream::borrowed(&primary, own).unwrap().is_capturing().unwrap());
    fake.capture(own, false);
    fake.destroy(own);
    fake.destroy(stream);
    fake.drop_context(1);
}

#[test]
fn multicast_is_made_in_steps_and_undone_from_any_of_them() {
    let fake = Fake::start("devices 2; attribute 132 1; attribute 103 1");
    let primaries = [0, 1].map(|device| driver().device(device).unwrap().primary().unwrap());
    let grain = Multicast::granularity(&primaries[0], 2).unwrap();
    for steps in 0..4 {
        let [mut one, mut two] =
            primaries.each_ref().map(|primary| Multicast::new(primary, 1, grain).unwrap());
        if steps > 0 {
            let descriptor = one.create(2).unwrap();
            two.fetch(std::process::id(), descriptor.as_raw_fd()).unwrap();
        }
        if steps > 1 {
            one.add().unwrap();
            assert!(text(one.add()).contains("cuMulticastAddDevice of device 0"), "twice");
            // What a driver would wait for the fake refuses.
            assert!(text(one.bind()).contains("cuMulticastBindMem"), "too early");
            two.add().unwrap();
        }
        if steps > 2 {
            one.bind().unwrap();
            two.bind().unwrap();
            assert!(text(two.bind()).contains("cuMulticastBindMem"), "twice");
            let [one, two] = [&one, &two].map(|of| of.places().unwrap());
            assert!(one.iter().chain(&two).all(|at| (*at as usize).is_multiple_of(grain)), "{one:?} {two:?}");
        }
        drop((one, two));
        assert_eq!(fake.live(), 2, "the contexts");
    }
    assert_eq!(fake.count("would wait"), 2);
    drop(primaries);
}

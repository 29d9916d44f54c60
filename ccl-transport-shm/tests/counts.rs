//! What the transport costs, as counts: one test, because it counts for the whole process.

use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{Counting, allocations, connect};
use ccl_core::transport::{Fabric, LinkKey, Refer, Transport};
use ccl_transport_shm::{SharedMemory, ShmConfig, ShmTransport};

#[global_allocator]
static COUNTING: Counting = Counting;

fn pair() -> Vec<ShmTransport> {
    let mut pair: Vec<_> =
        (0..2).map(|rank| ShmTransport::new(rank, 2, &ShmConfig::default()).unwrap()).collect();
    connect(&mut pair, &[LinkKey { from: 0, to: 1, channel: 0 }]);
    pair
}

fn resources() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, mappings.lines().filter(|line| line.contains("/memfd:rdmaccl")).count())
}

#[test]
fn the_data_path_allocates_nothing_and_drop_gives_all_back() {
    let mut t = pair();
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let before = allocations();
    assert!(before > 0, "the counter counts");
    for k in 0..1000u64 {
        for len in [8, 65536] {
            assert!(t[0].reserve(to, len).unwrap().is_some());
            t[0].publish(to, k).unwrap();
            assert_eq!(t[1].peek(from).unwrap().unwrap().tag, k);
            t[1].release(from).unwrap();
        }
    }
    assert_eq!(allocations(), before);
    let memory = SharedMemory::alloc(1 << 20).unwrap();
    let mut lend = |len: usize| {
        let piece = Buffers::new(&memory[..len], &mut []).input();
        assert_eq!(t[0].refer(to, piece).unwrap(), Refer::Ready);
        t[0].publish(to, 0).unwrap();
        assert_eq!(t[1].peek(from).unwrap().unwrap().piece.len(), len);
        t[1].release(from).unwrap();
        assert!(t[0].settled(to).unwrap());
    };
    lend(1);
    let before = allocations();
    (1..1000).for_each(|k| lend(k * 1000));
    assert_eq!(allocations(), before, "the first piece alone may allocate");
    drop(t);
    drop(memory);

    let before = resources();
    assert_eq!(before.1, 0, "a mapping is left");
    for _ in 0..200 {
        drop(pair());
        drop(SharedMemory::alloc(1 << 20).unwrap());
    }
    assert_eq!(resources(), before);
}

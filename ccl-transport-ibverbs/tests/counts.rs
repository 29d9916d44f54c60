//! What the data path costs: one test, because it counts for the whole process.

mod hosts;

use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{Counting, allocations, connect, mesh};
use ccl_core::transport::{Fabric, Sent, Transport};
use ccl_fake_ibverbs::Fake;

#[global_allocator]
static COUNTING: Counting = Counting;

/// The fake library has an allocator of its own, which is not counted.
#[test]
fn the_data_path_allocates_and_registers_nothing() {
    let fake = Fake::start(&hosts::script(2, 2));
    let mut t = hosts::transports(2, 65536, 32);
    connect(&mut t, &mesh(2, 2));
    let registered = |fake: &Fake| fake.count("reg_mr") + fake.count("reg_mr_iova2");
    let piece = vec![1; 65536];
    let before = registered(&fake);
    assert!(before > 0 && allocations() > 0, "the counters count");
    for channel in [0, 1] {
        let ends = (t[0].sender(&[1], channel), t[1].receiver(0, channel));
        let (to, from) = (ends.0.unwrap(), ends.1.unwrap());
        let allocated = allocations();
        for k in 0..1000u64 {
            for len in [8, 65536] {
                assert_eq!(
                    t[0].send(to, Buffers::new(&piece[..len], &mut []).input(), k).unwrap(),
                    Sent::Done
                );
                assert_eq!(t[1].peek(from).unwrap().unwrap().tag, k);
                t[1].release(from).unwrap();
            }
        }
        assert_eq!(allocations(), allocated);
    }
    assert_eq!(registered(&fake), before);
    let memory = t[0].memory();
    drop(t);
    assert!(memory > 0 && fake.live() == 0);
}

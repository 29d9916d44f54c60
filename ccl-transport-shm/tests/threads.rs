//! The conformance suite between threads of one process.

use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::transport::{Fabric, Refer, Transport};
use ccl_transport_shm::{SharedMemory, ShmConfig, ShmTransport};

fn transports(ranks: u32) -> Vec<ShmTransport> {
    let config = ShmConfig { slot_bytes: 8192, credits: Some(4), ..ShmConfig::default() };
    (0..ranks).map(|rank| ShmTransport::new(rank, ranks, &config).unwrap()).collect()
}

fn memory(bytes: &[u8]) -> SharedMemory {
    let mut memory = SharedMemory::alloc(bytes.len()).unwrap();
    memory.copy_from_slice(bytes);
    memory
}

ccl_core::transport_conformance!(transports);
ccl_core::reference_conformance!(transports, memory);
ccl_core::offer_conformance!(transports, memory);

/// Memory that peers cannot map, pieces that reach beyond what they can, and memory that was freed: a slot.
#[test]
fn other_memory_goes_through_slots() {
    let mut t = transports(2);
    connect(&mut t, &mesh(2, 1));
    let to = t[0].sender(&[1], 0).unwrap();
    let mut refer = |bytes: &[u8]| t[0].refer(to, Buffers::new(bytes, &mut []).input()).unwrap();
    assert_eq!(refer(&[1; 5000]), Refer::NotMapped);
    let shared = memory(&[2; 5000]);
    assert_eq!(refer(&[1; 5000]), Refer::NotMapped);
    assert_eq!(refer(&shared), Refer::Ready);
    let freed = shared.as_mut_ptr().addr();
    drop(shared);
    // Most likely at the same place.
    let private = vec![3; 4 << 20];
    assert_eq!(refer(&private), Refer::NotMapped);
    let again = memory(&[4; 5000]);
    assert_eq!(refer(&again), Refer::Ready, "at {:p}, before at {freed:#x}", again.as_mut_ptr());
    assert!(again.as_mut_ptr().addr().is_multiple_of(2 << 20));
}

/// More regions than can be lent at a time: the others go through slots, until some are freed.
#[test]
fn so_many_regions_can_be_lent() {
    let mut t = transports(2);
    connect(&mut t, &mesh(2, 1));
    let to = t[0].sender(&[1], 0).unwrap();
    let mut refer = |bytes: &[u8]| t[0].refer(to, Buffers::new(bytes, &mut []).input()).unwrap();
    let mut rows: Vec<_> = (0..257).map(|k| memory(&[k as u8; 100])).collect();
    assert_eq!(rows.iter().filter(|row| refer(row) == Refer::Ready).count(), 256);
    rows.truncate(200);
    rows.push(memory(&[9; 100]));
    assert!(rows.iter().all(|row| refer(row) == Refer::Ready));
}

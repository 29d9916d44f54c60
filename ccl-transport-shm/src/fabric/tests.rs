use super::*;
use crate::ShmConfig;
use crate::pace::Looks;
use crate::passing::MOST_AWAY;
use ccl_core::kernels::Buffers;
use ccl_core::transport::conformance::{connect, receive, send};
use ccl_core::transport::{LinkKey, Transport};

/// Rank 0, who sends to two others.
fn three() -> Vec<ShmTransport> {
    let mut ranks: Vec<_> =
        (0..3).map(|rank| ShmTransport::new(rank, 3, &ShmConfig::default()).unwrap()).collect();
    connect(&mut ranks, &[1, 2].map(|to| LinkKey { from: 0, to, channel: 0 }));
    ranks
}

fn put_afar(transport: &mut ShmTransport, peer: usize) {
    while !transport.paces[peer].is_far() {
        transport.paces[peer].note(true);
    }
    transport.far += 1;
}

#[test]
fn slots_that_any_far_rank_reads_are_written_past_the_caches() {
    let mut t = three();
    let [near, far, both] = [&[1][..], &[2], &[1, 2]].map(|peers| t[0].sender(peers, 0).unwrap());
    put_afar(&mut t[0], 2);
    let mut store_of = |to, len| {
        let store = t[0].reserve(to, len).unwrap().unwrap().store();
        t[0].let_go(to);
        store
    };
    let stores = [near, far, both].map(|to| [64, SHORT_BYTES, 5000, 65536].map(|len| store_of(to, len)));
    let [into, past] = [Store::Cached, Store::Streaming];
    assert_eq!(stores, [[into; 4], [into, into, past, past], [into, into, past, past]]);
}

/// The same on a processor of AMD's, whatever this one is, and however slow.
fn amd() -> Vec<ShmTransport> {
    let mut ranks = three();
    (ranks[0].words_from, ranks[0].looks) = (8192, Looks::none());
    ranks
}

/// How rank 1 is told to copy pieces of some lengths, after so many in slots.
fn told(t: &mut [ShmTransport], before: u32) -> Vec<Store> {
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    for _ in 0..before {
        assert!(send(&mut t[0], to, &[0; SHORT_BYTES + 1], 0));
        receive(&mut t[1], from).unwrap();
    }
    let store = |len| {
        assert!(send(&mut t[0], to, &vec![7; len], 0));
        let Arrival { piece, store, .. } = t[1].peek(from).unwrap().unwrap();
        assert_eq!(piece.len(), len);
        t[1].release(from).unwrap();
        store
    };
    [8, SHORT_BYTES, 8191, 8192, 65536].into_iter().map(store).collect()
}

#[test]
fn long_pieces_that_come_from_near_cores_in_slots_that_stay_are_copied_by_words() {
    let (any, words) = (Store::Cached, Store::Words);
    assert_eq!(told(&mut amd(), MOST_AWAY), [any, any, any, words, words]);
    assert_eq!(told(&mut amd(), 0), [any; 5], "the first slots are handed over");
    let mut crowded = amd();
    crowded[0].set_crowd(3, 2);
    assert_eq!(told(&mut crowded, MOST_AWAY), [any; 5]);
    let mut afar = amd();
    put_afar(&mut afar[0], 1);
    assert_eq!(told(&mut afar, 0), [any; 5]);
}

#[test]
fn what_is_written_past_the_caches_arrives() {
    let mut t = three();
    put_afar(&mut t[0], 2);
    let to = t[0].sender(&[1, 2], 0).unwrap();
    for (k, len) in [2049, 4095, 4097, 20_000, 65_535, 65_536].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + k) as u8).collect();
        assert_eq!(t[0].send(to, Buffers::new(&bytes, &mut []).input(), k as u64).unwrap(), Sent::Done);
        for rank in [1, 2] {
            let from = t[rank].receiver(0, 0).unwrap();
            assert_eq!(receive(&mut t[rank], from), Some((bytes.clone(), k as u64)), "{len} bytes");
        }
    }
}

#[test]
fn looks_are_made_once_slots_come_back() {
    let mut t = three();
    t[0].looks = Looks::by_quick_clock();
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let mut due = Vec::new();
    for k in 0..1000u64 {
        let bytes = vec![k as u8; SHORT_BYTES + 1];
        send(&mut t[0], to, &bytes, k);
        due.extend(t[0].looks.is_due().then_some(k));
        assert_eq!(receive(&mut t[1], from), Some((bytes, k)));
    }
    // One in 32, unless the machine is slow and so in doubt: then one in 4.
    assert!((30..=250).contains(&due.len()), "{due:?}");
    // In doubt the last slot may have been the fourth.
    let (short, was_due) = ([1; SHORT_BYTES], t[0].looks.is_due());
    for k in 0..200 {
        send(&mut t[0], to, &short, k);
        assert!(receive(&mut t[1], from).is_some());
        assert_eq!(t[0].looks.is_due(), was_due, "no slots");
    }
}

//! Pieces that are taken in one call.

use super::{connected, look, pattern, receive, send, slot_bytes_of};
use crate::kernels::{Buffers, Merge};
use crate::transport::{Taken, Transport};

/// `take` does what `peek`, a merge and `release` come to, or nothing at all.
pub fn what_is_taken_is_merged_and_given_back<T: Transport>(make: impl Fn(u32) -> Vec<T>) {
    let mut t = connected(make, 2, 1);
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let longest = slot_bytes_of(&t);
    for (round, len) in
        [0, 1, 8, 100, 200, 1500, 2000, longest].map(|len| longest.min(len)).into_iter().enumerate()
    {
        let (bytes, mut into) = (pattern(3, len), vec![0; len]);
        let mut take = |t: &mut T, tag: u64| {
            let sink = Buffers::new(&[], &mut into).output();
            let taken = t.take(from, tag, &Merge::copy(sink)).unwrap();
            (taken, into.clone())
        };
        assert_eq!(take(&mut t[1], 7).0, Taken::NotYet, "{len} bytes");
        assert!(send(&mut t[0], to, &bytes, 7) && send(&mut t[0], to, &[1; 3], 8));
        assert_eq!(take(&mut t[1], 6), (Taken::Another, vec![0; len]), "{len} bytes");
        let longer = Buffers::new(&[], &mut vec![0; len + 1]).output();
        assert_eq!(t[1].take(from, 7, &Merge::copy(longer)).unwrap(), Taken::Another);
        if round % 2 == 0 {
            assert_eq!(look(&mut t[1], from), Some((bytes.clone(), 7)), "it can still be peeked at");
        }
        assert_eq!(take(&mut t[1], 7), (Taken::Done, bytes), "{len} bytes");
        assert!(t[1].release(from).is_err(), "it is given back");
        assert_eq!(receive(&mut t[1], from), Some((vec![1; 3], 8)));
    }
    let credits = u64::from(t[0].capabilities().credits);
    for k in 0..4 * credits {
        assert!(send(&mut t[0], to, &k.to_ne_bytes(), k), "every credit has come back");
        let mut into = [0; 8];
        let sink = Buffers::new(&[], &mut into).output();
        assert_eq!(t[1].take(from, k, &Merge::copy(sink)).unwrap(), Taken::Done);
        assert_eq!(into, k.to_ne_bytes());
    }
}

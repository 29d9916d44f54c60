//! Two ranks of which one is given what cannot be.

use crate::common::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_int;

/// Two ranks that this thread drives, and which functions have been tried.
pub(crate) struct Bench {
    pub(crate) comms: [Comm; 2],
    pub(crate) stream: Stream,
    pub(crate) tried: RefCell<BTreeSet<&'static str>>,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench { comms: impatient(), stream: stream(), tried: RefCell::default() }
    }

    pub(crate) fn comm(&self) -> Comm {
        self.comms[0]
    }

    /// A call that is refused when it is made, whatever it is made on.
    #[track_caller]
    pub(crate) fn refuse(
        &self,
        function: &'static str,
        call: impl FnOnce() -> c_int,
        code: c_int,
        words: &[&str],
    ) {
        let came = call();
        let text = last_error(0);
        assert_eq!(came, code, "{function}: {text}");
        for words in words {
            assert!(text.contains(words), "{function}: no '{words}' in: {text}");
        }
        self.tried.borrow_mut().insert(function);
        self.works(function);
    }

    /// A call that is refused alone, on a stream, and in a group, whose end then says so again.
    #[track_caller]
    pub(crate) fn refuse_call(
        &self,
        function: &'static str,
        call: impl Fn(Stream) -> c_int,
        code: c_int,
        words: &[&str],
    ) {
        self.refuse(function, || call(0), code, words);
        self.refuse(function, || call(self.stream), code, words);
        for stream in [0, self.stream] {
            ok(cclGroupStart());
            let alone = call(stream);
            assert_eq!((alone, cclGroupEnd()), (code, code), "{function}: {}", last_error(0));
            self.works(function);
        }
    }

    /// The communicator does what it should, and nothing was left behind on it or on the stream.
    #[track_caller]
    pub(crate) fn works(&self, after: &str) {
        let mut values = [[1f32; 3], [2f32; 3]];
        ok(cclGroupStart());
        for (comm, values) in self.comms.iter().zip(&mut values) {
            ok(all_reduce(values, *comm, 0));
        }
        ok(cclGroupEnd());
        assert_eq!(values, [[3.0; 3]; 2], "after {after}");
        ok(cclHostStreamQuery(self.stream));
        self.comms.iter().for_each(|comm| assert_eq!(async_error(*comm), SUCCESS, "after {after}"));
    }
}

/// Where a number, or an array of some, cannot be.
pub(crate) fn crooked<T>(good: &T) -> *const T {
    (&raw const *good).wrapping_byte_add(1)
}

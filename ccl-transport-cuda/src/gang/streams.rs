//! The streams that gangs of a device use, one gang after the other.

use crate::sys::{Primary, Stream};
use ccl_core::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// Made once: a driver has a bounded number of queues for all streams, and of those that come and go it has put two into one, where a rank's
/// kernel waits behind that of another one which waits for it.
pub struct Streams {
    primary: Arc<Primary>,
    all: Mutex<Vec<Arc<Stream>>>,
}

impl Streams {
    /// None is made.
    pub fn new(primary: &Arc<Primary>) -> Streams {
        Streams { primary: Arc::clone(primary), all: Mutex::default() }
    }

    /// The first so many.
    pub(super) fn first(&self, count: usize) -> Result<Vec<Arc<Stream>>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() < count {
            all.push(Arc::new(Stream::new(&self.primary)?));
        }
        Ok(all[..count].to_vec())
    }
}

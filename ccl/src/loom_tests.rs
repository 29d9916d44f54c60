//! The turnstile under loom: the interleavings with at most three preemptions, and every allowed reordering.
//!
//! Each was seen to fail: Relaxed in place of Release or Acquire at `now` is a race on the content; a dropped turn that
//! is not looked for by those who wait is a deadlock.

use crate::Turnstile;
use loom::sync::Arc;
use loom::thread;

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// loom's cell fails the test if two uses are not ordered.
#[test]
fn loom_one_at_a_time_and_no_use_is_lost() {
    model(|| {
        let stile = Arc::new(Turnstile::new(0));
        let there = Arc::clone(&stile);
        let other = thread::spawn(move || {
            for _ in 0..2 {
                *there.take().enter() += 1;
            }
        });
        *stile.take().enter() += 1;
        other.join().unwrap();
        assert_eq!(*stile.take().enter(), 3);
    });
}

/// A turn between two others is dropped while the first is in use and the last waits.
#[test]
fn loom_a_dropped_turn_holds_nobody_up() {
    model(|| {
        let stile: &'static Turnstile<u32> = Box::leak(Box::new(Turnstile::new(0)));
        let (first, unused, last) = (stile.take(), stile.take(), stile.take());
        let user = thread::spawn(move || *first.enter() += 1);
        let dropper = thread::spawn(move || drop(unused));
        {
            let mut entered = last.enter();
            assert_eq!(*entered, 1);
            *entered += 1;
        }
        user.join().unwrap();
        dropper.join().unwrap();
    });
}

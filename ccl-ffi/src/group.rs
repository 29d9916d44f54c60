//! Groups: calls that one thread makes together.

use crate::comm::cclComm_t;
use crate::depth::{self, is_in_group};
use crate::launch::{self, Calls, Issued};
use crate::result::{cclResult_t, cclResult_t::cclSuccess, guard};
use ccl::{Error, Operation, Result};
use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, Ordering};

thread_local! {
    static GROUP: RefCell<Group> = const { RefCell::new(Group::new()) };
}

/// What was called since the outermost `cclGroupStart`.
struct Group {
    calls: Calls,
    set_ups: Vec<SetUp>,
    error: Option<Error>,
}

impl Group {
    const fn new() -> Group {
        Group { calls: Calls::new(), set_ups: Vec::new(), error: None }
    }
}

/// The making of a communicator, which waits for other ranks.
struct SetUp {
    /// Set-ups that need the same communicator are made one after another.
    of: Option<usize>,
    into: Target,
    make: Make,
}

/// Makes a communicator; may say its handle before.
type Make = Box<dyn FnOnce(&dyn Fn(cclComm_t)) -> Result<usize> + Send>;

/// Where a handle goes.
struct Target(*mut cclComm_t);

// SAFETY: an address, valid until the end of the group by the contract of the functions that make communicators, and
// written by one thread.
unsafe impl Send for Target {}

/// In a group, keeps an error of one of its calls for the end.
#[cold]
pub(crate) fn note(error: &Error) {
    if is_in_group() {
        GROUP.with_borrow_mut(|group| _ = group.error.get_or_insert_with(|| error.clone()));
    }
}

/// Keeps a call for the end of the group. `operation` is made here and written once, to where it is kept: who copies what was just
/// written in smaller parts waits for all stores before it, also for those to lines that a peer holds.
#[inline]
pub(crate) fn keep(issued: Issued, operation: impl FnOnce() -> Result<Operation<'static>>) -> Result<()> {
    GROUP.with_borrow_mut(|group| {
        group.calls.push(issued, operation()?);
        Ok(())
    })
}

/// Makes a communicator and writes its handle, now or at the end of the group. What `make` is given writes a handle
/// before the communicator is there; NULL is written if it cannot be made.
///
/// # Safety
/// `into` is aligned and writable, in a group until its end.
pub(crate) unsafe fn set_up(
    into: *mut cclComm_t,
    of: Option<cclComm_t>,
    make: impl FnOnce(&dyn Fn(cclComm_t)) -> Result<cclComm_t> + Send + 'static,
) -> Result<()> {
    let set_up = SetUp {
        of: of.map(|comm| comm as usize),
        into: Target(into),
        make: Box::new(|publish| make(publish).map(|comm| comm as usize)),
    };
    if is_in_group() {
        GROUP.with_borrow_mut(|group| group.set_ups.push(set_up));
        return Ok(());
    }
    set_up.run()
}

impl SetUp {
    fn run(self) -> Result<()> {
        let Target(into) = self.into;
        // SAFETY: aligned, and writable until the end of the group, by the contract of `set_up`. Other threads may look
        // at it meanwhile.
        let into = unsafe { AtomicPtr::from_ptr(into) };
        let made = (self.make)(&|comm| into.store(comm, Ordering::Release));
        into.store(*made.as_ref().unwrap_or(&0) as cclComm_t, Ordering::Release);
        made.map(drop)
    }
}

/// Begins a group: the calls of this thread until `cclGroupEnd` are made together then, so that their order among
/// different peers and communicators does not matter. Groups can be nested; the outermost counts.
#[unsafe(no_mangle)]
pub extern "C" fn cclGroupStart() -> cclResult_t {
    depth::enter();
    cclSuccess
}

/// Ends a group and makes its calls. First those that make communicators, all at once; then, on each communicator, the
/// collectives one after another and the sends and receives beside them. Returns when the calls without a stream are over.
///
/// If one of the calls was refused, none is made, and this returns the first refusal again.
#[unsafe(no_mangle)]
pub extern "C" fn cclGroupEnd() -> cclResult_t {
    guard(|| {
        let left = depth::leave().ok_or_else(|| {
            Error::unsupported(
                "a cclGroupEnd without its cclGroupStart",
                "begin the group on the same thread",
            )
        })?;
        if left > 0 {
            return Ok(());
        }
        match GROUP.with_borrow_mut(Group::make_plain) {
            Some(made) => made,
            None => end(),
        }
    })
}

/// Calls that are forgotten whatever becomes of them.
struct Once<'c>(&'c mut Calls);

impl Drop for Once<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

impl Group {
    /// Makes the calls where they stand, if there is nothing else and their caller waits for them on one communicator. The next
    /// group of this thread takes the same memory.
    #[inline]
    fn make_plain(&mut self) -> Option<Result<()>> {
        let is_plain = self.error.is_none() && self.set_ups.is_empty();
        let only = self.calls.only_comm().filter(|_| is_plain)?;
        Some(Once(&mut self.calls).0.make(only))
    }
}

/// Ends a group of whatever there may be in it.
#[inline(never)]
fn end() -> Result<()> {
    let Group { mut calls, set_ups, error } = GROUP.replace(Group::new());
    if let Some(error) = error {
        return Err(error);
    }
    run_set_ups(set_ups)?;
    if calls.is_empty() { Ok(()) } else { launch::launch(&mut calls) }
}

/// A thread for each, since they may wait for each other; the first error.
#[cold]
fn run_set_ups(set_ups: Vec<SetUp>) -> Result<()> {
    let mut lines: Vec<Vec<SetUp>> = Vec::new();
    for set_up in set_ups {
        let of = set_up.of;
        match lines.iter_mut().find(|line| of.is_some() && line[0].of == of) {
            Some(line) => line.push(set_up),
            None => lines.push(vec![set_up]),
        }
    }
    let run_line = |line: Vec<SetUp>| line.into_iter().try_for_each(SetUp::run);
    if lines.len() <= 1 {
        return lines.into_iter().try_for_each(run_line);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = lines.into_iter().map(|line| scope.spawn(move || run_line(line))).collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All must have ended before the first error is reported.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

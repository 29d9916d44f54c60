//! What checks build for themselves alone, built before their turn by what earlier checks leave of the cores: many of those
//! mostly wait. It changes nothing but the time: each check builds what it needs in its turn, and finds it built.

use crate::shell::show;
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Behind everything else that wants a core.
const NICENESS: i32 = 19;

/// Builds, one after the other, in a thread that ends with the last of them.
pub(crate) struct Ahead<K>(Arc<Shared<K>>);

struct Shared<K> {
    state: Mutex<State<K>>,
    /// A build has ended.
    ended: Condvar,
}

struct State<K> {
    waiting: VecDeque<(K, Command)>,
    /// Whose build runs.
    running: Option<K>,
}

impl<K: Copy + PartialEq + Send + 'static> Ahead<K> {
    pub(crate) fn start(builds: impl IntoIterator<Item = (K, Command)>) -> Ahead<K> {
        let state = State { waiting: builds.into_iter().collect(), running: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let work = shared.clone();
        std::thread::spawn(move || {
            // Of this thread alone, and of what it starts. Refused, it is not nice.
            let _ = rustix::process::nice(NICENESS);
            while let Some(mut build) = work.take() {
                run(&mut build);
                work.lock().running = None;
                work.ended.notify_all();
            }
        });
        Ahead(shared)
    }

    /// It is this one's turn: what it has waiting here it builds by itself, and what runs for it is waited for.
    pub(crate) fn turn_of(&self, owner: K) {
        let mut state = self.0.lock();
        state.waiting.retain(|(other, _)| *other != owner);
        let runs = |state: &mut State<K>| state.running == Some(owner);
        drop(self.0.ended.wait_while(state, runs).unwrap_or_else(PoisonError::into_inner));
    }
}

impl<K: Copy> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Command> {
        let mut state = self.lock();
        let (owner, build) = state.waiting.pop_front()?;
        state.running = Some(owner);
        Some(build)
    }
}

/// Says nothing of why a build fails: the check whose build it is will.
fn run(build: &mut Command) {
    let start = Instant::now();
    let ended = build.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let how = ended.map_or_else(|why| why.to_string(), |status| status.to_string());
    println!("-- ahead of its turn: {}: {how}, {:.0} s", show(build), start.elapsed().as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::command;

    #[test]
    fn builds_are_made_in_order_and_waited_for_in_their_turn() {
        let folder = std::env::temp_dir().join(format!("ahead-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("built");
        let build = |line: &str| {
            let mut build = command("sh -c");
            build.arg(format!("{line}; nice >> {}", file.display()));
            build
        };
        let ahead = Ahead::start([(1, build("sleep 0.2")), (1, build("exit 3")), (2, build("exit 4"))]);
        while ahead.0.lock().running != Some(1) {
            std::thread::yield_now();
        }
        // Its first one runs, and is waited for; its second is its own.
        ahead.turn_of(1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "19\n");
        assert!(ahead.0.lock().waiting.iter().all(|(owner, _)| *owner == 2));
        // Nobody's.
        ahead.turn_of(3);
        ahead.turn_of(2);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "19\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! Work for all cores: pieces that do not depend on each other, as many at a time as there are cores.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work` to each item; what came out, in the order of the items.
pub(crate) fn by_all<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(take)).collect();
        let joined =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.flatten().collect::<Vec<_>>()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_where_their_items_stood() {
        let items: Vec<u64> = (0..100).collect();
        let late = |n: &u64| {
            std::thread::sleep(std::time::Duration::from_micros(100 - n));
            n * n
        };
        assert_eq!(by_all(&items, late), items.iter().map(|n| n * n).collect::<Vec<_>>());
        assert!(by_all(&[], late).is_empty());
    }
}

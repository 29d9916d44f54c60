//! Many records in one piece of memory that other processes read: where each begins.
//!
//! | lines | what |
//! | --- | --- |
//! | 0 | name and version of the format |
//! | 1-63 | where records begin, in lines; 0 for none |
//! | then | the records |

use super::format::put_text;
use super::memory::Line;
use super::view::View;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &str = "ccl-pg01";

/// Lines in front of the records.
pub const PAGE_HEAD: usize = 64;

/// Makes zero lines a page without records.
pub fn format_page(lines: &[Line]) {
    if let Some(head) = lines.first() {
        put_text(&head.0.each_ref(), MAGIC);
    }
}

/// Lists the record that begins at line `at`. False where the list is full.
pub fn list_record(lines: &[Line], at: usize) -> bool {
    let exchange =
        |word: &AtomicU64| word.compare_exchange(0, at as u64, Ordering::Release, Ordering::Relaxed);
    directory(lines).any(|word| exchange(word).is_ok())
}

/// Takes the record that begins at line `at` off the list.
pub fn unlist_record(lines: &[Line], at: usize) {
    for word in directory(lines) {
        let _ = word.compare_exchange(at as u64, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The records of a page; none where it is no page, or one of another version.
pub fn records(lines: &[Line]) -> impl Iterator<Item = View<'_>> {
    let magic = lines.first().map(|head| head.0[0].load(Ordering::Relaxed).to_le_bytes());
    let is_page = magic.is_some_and(|magic| magic == MAGIC.as_bytes());
    let begins = directory(lines).filter(move |_| is_page).map(|word| word.load(Ordering::Acquire) as usize);
    begins.filter(|at| *at >= PAGE_HEAD).filter_map(|at| View::open(lines.get(at..)?))
}

fn directory(lines: &[Line]) -> impl Iterator<Item = &AtomicU64> {
    lines.get(1..PAGE_HEAD).into_iter().flatten().flat_map(|line| &line.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::{Identity, Memory, Recorder, lines_for};

    #[test]
    fn records_are_found_where_they_are_listed_and_nowhere_else() {
        let lines: &'static [Line] = Box::leak((0..1000).map(|_| Line::default()).collect());
        format_page(lines);
        let of = |rank: u32, at: usize| {
            let who = Identity { rank, ranks: 9, ..Identity::default() };
            Recorder::new(Memory::lent(&lines[at..at + lines_for(8)], ()), &who, 8)
        };
        let (_first, second, _unlisted) = (of(1, 64), of(2, 256), of(3, 512));
        assert!(list_record(lines, 64) && list_record(lines, 256));
        let ranks = || records(lines).map(|view| view.who().rank).collect::<Vec<_>>();
        assert_eq!(ranks(), [1, 2]);
        unlist_record(lines, 64);
        assert_eq!(ranks(), [2]);
        for wrong in [1, 63, 999, 1000, usize::MAX] {
            assert!(list_record(lines, wrong));
        }
        assert_eq!(ranks(), [2]);
        drop(second);
        assert!(ranks().is_empty());
        assert_eq!(records(&lines[1..]).count(), 0, "no page begins there");
        assert!((0..498).all(|_| list_record(lines, 5)) && !list_record(lines, 5), "the list is full");
    }
}

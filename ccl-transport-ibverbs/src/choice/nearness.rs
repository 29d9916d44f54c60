//! With which rail a process begins.

use super::Choice;
use super::rails::Rail;

/// The position of the rail: one near the process's NUMA node, where that is known, and another one for each of
/// the host's ranks there.
pub fn first(rails: &[Rail], numa: Option<u32>, local_rank: u32) -> Choice<usize> {
    let near: Vec<usize> = (0..rails.len()).filter(|&i| numa.is_some() && rails[i].numa == numa).collect();
    let turn = local_rank as usize;
    match (numa, near.is_empty()) {
        (Some(node), false) => {
            Choice::new(near[turn % near.len()], format!("near NUMA node {node}, as the process is"))
        }
        _ => Choice::new(turn % rails.len().max(1), "by the rank's number on its host"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;

    #[test]
    fn ranks_begin_near_and_apart() {
        let rails = rails::choose(&surveys::mixed(), &Config::default().ib).unwrap().value;
        assert_eq!(
            rails.iter().map(|rail| rail.numa).collect::<Vec<_>>(),
            [Some(0), Some(0), Some(1), Some(1)]
        );
        let of = |numa, rank| first(&rails, numa, rank).value;
        assert_eq!([of(Some(1), 0), of(Some(1), 1), of(Some(1), 2), of(Some(0), 1)], [2, 3, 2, 1]);
        assert_eq!([of(None, 5), of(Some(7), 3)], [1, 3]);
    }
}

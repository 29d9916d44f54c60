//! The tree in which ranks connect when they join. The [control plane](crate::control) keeps it connected afterwards.

use crate::plan::Rank;

/// Children of a rank: 256 ranks are four levels, and no rank holds more than five connections.
const ARITY: u32 = 4;

/// The parent of `rank`; rank 0 has none.
pub(super) fn parent(rank: Rank) -> Option<Rank> {
    Some(rank.checked_sub(1)? / ARITY)
}

/// The children of `rank`.
pub(super) fn children(rank: Rank, ranks: u32) -> impl Iterator<Item = Rank> {
    let first = u64::from(rank) * u64::from(ARITY) + 1;
    (first..first + u64::from(ARITY)).take_while(move |c| *c < u64::from(ranks)).map(|c| c as Rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for ranks in 1..200 {
            for rank in 0..ranks {
                assert!(children(rank, ranks).all(|c| parent(c) == Some(rank)));
                let claimed = (0..ranks).filter(|r| children(*r, ranks).any(|c| c == rank)).count();
                assert_eq!(claimed, usize::from(rank > 0));
            }
        }
        assert_eq!(children(u32::MAX, u32::MAX).count(), 0);
    }
}

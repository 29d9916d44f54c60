//! Who is there, and who is attached to whom.

use crate::plan::Rank;

/// Children of a rank in the tree: 256 ranks are four levels.
const ARITY: u32 = 4;

/// The parent of `rank` in the tree; rank 0 has none.
pub(super) fn parent(rank: Rank) -> Option<Rank> {
    Some(rank.checked_sub(1)? / ARITY)
}

/// The children of `rank` in the tree.
fn children(rank: Rank, ranks: u32) -> impl Iterator<Item = Rank> {
    let first = u64::from(rank) * u64::from(ARITY) + 1;
    (first..first + u64::from(ARITY)).take_while(move |c| *c < u64::from(ranks)).map(|c| c as Rank)
}

/// Whether `rank` is `above` or below it in the tree.
pub(super) fn is_under(mut rank: Rank, above: Rank) -> bool {
    while rank > above {
        rank = parent(rank).expect("a rank above another is not 0");
    }
    rank == above
}

/// Whether a rank takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    Left,
    Lost,
}

/// The tree of the ranks that are left, as one rank sees it.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    rank: Rank,
    presence: Vec<Presence>,
    /// In the order in which they went.
    gone: Vec<Rank>,
    head: Rank,
    attachment: Option<Rank>,
    attached: Vec<Rank>,
}

impl Overlay {
    pub(super) fn new(rank: Rank, ranks: u32) -> Overlay {
        let (presence, gone) = (vec![Presence::Here; ranks as usize], Vec::new());
        let attached = children(rank, ranks).collect();
        Overlay { rank, presence, gone, head: 0, attachment: parent(rank), attached }
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn ranks(&self) -> u32 {
        self.presence.len() as u32
    }

    /// Where a rank is; nobody asks for one that cannot be.
    pub(super) fn presence(&self, rank: Rank) -> Presence {
        self.presence[rank as usize]
    }

    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        self.presence(rank) != Presence::Here
    }

    /// Those who are gone, in the order in which that was learnt.
    pub(super) fn gone(&self) -> &[Rank] {
        &self.gone
    }

    /// How many are not gone.
    pub(super) fn here(&self) -> usize {
        self.presence.len() - self.gone.len()
    }

    /// The lowest rank that is not gone.
    pub(super) fn head(&self) -> Rank {
        self.head
    }

    pub(super) fn is_head(&self) -> bool {
        self.head == self.rank
    }

    /// Whom this rank is attached to.
    pub(super) fn attachment(&self) -> Option<Rank> {
        self.attachment
    }

    /// Ranks on the way to the head, which counts; 0 at the head.
    pub(super) fn depth(&self) -> u32 {
        let Some(attachment) = self.attachment else { return 0 };
        let ancestors = std::iter::successors(Some(attachment), |rank| parent(*rank));
        let between = ancestors.filter(|rank| !self.is_gone(*rank) && *rank != self.head).count();
        between as u32 + 1
    }

    /// Who is attached to this rank.
    pub(super) fn attached(&self) -> &[Rank] {
        &self.attached
    }

    /// Notes that another rank has gone. It must be here still.
    pub(super) fn remove(&mut self, rank: Rank, how: Presence) {
        debug_assert!(rank != self.rank && self.presence(rank) == Presence::Here && how != Presence::Here);
        self.presence[rank as usize] = how;
        self.gone.push(rank);
        let was = self.head;
        while self.is_gone(self.head) {
            self.head += 1;
        }
        if self.attachment == Some(rank) {
            let next = self.ways().next();
            self.attachment = next;
        }
        if self.attached.contains(&rank) || (self.head != was && self.is_head()) {
            self.attached = self.attached_without(&|_| false);
        }
    }

    /// Whom this rank could be attached to: its attachment, and what that would be if those before were gone too.
    pub(super) fn ways(&self) -> impl Iterator<Item = Rank> {
        let ancestors = std::iter::successors(parent(self.rank), |rank| parent(*rank));
        ancestors.chain(self.head..self.rank).filter(|rank| !self.is_gone(*rank))
    }

    /// Who would be attached to this rank if `others` were gone too.
    pub(super) fn attached_without(&self, others: &dyn Fn(Rank) -> bool) -> Vec<Rank> {
        let gone = |rank: Rank| self.is_gone(rank) || others(rank);
        let lowest = !(self.head..self.rank).any(|rank| !gone(rank));
        let mut attached = Vec::new();
        let mut below: Vec<Rank> = children(self.rank, self.ranks()).collect();
        if lowest && self.rank != 0 {
            below.push(0);
        }
        while let Some(rank) = below.pop() {
            // Below itself it has looked already.
            if rank == self.rank {
                continue;
            }
            match gone(rank) {
                true => below.extend(children(rank, self.ranks())),
                false => attached.push(rank),
            }
        }
        attached.sort_unstable();
        attached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Random;

    /// The rule, word by word.
    fn attachment_of(rank: Rank, gone: &[bool]) -> Option<Rank> {
        let ancestors = std::iter::successors(parent(rank), |r| parent(*r));
        let nearest = ancestors.clone().find(|r| !gone[*r as usize]);
        nearest.or_else(|| (0..rank).find(|r| !gone[*r as usize]))
    }

    #[test]
    fn attachments_are_those_of_the_rule_in_whatever_order_ranks_go() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let ranks = random.up_to(90) as u32;
            let mut order: Vec<Rank> = (0..ranks).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, random.up_to(at as u64 + 1) as usize - 1);
            }
            let mut overlays: Vec<_> = (0..ranks).map(|rank| Overlay::new(rank, ranks)).collect();
            let mut gone = vec![false; ranks as usize];
            for leaver in order {
                for rank in (0..ranks).filter(|r| !gone[*r as usize]) {
                    let overlay = &overlays[rank as usize];
                    assert_eq!(overlay.attachment(), attachment_of(rank, &gone));
                    let rule = |r: &Rank| !gone[*r as usize] && attachment_of(*r, &gone) == Some(rank);
                    let attached: Vec<Rank> = (0..ranks).filter(rule).collect();
                    assert_eq!(overlay.attached(), attached);
                    assert_eq!(overlay.is_head(), overlay.attachment().is_none());
                }
                gone[leaver as usize] = true;
                for rank in (0..ranks).filter(|r| !gone[*r as usize]) {
                    overlays[rank as usize].remove(leaver, Presence::Lost);
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree() {
        for ranks in 1..200 {
            for rank in 0..ranks {
                assert!(children(rank, ranks).all(|c| parent(c) == Some(rank) && is_under(c, rank)));
                let claimed = (0..ranks).filter(|r| children(*r, ranks).any(|c| c == rank)).count();
                assert_eq!(claimed, usize::from(rank > 0));
            }
        }
        assert_eq!(children(u32::MAX, u32::MAX).count(), 0);
        assert!(is_under(21, 1) && !is_under(21, 2));
    }
}

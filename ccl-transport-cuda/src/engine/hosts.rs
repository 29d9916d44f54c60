//! Which ranks share this rank's host, and which do not.

use ccl_core::plan::Rank;

/// Where a rank is, as another one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// On the same host, in this place among its ranks.
    Here(u32),
    /// On another host, in this place among all ranks that are on others.
    Away(u32),
}

/// The ranks of a communicator, as one of them sees them.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    own: Rank,
    seats: Vec<Seat>,
    most_here: usize,
    most_away: usize,
}

impl Hosts {
    /// As `own` sees them; `hosts` has a number for each rank's host.
    pub(super) fn new(own: Rank, hosts: &[u32]) -> Hosts {
        let here = |rank: Rank| hosts[rank as usize] == hosts[own as usize];
        let seat = |rank: Rank| {
            let before = (0..rank).filter(|other| here(*other) == here(rank)).count() as u32;
            if here(rank) { Seat::Here(before) } else { Seat::Away(before) }
        };
        let of = |host: &u32| hosts.iter().filter(|other| *other == host).count();
        let (most, least) = (hosts.iter().map(of).max(), hosts.iter().map(of).min());
        Hosts {
            own,
            seats: (0..hosts.len() as Rank).map(seat).collect(),
            most_here: most.unwrap_or(1),
            most_away: hosts.len() - least.unwrap_or(0),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn seat(&self, rank: Rank) -> Seat {
        self.seats[rank as usize]
    }

    /// This rank's own place among those of its host.
    pub(super) fn own(&self) -> u32 {
        match self.seat(self.own) {
            Seat::Here(place) | Seat::Away(place) => place,
        }
    }

    /// The ranks of this host, this one among them, in order.
    pub(super) fn here(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks() as Rank).filter(|rank| matches!(self.seat(*rank), Seat::Here(_)))
    }

    /// Those of others, in order.
    pub(super) fn away(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks() as Rank).filter(|rank| matches!(self.seat(*rank), Seat::Away(_)))
    }

    /// Ranks of the host that has most of them: all ranks say the same.
    pub(super) fn most_here(&self) -> usize {
        self.most_here
    }

    /// Ranks on other hosts, as the rank sees it for which they are most: all ranks say the same.
    pub(super) fn most_away(&self) -> usize {
        self.most_away
    }

    pub(super) fn are_several(&self) -> bool {
        self.most_away > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_here_and_away() {
        let hosts = Hosts::new(2, &[0, 1, 0, 1, 4]);
        let seats: Vec<_> = (0..5).map(|rank| hosts.seat(rank)).collect();
        use Seat::{Away, Here};
        assert_eq!(seats, [Here(0), Away(0), Here(1), Away(1), Away(2)]);
        assert_eq!((hosts.own(), hosts.most_here(), hosts.most_away()), (1, 2, 4));
        assert_eq!(hosts.here().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(hosts.away().collect::<Vec<_>>(), [1, 3, 4]);
        assert!(hosts.are_several() && !Hosts::new(1, &[7, 7]).are_several());
    }
}

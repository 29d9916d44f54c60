//! A trial: ranks, their script, a fault, and what the survivors do after it. A seed and a number determine it, so every
//! process draws it for itself.

use crate::fault::{Deed, Kind, Moment};
use crate::random::Random;
use crate::step::Step;
use ccl::Rank;
use std::time::Duration;

/// One trial.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) ranks: u32,
    pub(crate) kind: Kind,
    pub(crate) moment: Moment,
    /// Who does it.
    pub(crate) culprits: Vec<Rank>,
    /// The step of the script at which they do it.
    pub(crate) step: usize,
    /// How long after the moment, for each culprit.
    pub(crate) delays: Vec<Duration>,
    /// For what comes after a stop, or for how long a slow rank sleeps.
    pub(crate) pause: Duration,
    /// The last step is a barrier, so that nobody gets through without the culprits.
    pub(crate) script: Vec<Step>,
    /// What the survivors do when they have shrunk the communicator.
    pub(crate) after: Vec<Step>,
    /// What each rank does after its error.
    pub(crate) aftermath: Vec<Aftermath>,
    pub(crate) timeout: Duration,
    pub(crate) freeze: Duration,
    pub(crate) init: Duration,
}

/// What a survivor does after its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// Destroys the communicator.
    Destroy,
    /// Ends its process at once.
    Exit,
    /// Shrinks the communicator, as often as somebody dies, and goes on.
    Shrink,
}

impl Trial {
    /// Trial `number` under a seed, of a kind that it draws itself unless it is given.
    pub(crate) fn draw(seed: u64, number: u64, kind: Option<Kind>) -> Trial {
        let mut random = Random::new(seed, number);
        let drawn = drawn(random.next());
        let kind = kind.unwrap_or(drawn);
        let most = if random.percent(8) { 16 } else { 6 };
        let least = if matches!(kind, Kind::KillSeveral | Kind::KillInShrink) { 3 } else { 2 };
        let ranks = (least + random.below(most - least + 1)) as u32;

        let culprits = match kind {
            Kind::KillHead => vec![0],
            Kind::KillSeveral => {
                let many = 2 + random.below(u64::from(ranks) - 2) as u32;
                random.some_of(many, ranks)
            }
            Kind::KillInShrink => {
                let mut two = random.some_of(2, ranks);
                if random.percent(50) {
                    two.reverse();
                }
                two
            }
            Kind::KillAllButOne => random.some_of(ranks - 1, ranks),
            Kind::Garbage => Vec::new(),
            _ => vec![random.below(u64::from(ranks)) as u32],
        };
        let moment = kind.moment(random.percent(50));
        let steps = 4 + random.below(10) as usize;
        let mut script: Vec<_> = (0..steps).map(|_| Step::draw(&mut random, ranks)).collect();
        let step = if kind == Kind::KillConnecting { 0 } else { random.below(steps as u64 - 1) as usize };
        match kind.deed() {
            Deed::Bend(bend) => script[step] = Step::that_shows(bend, &mut random, ranks),
            Deed::Swap => {
                use crate::step::Bend;
                script[step] = Step::that_shows(Bend::Operator, &mut random, ranks);
                script[step + 1] = Step::that_shows(Bend::Root, &mut random, ranks);
            }
            _ => {}
        }
        script.push(Step::Barrier);
        let mut after: Vec<_> = (0..2 + random.below(4)).map(|_| Step::draw(&mut random, ranks)).collect();
        after.push(Step::Barrier);

        // From before the first instruction of what it falls into to after its end, most of them early.
        let longest = match moment {
            Moment::Joining => 20_000,
            Moment::Destroying => 2_000,
            _ => 3_000,
        };
        let delays = culprits.iter().enumerate().map(|(index, _)| {
            // A shrink takes longer than a call.
            let longest = if moment == Moment::Shrinking && index > 0 { 30_000 } else { longest };
            let limit = random.below(longest);
            Duration::from_micros(random.below(limit))
        });
        let delays = delays.collect();
        let (timeout, freeze) = (Duration::from_millis(1500), Duration::from_millis(1000));
        let pause = match kind {
            Kind::FreezeShort => Duration::from_millis(50 + random.below(400)),
            Kind::Slow => Duration::from_millis(100 + random.below(1000)),
            Kind::KillIdle => Duration::from_millis(random.below(200)),
            _ => freeze + Duration::from_millis(300 + random.below(900)),
        };
        let together = match random.below(10) {
            _ if kind == Kind::KillInShrink => Some(Aftermath::Shrink),
            0..4 => Some(Aftermath::Shrink),
            4..7 => Some(Aftermath::Destroy),
            7 => Some(Aftermath::Exit),
            _ => None,
        };
        let apart = [Aftermath::Shrink, Aftermath::Destroy, Aftermath::Exit];
        let aftermath = (0..ranks).map(|_| together.unwrap_or_else(|| random.pick(&apart))).collect();
        Trial {
            seed,
            number,
            ranks,
            kind,
            moment,
            culprits,
            step,
            delays,
            pause,
            script,
            after,
            aftermath,
            timeout,
            freeze,
            init: Duration::from_millis(3000),
        }
    }

    /// When a rank does it, if it is a culprit.
    pub(crate) fn moment_of(&self, rank: Rank) -> Option<Moment> {
        let index = self.culprits.iter().position(|culprit| *culprit == rank)?;
        match self.moment {
            Moment::Shrinking if index == 0 => Some(Moment::During),
            moment => Some(moment),
        }
    }

    pub(crate) fn is_culprit(&self, rank: Rank) -> bool {
        self.culprits.contains(&rank)
    }

    /// How to run it alone.
    pub(crate) fn again(&self) -> String {
        format!("cargo xtask chaos --seed {} --only {} --kind {}", self.seed, self.number, self.kind.name())
    }
}

/// A kind, by weight.
fn drawn(word: u64) -> Kind {
    let total: u64 = Kind::ALL.iter().map(|kind| kind.weight()).sum();
    let mut left = word % total;
    for kind in Kind::ALL {
        match left.checked_sub(kind.weight()) {
            Some(rest) => left = rest,
            None => return kind,
        }
    }
    Kind::KillInCall
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Outcome;

    #[test]
    fn a_seed_and_a_number_determine_a_trial_and_every_kind_comes() {
        let draw = |number| Trial::draw(7, number, None);
        assert_eq!(format!("{:?}", draw(3)), format!("{:?}", draw(3)));
        for kind in Kind::ALL {
            assert!((0..1000).any(|number| draw(number).kind == kind), "{kind:?}");
        }
    }

    #[test]
    fn somebody_is_left_to_notice_and_cannot_get_through() {
        for number in 0..1000 {
            let trial = Trial::draw(1, number, None);
            assert!(trial.culprits.len() < trial.ranks as usize, "{trial:?}");
            assert!(trial.step + 1 < trial.script.len(), "{trial:?}");
            assert_eq!(trial.script.last(), Some(&Step::Barrier));
            let nobody = trial.culprits.is_empty();
            assert!(!nobody || trial.kind.outcome() == Outcome::Right, "{trial:?}");
        }
    }
}

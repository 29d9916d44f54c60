//! The steps of a trial: which calls the ranks make, as numbers that every rank draws alike.

use crate::random::{Random, mix};
use crate::value::is_exact;
use ccl::{Collective, DataType, Rank, ReduceOp};

/// One step of every rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// One call, or several as a group.
    Calls(Vec<Draw>),
    /// A barrier.
    Barrier,
    /// A split, and a call among each of the groups.
    Split(Draw),
}

/// One call, for any number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draw {
    pub(crate) what: What,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    /// Elements of a block, or of the longest one.
    pub(crate) count: usize,
    /// Modulo the number of ranks: the root, or how far transfers go.
    pub(crate) root: u32,
    pub(crate) in_place: bool,
    /// Whether its buffers are memory that peers can read.
    pub(crate) mapped: bool,
    pub(crate) algorithm: Option<&'static str>,
    pub(crate) seed: u64,
}

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A collective.
    Even(Collective),
    /// One whose blocks differ in length.
    Uneven(Collective),
    /// Every rank sends to the one so many places further on.
    Shift,
}

/// How a rank's call differs from what the others expect of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bend {
    Count,
    Type,
    Operator,
    Root,
    Collective,
    Algorithm,
    Transfer,
}

const UNEVEN: [Collective; 5] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];
/// Elements of a rank's longest buffer, for the checks' sake.
const MOST_ELEMENTS: usize = 1 << 18;

impl Step {
    pub(crate) fn draw(random: &mut Random, ranks: u32) -> Step {
        match random.below(20) {
            0 => Step::Barrier,
            1 => Step::Split(Draw::any(random, ranks)),
            2 | 3 => Step::Calls((0..2 + random.below(3)).map(|_| Draw::any(random, ranks)).collect()),
            _ => Step::Calls(vec![Draw::any(random, ranks)]),
        }
    }

    /// A call in which this difference shows.
    pub(crate) fn that_shows(bend: Bend, random: &mut Random, ranks: u32) -> Step {
        let mut draw = Draw::any(random, ranks);
        draw.what = What::Even(match bend {
            Bend::Root => Collective::Broadcast,
            Bend::Count | Bend::Type => random.pick(&[Collective::AllReduce, Collective::AllGather]),
            _ => Collective::AllReduce,
        });
        draw.dtype = random.pick(&[DataType::I32, DataType::F32]);
        draw.op = ReduceOp::Sum;
        draw.count = 1 + random.below(2000) as usize;
        draw.algorithm = match bend {
            Bend::Algorithm => Some("ring"),
            _ => None,
        };
        if bend == Bend::Transfer {
            (draw.what, draw.root) = (What::Shift, 1);
        }
        Step::Calls(vec![draw])
    }

    /// What a rank does instead. Other steps than those of [`that_shows`](Step::that_shows) stay as they are.
    pub(crate) fn bent(&self, bend: Bend) -> Step {
        let Step::Calls(draws) = self else { return self.clone() };
        let mut draw = draws[0].clone();
        match bend {
            Bend::Count | Bend::Transfer => draw.count += 1,
            Bend::Type => draw.dtype = DataType::U32,
            Bend::Operator => draw.op = ReduceOp::Max,
            Bend::Root => draw.root += 1,
            Bend::Collective => draw.what = What::Even(Collective::ReduceScatter),
            Bend::Algorithm => draw.algorithm = Some("oneshot"),
        }
        Step::Calls(vec![draw])
    }
}

impl Draw {
    fn any(random: &mut Random, ranks: u32) -> Draw {
        let what = match random.below(12) {
            0..8 => What::Even(random.pick(&Collective::ALL)),
            8..10 => What::Uneven(random.pick(&UNEVEN)),
            _ => What::Shift,
        };
        let (dtype, op) = loop {
            let (dtype, op) = (random.pick(&DataType::ALL), random.pick(&ReduceOp::ALL));
            if !what.reduces() || is_exact(dtype, op) {
                // An operator that is not looked at must fit the type all the same.
                break (dtype, if what.reduces() { op } else { ReduceOp::Sum });
            }
        };
        // Every order of magnitude is as likely, and empty calls are among them.
        let magnitude = random.below(21);
        let bytes = random.below(1 << magnitude) as usize;
        let count = (bytes / dtype.size()).min(MOST_ELEMENTS) / what.blocks(ranks);
        let names: Vec<_> = ccl::algorithm_names().collect();
        Draw {
            what,
            dtype,
            op,
            count,
            root: random.below(64) as u32,
            in_place: random.percent(30),
            mapped: random.percent(20),
            algorithm: random.percent(40).then(|| random.pick(&names)),
            seed: random.next(),
        }
    }

    /// Elements from one rank to another, where blocks differ by rank.
    pub(crate) fn length(&self, from: Rank, to: Rank) -> usize {
        let of = |a: Rank, b: Rank| self.count * (mix(self.seed, u64::from(a * 64 + b)) % 3) as usize / 2;
        match self.what {
            What::Uneven(Collective::AllToAll) => of(from, to),
            What::Uneven(Collective::AllGather | Collective::Gather) => of(from, 0),
            What::Uneven(_) => of(to, 0),
            _ => self.count,
        }
    }

    /// Whether so many ranks may ask its algorithm for it, in place or not.
    pub(crate) fn may_use(&self, algorithm: &str, ranks: u32) -> bool {
        match self.what {
            What::Even(collective) | What::Uneven(collective) => {
                let does = |in_place| ccl::algorithm_does(algorithm, collective, ranks, in_place);
                !does(false) || does(true)
            }
            What::Shift => true,
        }
    }
}

impl What {
    /// The operator counts.
    pub(crate) fn reduces(self) -> bool {
        let (What::Even(collective) | What::Uneven(collective)) = self else { return false };
        matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Blocks of the longest buffer.
    fn blocks(self, ranks: u32) -> usize {
        let (What::Even(collective) | What::Uneven(collective)) = self else { return 1 };
        let root = Collective::input_blocks(collective, ranks, 0, 0);
        root.max(Collective::output_blocks(collective, ranks, 0, 0)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bent_call_differs_and_is_small() {
        let bends = [
            Bend::Count,
            Bend::Type,
            Bend::Operator,
            Bend::Root,
            Bend::Collective,
            Bend::Algorithm,
            Bend::Transfer,
        ];
        for (bend, seed) in bends.into_iter().flat_map(|bend| (0..50).map(move |seed| (bend, seed))) {
            let step = Step::that_shows(bend, &mut Random::new(seed, 1), 4);
            assert_ne!(step.bent(bend), step, "{bend:?}");
        }
    }

    #[test]
    fn draws_reach_every_kind_of_call() {
        let mut random = Random::new(1, 1);
        let draws: Vec<_> = (0..2000).map(|_| Draw::any(&mut random, 4)).collect();
        for collective in Collective::ALL {
            assert!(draws.iter().any(|d| d.what == What::Even(collective) && d.in_place), "{collective}");
        }
        for collective in UNEVEN {
            assert!(draws.iter().any(|d| d.what == What::Uneven(collective)), "{collective}");
        }
        for dtype in DataType::ALL {
            assert!(draws.iter().any(|d| d.dtype == dtype && d.count > 0), "{dtype}");
        }
        assert!(draws.iter().any(|d| d.what == What::Shift));
        assert!(draws.iter().any(|d| d.count == 0) && draws.iter().any(|d| d.count > 100_000));
    }
}

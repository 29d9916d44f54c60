//! The constants with which the cost function predicts best what was measured.

use ccl::cost::{Candidates, Choice, Constants, Model, Wish};
use std::sync::Arc;

/// What one call took.
pub(super) struct Sample {
    /// Those that can carry it out.
    pub(super) candidates: Arc<Candidates>,
    /// The name of the one that did.
    pub(super) algorithm: &'static str,
    /// Where it was measured; the constants are those to be found.
    pub(super) model: Model,
    pub(super) block_bytes: usize,
    pub(super) tile_bytes: usize,
    pub(super) ns: f64,
}

impl Sample {
    fn choose(&self, constants: Constants, algorithm: Option<&str>) -> Choice {
        let model = Model { constants, ..self.model };
        let wish = Wish { algorithm, tile_bytes: Some(self.tile_bytes) };
        let choice = self.candidates.choose(&model, self.block_bytes, false, wish);
        choice.expect("what was measured can be chosen")
    }

    /// What these constants predict.
    pub(super) fn predicted_ns(&self, constants: Constants) -> f64 {
        self.choose(constants, Some(self.algorithm)).predicted_ns
    }

    /// By what factor the call took longer than these constants predict, as a logarithm.
    pub(super) fn error(&self, constants: Constants) -> f64 {
        (self.ns / self.predicted_ns(constants)).ln()
    }

    /// By what factor the algorithm that these constants choose took longer than this one, as a logarithm, if it did.
    pub(super) fn regret(&self, all: &[Sample], constants: Constants) -> Option<f64> {
        let call =
            |sample: &Sample| (sample.candidates.collective(), sample.model.local_ranks, sample.block_bytes);
        let is_rival = |other: &&Sample| call(other) == call(self) && other.algorithm != self.algorithm;
        // Most have none, and to choose takes longest.
        all.iter().find(is_rival)?;
        let chosen = self.choose(constants, None).algorithm.name();
        let chosen = all.iter().filter(is_rival).find(|rival| rival.algorithm == chosen)?;
        Some((chosen.ns / self.ns).ln()).filter(|regret| *regret > 0.0)
    }
}

/// The constants that are fitted. How much of the caches a job has is not seen from how long single calls take, nor what it does best with, and
/// stays as the machine says.
const FITTED: [&str; 8] = [
    "alpha_ns",
    "step_ns",
    "message_ns",
    "beta_ns_per_byte",
    "far_beta_ns_per_byte",
    "gamma_ns_per_byte",
    "read_per_write",
    "switch_ns",
];

/// Beyond this error a sample's pull grows no further: it was disturbed.
const DISTURBED: f64 = 0.3;
/// How much a choice that another algorithm would have been better than counts, by how much its logarithm's square counts for a
/// prediction: choices are what predictions are for.
const REGRET: f64 = 1.0;
/// Pull towards the start, so that a constant which no sample tells from another one stays near it.
const PRIOR: f64 = 0.02;
/// Furthest that a constant goes from its start: a factor.
const FURTHEST: f64 = 30.0;
/// Factors by which constants are tried to be changed, coarse ones first.
const STEPS: [f64; 4] = [2.0, 1.3, 1.08, 1.02];
/// Rounds of one factor; far more than it takes.
const ROUNDS: usize = 40;

/// Goes downhill from `start`, one constant at a time.
pub(super) fn fit(samples: &[Sample], start: Constants) -> Constants {
    let mut best = start;
    let mut least = loss(samples, best, start);
    for step in STEPS {
        for _ in 0..ROUNDS {
            let before = least;
            for name in FITTED {
                for factor in [step, 1.0 / step] {
                    let mut tried = best;
                    if let Some(value) = tried.get_mut(name) {
                        *value *= factor;
                    }
                    let loss = loss(samples, tried, start);
                    if loss < least {
                        (best, least) = (tried, loss);
                    }
                }
            }
            if least == before {
                break;
            }
        }
    }
    best
}

/// Squares of errors, of which large ones count like medium ones; what wrong choices cost; and squares of the distance from the start.
fn loss(samples: &[Sample], constants: Constants, start: Constants) -> f64 {
    let pull = |error: f64| match error.abs() {
        small if small <= DISTURBED => small * small,
        large => DISTURBED * (2.0 * large - DISTURBED),
    };
    let errors = samples.iter().map(|sample| pull(sample.error(constants))).sum::<f64>();
    let far = |((_, value), (_, usual)): ((_, f64), (_, f64))| {
        let distance = (value / usual).ln().abs();
        if distance > FURTHEST.ln() { f64::INFINITY } else { distance * distance }
    };
    let regrets = samples.iter().filter_map(|sample| sample.regret(samples, constants)).sum::<f64>();
    errors + REGRET * regrets + PRIOR * constants.each().into_iter().zip(start.each()).map(far).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::Collective;

    /// What calls would take on a machine with these constants.
    fn samples(constants: Constants) -> Vec<Sample> {
        let mut samples = Vec::new();
        for ranks in [2, 4] {
            for (collective, name) in [
                (Collective::AllReduce, "oneshot"),
                (Collective::AllReduce, "twoshot"),
                (Collective::AllGather, "oneshot"),
                (Collective::Broadcast, "oneshot"),
            ] {
                for bits in [3, 10, 14, 18, 22, 26] {
                    let mut sample = Sample {
                        candidates: Arc::new(Candidates::new(collective, ranks, 0).unwrap()),
                        algorithm: name,
                        model: Model::tuned(constants, 2, ranks),
                        block_bytes: 1 << bits,
                        tile_bytes: 64 << 10,
                        ns: 0.0,
                    };
                    sample.ns = sample.predicted_ns(constants);
                    samples.push(sample);
                }
            }
        }
        samples
    }

    #[test]
    fn constants_are_found_from_what_they_come_to() {
        let start = Constants::default();
        let there = Constants {
            alpha_ns: 150.0,
            beta_ns_per_byte: 0.03,
            far_beta_ns_per_byte: 0.1,
            switch_ns: 5000.0,
            ..start
        };
        let samples = samples(there);
        let worst = |constants| samples.iter().map(|s| s.error(constants).abs()).fold(0.0, f64::max);
        let found = fit(&samples, start);
        assert!(
            worst(start) > 0.5 && worst(found) < 0.15,
            "{} and {}: {found:?}",
            worst(start),
            worst(found)
        );
        assert_eq!(fit(&samples, there), there, "what fits already stays");
    }

    #[test]
    fn what_was_quicker_is_chosen_even_if_predictions_are_further_off() {
        let start = Constants::default();
        let mut samples = samples(start);
        let regrets = |samples: &[Sample], constants| {
            samples.iter().filter(|sample| sample.regret(samples, constants).is_some()).count()
        };
        assert_eq!(regrets(&samples, start), 0);
        let is_slow = |sample: &&mut Sample| {
            (sample.algorithm, sample.block_bytes, sample.model.local_ranks) == ("twoshot", 1 << 18, 2)
                && sample.candidates.collective() == Collective::AllReduce
        };
        samples.iter_mut().filter(is_slow).for_each(|sample| sample.ns *= 1.3);
        assert_eq!(regrets(&samples, start), 1, "the other one was quicker");
        let found = fit(&samples, start);
        assert_eq!(regrets(&samples, found), 0, "{found:?}");
    }

    #[test]
    fn a_disturbed_sample_moves_little_and_none_moves_nothing() {
        let start = Constants::default();
        let mut samples = samples(start);
        samples[5].ns *= 1000.0;
        let found = fit(&samples, start);
        let off = samples.iter().enumerate().filter(|(i, _)| *i != 5).map(|(_, s)| s.error(found).abs());
        assert!(off.fold(0.0, f64::max) < 0.2, "{found:?}");
        assert_eq!(fit(&[], start), start);
        assert_eq!(found.fault(), None);
    }
}

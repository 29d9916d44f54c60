//! The constants with which the cost function predicts best what was measured.

use ccl::cost::{Constants, Demand, Model};

/// What one call took.
pub(super) struct Sample {
    pub(super) demand: Demand,
    /// Where it was measured; the constants are those to be found.
    pub(super) model: Model,
    pub(super) block_bytes: usize,
    pub(super) tile_bytes: usize,
    pub(super) ns: f64,
}

impl Sample {
    /// By what factor the call took longer than these constants predict, as a logarithm.
    pub(super) fn error(&self, constants: Constants) -> f64 {
        let model = Model { constants, ..self.model };
        (self.ns / self.demand.price(&model, self.block_bytes, self.tile_bytes).ns).ln()
    }
}

/// The constants that are fitted. How much of the largest cache a job has is not seen from how long single calls take, and
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

/// Squares of errors, of which large ones count like medium ones, and of the distance from the start.
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
    errors + PRIOR * constants.each().into_iter().zip(start.each()).map(far).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::Collective;
    use ccl::algorithms::by_name;

    /// What calls would take on a machine with these constants.
    fn samples(constants: Constants) -> Vec<Sample> {
        let mut samples = Vec::new();
        for ranks in [2, 4] {
            for (collective, name) in [
                (Collective::AllReduce, "oneshot"),
                (Collective::AllReduce, "ring"),
                (Collective::AllGather, "oneshot"),
                (Collective::Broadcast, "oneshot"),
            ] {
                for bits in [3, 10, 14, 18, 22, 26] {
                    let demand = Demand::new(by_name(name).unwrap(), collective, ranks, 0).unwrap();
                    let model = Model::tuned(constants, 2, ranks);
                    let mut sample =
                        Sample { demand, model, block_bytes: 1 << bits, tile_bytes: 64 << 10, ns: 1.0 };
                    sample.ns = sample.error(constants).exp().recip();
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

//! The benchmark beside the peers: what computes is tested, and ours is run through its driver, every collective,
//! place and type with verified data. The peers are not installed for that.

use crate::shell::{command, run};
use crate::tally::Outcome;

const COMMANDS: [&str; 3] = [
    "python3 benches/peers/tests.py",
    "python3 benches/peers/run --peers none --profile fast --repeats 1 --seconds 0.001 --ranks 2,3 --sizes 8,4K,1M",
    "python3 benches/peers/run --peers none --no-build --repeats 1 --seconds 0.001 --ranks 2 --types float16,bfloat16 --sizes 8,1M",
];

pub(crate) fn check() -> Outcome {
    for line in COMMANDS {
        if let Err(why) = run(&mut command(line)) {
            return Outcome::Failed(why);
        }
    }
    Outcome::tests(COMMANDS.len() as u64, Vec::new())
}

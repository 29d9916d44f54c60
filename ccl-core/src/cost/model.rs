//! What things take on a machine.

use serde::{Deserialize, Serialize};

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $built_in:expr;)*) => {
        /// What differs from machine to machine, as a tuned profile has it. `Constants::default()` is built in: it was
        /// measured on two cores of Zen 5. Times in nanoseconds, where they are times.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Constants { $($(#[$doc])* pub $name: f64),* }

        impl Default for Constants {
            fn default() -> Constants {
                Constants { $($name: $built_in),* }
            }
        }

        impl Constants {
            /// Each with its name, in the order of a profile.
            pub fn each(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// The constant of this name; `None` where none has it.
            pub fn get_mut(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

constants! {
    /// A short message from one rank to another.
    alpha_ns = 60.0;
    /// A move, before its first byte.
    step_ns = 15.0;
    /// One end of a message at the rank that sends or receives it: credit, tag and counters.
    message_ns = 10.0;
    /// A byte written, while all buffers fit the cache.
    beta_ns_per_byte = 1.0 / 80.0;
    /// A byte written, when they do not.
    far_beta_ns_per_byte = 1.0 / 27.0;
    /// A byte read from a link, on top of writing it somewhere: it comes from another core's cache.
    gamma_ns_per_byte = 1.0 / 60.0;
    /// A byte read from one of the rank's own buffers, by one written.
    read_per_write = 0.21;
    /// Giving the core to another rank.
    switch_ns = 1400.0;
    /// Bytes of cache that the ranks of this machine share.
    cache_bytes = 16e6;
}

/// A constant that is so many times above or below the built-in one is no measurement of any machine.
const MOST: f64 = 1000.0;

impl Constants {
    /// Why they cannot be those of a machine, if so: prices must stay finite and positive.
    pub fn fault(&self) -> Option<String> {
        let built_in = Constants::default().each();
        self.each().into_iter().zip(built_in).find_map(|((name, value), (_, usual))| {
            let (least, most) = (usual / MOST, usual * MOST);
            let fits = (least..=most).contains(&value);
            (!fits).then(|| format!("{name} is {value}, not between {least:.3} and {most:.0}"))
        })
    }
}

/// How many times larger than the caches the buffers of all ranks must be for streaming stores. Measured with two ranks on
/// two Zen 5 cores: at 64 MiB and above they took 5 to 8 % less, at 16 MiB as much, at 4 MiB a tenth more.
const STREAMED_CACHES: f64 = 8.0;

/// A machine, and how the ranks of a communicator lie on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// What things take.
    pub constants: Constants,
    /// Whether a piece for several peers is written once.
    pub shared_slots: bool,
    /// Cores of this machine.
    pub cores: u32,
    /// Ranks on this machine.
    pub local_ranks: u32,
    /// Longest piece.
    pub slot_bytes: usize,
}

impl Model {
    /// Ranks of one machine that talk through shared memory, with the built-in constants.
    pub fn shared_memory(cores: u32, ranks: u32) -> Model {
        Model::tuned(Constants::default(), cores, ranks)
    }

    /// Ranks of one machine that talk through shared memory, and what that takes there.
    pub fn tuned(constants: Constants, cores: u32, ranks: u32) -> Model {
        Model {
            constants,
            shared_slots: true,
            cores: cores.max(1),
            local_ranks: ranks.max(1),
            slot_bytes: 64 << 10,
        }
    }

    /// Whether what ranks write into buffers of so many bytes each is gone from the caches before anybody reads it, by so far
    /// that writing past them wins.
    pub fn streams(&self, bytes: usize) -> bool {
        bytes as f64 * f64::from(self.local_ranks) >= STREAMED_CACHES * self.constants.cache_bytes
    }

    /// Ranks that share one core, at least 1.
    pub(super) fn crowding(&self) -> f64 {
        (f64::from(self.local_ranks) / f64::from(self.cores.max(1))).max(1.0)
    }
}

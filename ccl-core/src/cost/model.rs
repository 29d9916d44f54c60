//! What things take on a machine.

use crate::transport::{Reach, slot_bytes_of};
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
    /// Bytes of pieces that a rank with a core for itself sends before it takes as many, unless the call is long.
    lead_bytes = 524_288.0;
}

/// From so many ranks to a core on, and buffers that take so many times the cache, what one has read is gone from it until that one writes there.
const CROWD: f64 = 3.0;
const MUCH: usize = 4;

/// Buffers that take so many times the cache leave in it what their own ranks write there.
const KEPT: f64 = 1.5;

/// What comes to giving the core away: the rank has looked for pieces of other cores before.
const AROUND_SWITCH_NS: f64 = 300.0;
/// How much longer an end of a message, and a byte read from a link, take where ranks share cores: what was written there has left the nearer caches. These three are fitted to
/// all-reduces of 3 to 16 ranks on two cores of Zen 4, of 8 bytes to 128 KiB.
const CROWD_MESSAGES: f64 = 4.0;
const CROWD_READS: f64 = 1.75;

/// A constant that is so many times above or below the built-in one is no measurement of any machine.
const MOST: f64 = 1000.0;

impl Constants {
    /// Why they cannot be those of a machine, if so: prices must stay finite and positive.
    pub fn fault(&self) -> Option<String> {
        let built_in = Constants::default().each();
        self.each().into_iter().zip(built_in).find_map(|((name, value), (_, usual))| off(name, value, usual))
    }
}

/// What is wrong with a value that is usually like this, if it is far off.
fn off(name: &str, value: f64, usual: f64) -> Option<String> {
    let (least, most) = (usual / MOST, usual * MOST);
    let fits = (least..=most).contains(&value);
    (!fits).then(|| format!("{name} is {value}, not between {least:.3} and {most:.0}"))
}

/// What a message takes that goes from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Net {
    /// A short message, from rank to rank, in nanoseconds.
    pub latency_ns: f64,
    /// What a message takes of the host's share besides its bytes, in nanoseconds.
    pub message_ns: f64,
    /// A byte, in nanoseconds, while one rank of the host sends: those that send at the same time share this.
    pub ns_per_byte: f64,
    /// Whether the ranks' processors do that, which can do nothing else then.
    pub by_processor: bool,
}

impl Net {
    /// One that a transport says to reach so well.
    pub fn of(reach: Reach) -> Net {
        let Reach { latency_ns, message_ns, bandwidth, by_processor } = reach;
        Net { latency_ns, message_ns, ns_per_byte: 1.0 / bandwidth, by_processor }
    }

    /// What a message of so many bytes takes of the host's share of the network.
    pub(super) fn share_ns(&self, bytes: f64) -> f64 {
        self.message_ns + bytes * self.ns_per_byte
    }

    /// Why this can be no network, if so: prices must stay finite and positive.
    pub fn fault(&self) -> Option<String> {
        let usual = Net::default();
        let pairs = [
            ("latency_ns", self.latency_ns, usual.latency_ns),
            ("message_ns", self.message_ns, usual.message_ns),
            ("ns_per_byte", self.ns_per_byte, usual.ns_per_byte),
        ];
        pairs.into_iter().find_map(|(name, value, usual)| off(name, value, usual))
    }
}

impl Default for Net {
    /// A card of 100 Gbit/s.
    fn default() -> Net {
        Net { latency_ns: 2000.0, message_ns: 250.0, ns_per_byte: 1.0 / 12.0, by_processor: false }
    }
}

/// Machines that are alike, the network between them, and how the ranks of a communicator lie on each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// What things take.
    pub constants: Constants,
    /// What messages between hosts take, where there are several.
    pub net: Net,
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
            net: Net::default(),
            shared_slots: true,
            cores: cores.max(1),
            local_ranks: ranks.max(1),
            slot_bytes: slot_bytes_of(ranks.into()),
        }
    }

    /// Whether what ranks write into buffers of so many bytes each is gone from the caches before anybody reads it, by so far
    /// that writing past them wins. Measured with 2, 4 and 8 ranks on two Zen 5 cores that share 32 MiB with others: where the buffers of all take 16 MiB,
    /// calls took up to a third less, and as long as before at 8 and 12 MiB.
    pub fn streams(&self, bytes: usize) -> bool {
        self.of_all(bytes) >= self.constants.cache_bytes
    }

    /// Whether the caches hold what each rank writes into its own buffers of so many bytes, where what it writes into others' goes past them. On two Zen 5 cores that share
    /// 32 MiB, all-reduces in mapped memory whose buffers take 16 to 20 MiB in all do with three quarters of the time of one that writes everything past the caches, of 24 MiB with eight or nine tenths;
    /// of 32 MiB they take 1.16.
    pub fn keeps(&self, bytes: usize) -> bool {
        self.of_all(bytes) <= self.constants.cache_bytes * KEPT
    }

    /// Whether what a rank has read of buffers of so many bytes each is gone from the caches until it writes there, since others on its core have driven it out. All-reduces in
    /// place of 4 to 64 MiB between 8 ranks on two cores of an Intel Xeon take 0.82 to 0.87 of the time if they write past the caches what they have read before,
    /// of 1 MiB 1.1. With 4 ranks they take as long, and all-to-alls 1.15.
    pub fn forgets(&self, bytes: usize) -> bool {
        self.crowding() >= CROWD && self.streams(bytes / MUCH)
    }

    /// What buffers of so many bytes each come to.
    fn of_all(&self, bytes: usize) -> f64 {
        bytes as f64 * f64::from(self.local_ranks)
    }

    /// Bytes that a call sends before it takes as many, where that depends on the machine: where ranks share cores it does not.
    pub fn lead(&self) -> Option<usize> {
        (self.crowding() <= 1.0).then_some(self.constants.lead_bytes as usize)
    }

    /// Ranks on the core that most of them share, at least 1.
    pub(super) fn crowding(&self) -> f64 {
        f64::from(self.local_ranks.div_ceil(self.cores.max(1)).max(1))
    }

    /// What a message waits until its receiver has the core: all others there have it before.
    pub(super) fn switches_ns(&self) -> f64 {
        (self.crowding() - 1.0) * (self.constants.switch_ns + AROUND_SWITCH_NS)
    }

    /// One end of a message.
    pub(super) fn message_ns(&self) -> f64 {
        self.crowded(CROWD_MESSAGES) * self.constants.message_ns
    }

    /// A byte read from a link, on top of writing it somewhere.
    pub(super) fn gamma_ns_per_byte(&self) -> f64 {
        self.crowded(CROWD_READS) * self.constants.gamma_ns_per_byte
    }

    /// A factor that counts where ranks share cores.
    fn crowded(&self, factor: f64) -> f64 {
        if self.crowding() > 1.0 { factor } else { 1.0 }
    }
}

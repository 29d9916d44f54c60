//! What things take on a machine.

/// What things take on a machine. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// A short message from one rank to another.
    pub alpha_ns: f64,
    /// A move, before its first byte.
    pub step_ns: f64,
    /// One end of a message at the rank that sends or receives it: credit, tag and counters.
    pub message_ns: f64,
    /// A byte written, while all buffers fit the cache.
    pub beta_ns_per_byte: f64,
    /// A byte written, when they do not.
    pub far_beta_ns_per_byte: f64,
    /// A byte read from a link, on top of writing it somewhere: it comes from another core's cache.
    pub gamma_ns_per_byte: f64,
    /// Giving the core to another rank.
    pub switch_ns: f64,
    /// Bytes of cache that the ranks of this machine share.
    pub cache_bytes: f64,
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
    /// Ranks of one machine that talk through shared memory.
    ///
    /// The constants are measurements on two Zen 5 cores: a cache line takes 50 to 60 ns one way, a stream
    /// of slots moves 60 GB/s, a copy 80 GB/s in cache and 27 to memory; `sched_yield` takes 1.4 µs on one
    /// core.
    pub fn shared_memory(cores: u32, ranks: u32) -> Model {
        Model {
            alpha_ns: 60.0,
            step_ns: 15.0,
            message_ns: 10.0,
            beta_ns_per_byte: 1.0 / 80.0,
            far_beta_ns_per_byte: 1.0 / 27.0,
            gamma_ns_per_byte: 1.0 / 60.0,
            switch_ns: 1400.0,
            cache_bytes: 16e6,
            shared_slots: true,
            cores: cores.max(1),
            local_ranks: ranks.max(1),
            slot_bytes: 64 << 10,
        }
    }

    /// Ranks that share one core, at least 1.
    pub(super) fn crowding(&self) -> f64 {
        (f64::from(self.local_ranks) / f64::from(self.cores.max(1))).max(1.0)
    }
}

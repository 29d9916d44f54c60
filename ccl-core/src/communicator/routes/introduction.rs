//! What ranks tell each other of themselves when they join.

use crate::bootstrap::Bootstrap;
use crate::communicator::Opener;
use crate::communicator::cores::Cores;
use crate::config::Config;
use crate::cost::{Constants, Model};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Rank;
use crate::transport::Transport;
use serde::{Deserialize, Serialize};

/// What the cost function takes for granted. Ranks that priced with different constants would choose differently, so those of
/// rank 0 count for all.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::communicator) struct Assumptions {
    pub(super) constants: Constants,
}

impl Assumptions {
    /// This rank's own: its machine's profile, if there is one.
    pub(in crate::communicator) fn own(config: &Config) -> Result<Assumptions> {
        let tuned = config.tuned()?;
        if let Some(warning) = &tuned.warning {
            tracing::warn!("{warning}");
        }
        let profile = tuned.profile.as_ref().map_or_else(|| "built in".into(), |path| path.to_string_lossy());
        tracing::debug!(%profile, constants = ?tuned.constants, "constants of the cost function");
        Ok(Assumptions { constants: tuned.constants })
    }

    /// The model for so many ranks of a host on so many cores.
    pub(in crate::communicator) fn model(&self, cores: u32, local_ranks: u32) -> Model {
        Model::tuned(self.constants, cores, local_ranks)
    }
}

/// What every rank tells the others about itself at initialisation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::communicator) struct Introduction {
    /// Name and address of each transport that the rank has opened, best first.
    pub(in crate::communicator) transports: Vec<(String, Vec<u8>)>,
    /// Settings that all ranks must share.
    pub(in crate::communicator) settings: String,
    /// What the rank may run on.
    pub(in crate::communicator) cores: Cores,
    /// How many threads its process may keep busy: a container's share of the processors counts too.
    pub(in crate::communicator) parallelism: u32,
    /// Whether its process may have device buffers.
    pub(in crate::communicator) devices: bool,
    /// On which device its thread has joined, in words that core does not read; empty: on none.
    pub(in crate::communicator) place: Vec<u8>,
    /// Rank 0's.
    pub(in crate::communicator) assumptions: Option<Assumptions>,
}

impl Introduction {
    /// That of a rank which has nobody to introduce itself to, whose calls will be on this device.
    pub(in crate::communicator) fn of_one_alone(place: Vec<u8>) -> Introduction {
        Introduction {
            transports: Vec::new(),
            settings: String::new(),
            cores: Cores::here(),
            parallelism: parallelism(),
            devices: false,
            place,
            assumptions: None,
        }
    }

    /// That of `rank`, which has opened these transports.
    pub(in crate::communicator) fn of(
        rank: Rank,
        config: &Config,
        transports: &[Box<dyn Transport>],
        opener: &dyn Opener,
    ) -> Result<Introduction> {
        fn auto<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "auto".to_string(), |value| value.to_string())
        }
        let algorithms = config.algorithms.iter().map(|choice| choice.to_string());
        let settings = format!(
            "version {}; algorithms [{}]; tile_bytes {}; threads {}; tcp_sockets {}; slot_bytes {}; credits {}; \
             device_engine {} {} {}",
            env!("CARGO_PKG_VERSION"),
            algorithms.collect::<Vec<_>>().join(","),
            auto(config.tile_bytes),
            config.threads,
            config.tcp_sockets,
            auto(config.slot_bytes),
            auto(config.credits),
            config.device_engine,
            auto(config.device_blocks),
            config.device_threads,
        );
        let transports = transports.iter().map(|t| (t.name().to_string(), t.address())).collect();
        let assumptions = (rank == 0).then(|| Assumptions::own(config)).transpose()?;
        let (cores, parallelism) = (Cores::here(), parallelism());
        let (devices, place) = (opener.devices(), opener.place());
        Ok(Introduction { transports, settings, cores, parallelism, devices, place, assumptions })
    }

    /// Everybody's introduction, by rank. Ranks whose settings differ would plan differently, so they
    /// are told apart here and not by a call that goes wrong.
    pub(in crate::communicator) fn exchange(&self, bootstrap: &mut Bootstrap) -> Result<Vec<Introduction>> {
        let encoded = serde_json::to_vec(self).map_err(|error| malformed(bootstrap.rank(), &error))?;
        let mut introductions = Vec::new();
        for (peer, bytes) in bootstrap.all_gather(&encoded)?.iter().enumerate() {
            let theirs: Introduction =
                serde_json::from_slice(bytes).map_err(|error| malformed(peer as Rank, &error))?;
            if theirs.settings != self.settings {
                return Err(Error::invalid(
                    format!(
                        "rank {peer} runs with settings {{{}}}, rank {} with {{{}}}",
                        theirs.settings,
                        bootstrap.rank(),
                        self.settings
                    ),
                    "give every rank the same RDMACCL_ variables and the same version of the library",
                ));
            }
            introductions.push(theirs);
        }
        Ok(introductions)
    }
}

fn parallelism() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
}

pub(super) fn malformed(peer: Rank, cause: &dyn std::fmt::Display) -> Error {
    ErrorKind::Malformed { what: format!("introduction of rank {peer}"), cause: cause.to_string() }.into()
}

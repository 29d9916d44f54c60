//! The transports of a communicator: which are opened, and what is said of those that were chosen.

use crate::device;
use ccl_core::Result;
use ccl_core::bootstrap::Bootstrap;
use ccl_core::communicator::{Communicator, Opener, Route};
use ccl_core::config::{Config, Network, Origin};
use ccl_core::error::RankList;
use ccl_core::transport::Transport;
use ccl_transport_ibverbs::choice::rails;
use ccl_transport_ibverbs::{IbConfig, IbTransport, survey};
use ccl_transport_shm::{ShmConfig, ShmTransport};
use ccl_transport_tcp::{TcpConfig, TcpTransport};

/// The variable that says how many pieces of a link may be on their way.
const CREDITS: &str = "RDMACCL_CREDITS";

/// What a configuration wants to be opened.
pub(crate) struct Transports<'c> {
    pub(crate) config: &'c Config,
    /// The device on which the rank's calls will be, if it has one.
    pub(crate) device: Option<u32>,
}

impl Opener for Transports<'_> {
    fn local(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>> {
        let shm = ShmConfig {
            slot_bytes: self.config.slot_bytes,
            credits: self.config.credits,
            host_id: self.config.host_id.clone(),
            ..ShmConfig::default()
        };
        Ok(vec![Box::new(ShmTransport::new(bootstrap.rank(), bootstrap.ranks(), &shm)?)])
    }

    fn network(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>> {
        let mut opened: Vec<Box<dyn Transport>> = Vec::new();
        if self.config.net.allows_ib() {
            opened.extend(open_ib(bootstrap, self.config)?.map(|ib| Box::new(ib) as Box<dyn Transport>));
        }
        if self.config.net.allows_tcp() {
            opened.push(Box::new(open_tcp(bootstrap, self.config)?));
        }
        Ok(opened)
    }

    fn devices(&self) -> bool {
        device::is_here()
    }

    fn place(&self) -> Vec<u8> {
        device::place(self.device, self.config)
    }
}

/// The ports of this host that RDMA would use with these settings, in words, a line each; the error says what is missing.
pub fn rdma_rails(config: &Config) -> Result<Vec<String>> {
    let survey = survey(config.ib.library.as_deref())?;
    let rails = rails::choose(&survey, &config.ib)?.value;
    let line = |rail: &rails::Rail| {
        let gid = rail.gids.first().map(|gid| format!(" with {gid} ({})", rail.gid_why)).unwrap_or_default();
        format!("{rail}{gid}: {} Gb/s, packets of {} bytes", rail.gbps, rail.active_mtu)
    };
    Ok(rails.iter().map(line).collect())
}

/// How many ranks of this rank's host come before it.
fn local_rank(bootstrap: &Bootstrap) -> u32 {
    let hosts: Vec<String> = bootstrap.peers().into_iter().map(|peer| peer.host).collect();
    let (before, from) = hosts.split_at(bootstrap.rank() as usize);
    before.iter().filter(|host| from.first() == Some(host)).count() as u32
}

/// RDMA, if this machine has it; where the user wants nothing else it must.
fn open_ib(bootstrap: &Bootstrap, config: &Config) -> Result<Option<IbTransport>> {
    // A number that nobody has chosen is no limit.
    let is_chosen = config.origin(CREDITS) != Origin::Default || config.credits != Config::default().credits;
    let ib = IbConfig {
        slot_bytes: config.slot_bytes,
        credits: is_chosen.then_some(config.credits),
        ib: config.ib.clone(),
        // A call must not be given up before the link that it waits for.
        recovery: config.timeout / 2,
        host_id: config.host_id.clone(),
        local_rank: config.local_rank.unwrap_or_else(|| local_rank(bootstrap)),
    };
    match IbTransport::new(bootstrap.rank(), bootstrap.ranks(), &ib) {
        Ok(transport) => Ok(Some(transport)),
        Err(error) if config.net == Network::Ib => Err(error),
        Err(error) => {
            tracing::info!(target: "net", %error, "this host has no RDMA");
            Ok(None)
        }
    }
}

fn open_tcp(bootstrap: &Bootstrap, config: &Config) -> Result<TcpTransport> {
    let own = bootstrap.peers().into_iter().nth(bootstrap.rank() as usize);
    let tcp = TcpConfig {
        slot_bytes: config.slot_bytes,
        credits: config.credits,
        sockets: config.tcp_sockets,
        addresses: bootstrap.addresses().iter().map(|address| address.ip()).collect(),
        host: own.map_or_else(String::new, |own| own.host),
    };
    TcpTransport::new(bootstrap.rank(), bootstrap.ranks(), &tcp)
}

/// Says which ranks TCP connects, once per host, where nobody has asked for TCP: it is many times slower than RDMA, and a user
/// who has that should not have to find it out from the times.
pub(crate) fn tell(core: &mut Communicator) {
    if core.config().net != Network::Auto {
        return;
    }
    let routes = core.routes();
    let by = |name| move |route: &&Route| route.transport == Some(name);
    let peers: Vec<_> = routes.iter().filter(by("tcp")).map(|route| route.peer).collect();
    let speaks = routes.iter().filter(by("shm")).all(|route| route.peer > core.rank());
    if speaks && !peers.is_empty() {
        tracing::warn!(
            rank = core.rank(),
            "tcp carries the pieces to and from ranks {}: no better transport reaches them; RDMACCL_NET=tcp says that \
             this is wanted",
            RankList(&peers)
        );
    }
}

//! The transports of a communicator: which are opened, and what is said of those that were chosen.

use ccl_core::Result;
use ccl_core::bootstrap::Bootstrap;
use ccl_core::communicator::{Communicator, Route};
use ccl_core::config::{Config, Network};
use ccl_core::error::RankList;
use ccl_core::transport::Transport;
use ccl_transport_ibverbs::{IbConfig, IbTransport};
use ccl_transport_shm::{ShmConfig, ShmTransport};
use ccl_transport_tcp::{TcpConfig, TcpTransport};

/// Opens the transports of a rank, best first.
pub(crate) fn open(bootstrap: &Bootstrap, config: &Config) -> Result<Vec<Box<dyn Transport>>> {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let shm = ShmConfig {
        slot_bytes: config.slot_bytes,
        credits: config.credits,
        host_id: config.host_id.clone(),
        ..ShmConfig::default()
    };
    let mut opened: Vec<Box<dyn Transport>> = vec![Box::new(ShmTransport::new(rank, ranks, &shm)?)];
    if config.net.allows_ib() {
        opened.extend(open_ib(bootstrap, config)?.map(|ib| Box::new(ib) as Box<dyn Transport>));
    }
    if config.net.allows_tcp() {
        opened.push(Box::new(open_tcp(bootstrap, config)?));
    }
    Ok(opened)
}

/// RDMA, if this machine has it; where the user wants nothing else it must.
fn open_ib(bootstrap: &Bootstrap, config: &Config) -> Result<Option<IbTransport>> {
    let ib = IbConfig {
        slot_bytes: config.slot_bytes,
        credits: config.credits,
        ib: config.ib.clone(),
        host_id: config.host_id.clone(),
        local_rank: config.local_rank.unwrap_or(bootstrap.rank()),
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

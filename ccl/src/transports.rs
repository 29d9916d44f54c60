//! The transports of a communicator: which are opened, and what is said of those that were chosen.

use crate::device;
use ccl_core::Result;
use ccl_core::bootstrap::Bootstrap;
use ccl_core::communicator::{Communicator, Opener, Route};
use ccl_core::config::{Config, Network};
use ccl_core::error::RankList;
use ccl_core::plan::Placement;
use ccl_core::transport::{Transport, slot_bytes_of};
use ccl_transport_ibverbs::choice::rails;
use ccl_transport_ibverbs::{IbConfig, IbTransport, survey};
use ccl_transport_shm::{SharedMemory, ShmConfig, ShmTransport};
use ccl_transport_tcp::{TcpConfig, TcpTransport};

/// What a configuration wants to be opened.
pub(crate) struct Transports<'c> {
    pub(crate) config: &'c Config,
    /// The device on which the rank's calls will be, if it has one.
    pub(crate) device: Option<u32>,
}

impl Opener for Transports<'_> {
    fn local(&self, bootstrap: &Bootstrap) -> Result<Vec<Box<dyn Transport>>> {
        let hosts: Vec<String> = bootstrap.peers().into_iter().map(|peer| peer.host).collect();
        let usual = || slot_bytes_of(Placement::of(&hosts));
        let shm = ShmConfig {
            slot_bytes: self.config.slot_bytes.unwrap_or_else(usual),
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
    let ib = IbConfig {
        slot_bytes: config.slot_bytes,
        credits: config.credits,
        ib: config.ib.clone(),
        // A call must not be given up before the link that it waits for.
        recovery: config.timeout / 2,
        host_id: config.host_id.clone(),
        local_rank: config.local_rank.unwrap_or_else(|| local_rank(bootstrap)),
    };
    match IbTransport::new(bootstrap.rank(), bootstrap.ranks(), &ib) {
        Ok(mut transport) => {
            transport.know(SharedMemory::known());
            Ok(Some(transport))
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffers, Communicator, ReduceOp, UniqueId};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Ranks on pretended hosts, over TCP.
    fn on_hosts<const N: usize>(hosts: [&str; N], body: impl Fn(&mut Communicator, &Config) + Sync) {
        with_slots(None, hosts, body);
    }

    /// The same, with slots of so many bytes.
    fn with_slots<const N: usize>(
        slot_bytes: Option<usize>,
        hosts: [&str; N],
        body: impl Fn(&mut Communicator, &Config) + Sync,
    ) {
        let id = UniqueId::create(&Config::default()).unwrap();
        std::thread::scope(|scope| {
            let body = &body;
            let spawn = |(rank, host): (u32, &str)| {
                let mut config = Config::default();
                config.slot_bytes = slot_bytes;
                (config.net, config.host_id) = (Network::Tcp, Some(host.to_string()));
                let builder = Communicator::builder().rank(rank).size(N as u32).unique_id(id);
                scope.spawn(move || body(&mut builder.config(config.clone()).build().unwrap(), &config))
            };
            let threads: Vec<_> = (0..).zip(hosts).map(spawn).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn pieces_get_as_long_as_all_transports_take_by_which_they_may_go() {
        let longest = |slot_bytes, hosts| {
            let told = [const { AtomicUsize::new(0) }; 3];
            with_slots(slot_bytes, hosts, |comm, config| {
                let peers: Vec<_> = (0..3).filter(|peer| *peer != comm.rank()).collect();
                let opener = Transports { config, device: None };
                let links = comm.core().open_side_links(&opener, &peers).unwrap();
                told[comm.rank() as usize].store(links.slot_bytes(), Ordering::Relaxed);
                let calls = [100_000, 400_000].map(|count| vec![comm.rank() + 1; count]);
                for mut call in calls {
                    comm.all_reduce_in_place(&mut call, ReduceOp::Sum).unwrap();
                    assert!(call.iter().all(|sum| *sum == 6));
                }
            });
            told.map(AtomicUsize::into_inner)
        };
        assert_eq!(longest(None, ["a", "b", "c"]), [512 << 10; 3]);
        assert_eq!(longest(None, ["a", "b", "b"]), [64 << 10; 3], "two share memory");
        assert_eq!(longest(Some(256 << 10), ["a", "b", "c"]), [256 << 10; 3]);
        assert_eq!(longest(Some(256 << 10), ["a", "b", "b"]), [256 << 10; 3]);
    }

    #[test]
    fn side_links_carry_pieces_beside_calls() {
        on_hosts(["a", "b", "a"], |comm, config| {
            let rank = comm.rank();
            assert_eq!(comm.core().hosts(), [0, 1, 0]);
            let peers: &[u32] = if rank == 1 { &[0, 2] } else { &[1] };
            let mut links = comm.core().open_side_links(&Transports { config, device: None }, peers).unwrap();
            assert_eq!((links.peers(), links.slot_bytes()), (peers, 64 << 10));
            // More than a link has credits for, to and from each peer at once.
            let (mut sent, mut come) = (vec![0u32; peers.len()], vec![0u32; peers.len()]);
            let own = Buffers::new(&[7; 200], &mut []);
            let begin = Instant::now();
            while come.iter().chain(&sent).any(|count| *count < 200) {
                assert!(begin.elapsed() < Duration::from_secs(60), "rank {rank}: {sent:?} {come:?}");
                for peer in 0..peers.len() {
                    let piece = own.input().slice(0, sent[peer] as usize);
                    if sent[peer] < 200 && links.send(peer, piece, u64::MAX - u64::from(sent[peer])).unwrap()
                    {
                        sent[peer] += 1;
                    }
                    while let Some(arrival) = links.peek(peer).unwrap() {
                        assert_eq!(arrival.tag, u64::MAX - u64::from(come[peer]));
                        assert_eq!(arrival.piece.len(), come[peer] as usize);
                        links.release(peer).unwrap();
                        come[peer] += 1;
                    }
                }
                links.flush().unwrap();
            }
            while !links.flush().unwrap() {}
            // Those of calls are others.
            comm.all_reduce_in_place(&mut [1u8; 10], ReduceOp::Sum).unwrap();
        });
    }
}

//! Hosts in one kernel: interfaces, devices, addresses and routes.
//!
//! Rail *r* of host *h* is one end of a veth pair, with a device of rdma_rxe on it, the address 10.77.r.h+1, and a
//! routing table of its own; the other end is in the rail's bridge. Namespaces would be simpler, but a device made in
//! one is not visible there. In one namespace the kernel hands packets between its own addresses over at once, so the
//! rule that looks for local addresses first is moved behind rules by which a packet from such an address can leave by
//! its interface only. What arrives at an interface is still looked up as local.

use crate::process::{batch, tool, wait_until};
use crate::sysfs;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Largest payload of a packet that fits is 4096.
pub(crate) const MTU: u32 = 4200;
/// Where our rules stand, and where "local addresses first" stands while there are hosts.
const OURS: u32 = 100;
const LOCAL: u32 = 200;
/// Number of the first routing table.
const TABLES: u32 = 7700;
const MODULES: [&str; 6] = ["rdma_rxe", "ib_uverbs", "rdma_ucm", "veth", "bridge", "sch_netem"];
/// What everything takes that the kernel does by itself a little later.
const SETTLED: Duration = Duration::from_secs(10);

/// Loads what is needed, and removes what a run that was killed has left.
pub(crate) fn prepare_kernel() -> Result<(), String> {
    for module in MODULES {
        tool(&format!("modprobe {module}")).map_err(|why| {
            format!("this kernel cannot run the tests ({module} is needed, and root): {why}")
        })?;
    }
    remove_all()
}

/// Some hosts, all with the same number of rails; gone when this is dropped.
pub(crate) struct Network {
    pub(crate) hosts: Vec<Host>,
    /// What the system's own was: the stricter of this and of an interface's own holds.
    reverse_path_filter: String,
}

/// A host: what its ranks see of the world.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) rails: Vec<Rail>,
}

/// One of a host's ways to the others.
#[derive(Clone, Debug)]
pub(crate) struct Rail {
    /// The RDMA device: `rxe_h0r1` of host 0, rail 1.
    pub(crate) device: String,
    /// Its network interface.
    pub(crate) interface: String,
    /// The other end of the cable, in the rail's switch.
    pub(crate) far: String,
    pub(crate) address: Ipv4Addr,
    table: u32,
}

impl Network {
    /// `hosts` hosts with `rails` rails each, whose interfaces have this MTU; all ports are active when it returns.
    pub(crate) fn new(hosts: usize, rails: usize, mtu: u32) -> Result<Network, String> {
        let host = |number| Host {
            name: format!("host{number}"),
            rails: (0..rails).map(|r| Rail::new(number, r)).collect(),
        };
        let reverse_path_filter = sysfs::read(&variable("all", "rp_filter"))?;
        // From here on what is half made is removed by the drop.
        let network = Network { hosts: (0..hosts).map(host).collect(), reverse_path_filter };
        let mut lines = Vec::new();
        for rail in 0..rails {
            lines.push(format!(
                "link add {} mtu {mtu} type bridge forward_delay 0 mcast_snooping 0",
                switch(rail)
            ));
            // The switch is no host: it must not answer for addresses that are this kernel's, and so everybody's.
            lines.push(format!("link set {} arp off up", switch(rail)));
        }
        lines.push(format!("rule add pref {LOCAL} lookup local"));
        lines.push("rule del pref 0".into());
        for (number, host) in network.hosts.iter().enumerate() {
            for (r, rail) in host.rails.iter().enumerate() {
                let Rail { interface, far, address, table, .. } = rail;
                let mac = format!("02:77:00:00:{r:02x}:{:02x}", number + 1);
                lines.push(format!(
                    "link add {interface} mtu {mtu} address {mac} type veth peer name {far} mtu {mtu}"
                ));
                lines.push(format!("link set {far} master {} up", switch(r)));
                lines.push(format!("addr add {address}/24 dev {interface} noprefixroute"));
                lines.push(format!(
                    "rule add pref {OURS} from {address} to 10.77.0.0/16 iif lo lookup {table}"
                ));
            }
        }
        batch("ip", &lines)?;
        set("all", "rp_filter", "0")?;
        for rail in network.rails() {
            // Packets from addresses that are this kernel's own are welcome, and nobody answers for another's address.
            for (name, value) in
                [("rp_filter", "0"), ("accept_local", "1"), ("arp_ignore", "1"), ("arp_announce", "2")]
            {
                set(&rail.interface, name, value)?;
            }
        }
        let up = network.rails().flat_map(Rail::up);
        batch("ip", &up.collect::<Vec<_>>())?;
        let links = network.rails().map(Rail::make_device);
        batch("rdma", &links.collect::<Vec<_>>())?;
        for rail in network.rails() {
            rail.wait_for_state("ACTIVE")?;
            rail.gid_index()?;
        }
        Ok(network)
    }

    /// All rails of all hosts.
    pub(crate) fn rails(&self) -> impl Iterator<Item = &Rail> {
        self.hosts.iter().flat_map(|host| &host.rails)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let removed = remove_all().and_then(|()| set("all", "rp_filter", &self.reverse_path_filter));
        if let Err(why) = removed {
            println!("the network could not be removed: {why}");
        }
    }
}

impl Host {
    /// By which a rank knows that it is on this host, and which devices it has.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let devices: Vec<_> = self.rails.iter().map(|rail| rail.device.as_str()).collect();
        vec![
            ("RDMACCL_HOSTID".into(), self.name.clone()),
            ("RDMACCL_IB_HCA".into(), format!("={}", devices.join(","))),
        ]
    }
}

impl Rail {
    fn new(host: usize, rail: usize) -> Rail {
        let name = format!("h{host}r{rail}");
        Rail {
            device: format!("rxe_{name}"),
            interface: format!("sr_{name}"),
            far: format!("sr_{name}_sw"),
            address: Ipv4Addr::new(10, 77, rail as u8, host as u8 + 1),
            table: TABLES + (host * 16 + rail) as u32,
        }
    }

    /// What `ip` must do that the interface is up and packets leave by it. The last route is for what must not fall
    /// through to the other tables, in which all these addresses are near.
    pub(crate) fn up(&self) -> Vec<String> {
        let Rail { interface, address, table, .. } = self;
        let [a, b, c, _] = address.octets();
        vec![
            format!("link set {interface} up"),
            format!("route replace local {address} dev {interface} table {table}"),
            format!("route replace {a}.{b}.{c}.0/24 dev {interface} src {address} scope link table {table}"),
            format!("route replace unreachable default metric 9999 table {table}"),
        ]
    }

    /// What `rdma` must do that there is the device.
    pub(crate) fn make_device(&self) -> String {
        format!("link add {} type rxe netdev {}", self.device, self.interface)
    }

    /// Where the port's table has the RoCEv2 GID of the rail's address, once it is there.
    pub(crate) fn gid_index(&self) -> Result<u32, String> {
        let mut index = None;
        wait_until(
            &format!("the GID of {} on {}", self.address, self.device),
            Instant::now() + SETTLED,
            || {
                index = sysfs::gid_index(&self.device, IpAddr::V4(self.address));
                Ok(index.is_some())
            },
        )?;
        index.ok_or_else(|| format!("{} has no GID", self.device))
    }

    /// Returns when the port is in this state, like "ACTIVE".
    pub(crate) fn wait_for_state(&self, state: &str) -> Result<(), String> {
        wait_until(&format!("{} to be {state}", self.device), Instant::now() + SETTLED, || {
            Ok(sysfs::port_state(&self.device)? == state)
        })
    }

    /// How often its device has sent something once more, because no answer came in time.
    pub(crate) fn retries(&self) -> Result<u64, String> {
        sysfs::hardware_counter(&self.device, "completer_retry_err")
    }

    /// Packets that its device has sent.
    pub(crate) fn messages(&self) -> Result<u64, String> {
        sysfs::hardware_counter(&self.device, "sent_pkts")
    }

    /// Packets that its interface has sent.
    pub(crate) fn packets(&self) -> Result<u64, String> {
        sysfs::packets_sent(&self.interface)
    }
}

fn switch(rail: usize) -> String {
    format!("sr_rail{rail}")
}

fn variable(interface: &str, name: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/{name}")
}

fn set(interface: &str, name: &str, value: &str) -> Result<(), String> {
    let file = variable(interface, name);
    fs::write(&file, value).map_err(|e| format!("{file}: {e}"))
}

/// Removes every host there is, and puts the rules back.
fn remove_all() -> Result<(), String> {
    let devices = sysfs::devices().into_iter().filter(|name| name.starts_with("rxe_h"));
    let devices: Vec<_> = devices.map(|name| format!("link del {name}")).collect();
    if !devices.is_empty() {
        batch("rdma", &devices)?;
    }
    let mut lines = Vec::new();
    // A veth's other end goes with it.
    for name in sysfs::interfaces().iter().filter(|name| name.starts_with("sr_") && !name.ends_with("_sw")) {
        lines.push(format!("link del {name}"));
    }
    let rules = tool("ip rule")?;
    let standing = |pref: u32| rules.lines().filter(|line| line.starts_with(&format!("{pref}:"))).count();
    if standing(0) == 0 {
        lines.push("rule add pref 0 lookup local".into());
    }
    for pref in [OURS, LOCAL] {
        lines.extend((0..standing(pref)).map(|_| format!("rule del pref {pref}")));
    }
    let tables = rules.lines().filter_map(|line| line.split("lookup ").nth(1)?.trim().parse::<u32>().ok());
    lines.extend(
        tables.filter(|t| (TABLES..TABLES + 256).contains(t)).map(|t| format!("route flush table {t}")),
    );
    if lines.is_empty() { Ok(()) } else { batch("ip", &lines) }
}

//! What can go wrong with a rail. Each has its opposite; what is not undone goes with the network.

use crate::network::Rail;
use crate::process::{batch, tool};
use std::net::IpAddr;

impl Rail {
    /// Pulls the cable out at the switch: the interface stays up, without a carrier.
    pub(crate) fn unplug(&self) -> Result<(), String> {
        tool(&format!("ip link set {} down", self.far)).map(|_| ())
    }

    /// Puts the cable in again.
    pub(crate) fn plug(&self) -> Result<(), String> {
        tool(&format!("ip link set {} up", self.far)).map(|_| ())
    }

    /// `ip link set down`, by which the kernel drops the interface's routes too.
    pub(crate) fn shut(&self) -> Result<(), String> {
        tool(&format!("ip link set {} down", self.interface)).map(|_| ())
    }

    /// `ip link set up`, with the routes, as a host's network service does.
    pub(crate) fn open(&self) -> Result<(), String> {
        batch("ip", &self.up())
    }

    /// What leaves the host on this rail suffers: `loss 1%`, `delay 2ms 1ms`, `reorder 10% delay 1ms`; in tc-netem's words.
    pub(crate) fn disturb(&self, how: &str) -> Result<(), String> {
        tool(&format!("tc qdisc replace dev {} root netem limit 100000 {how}", self.interface)).map(|_| ())
    }

    /// Ends [`Rail::disturb`].
    pub(crate) fn calm(&self) -> Result<(), String> {
        tool(&format!("tc qdisc del dev {} root", self.interface)).map(|_| ())
    }

    /// The MTU of this end only.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), String> {
        tool(&format!("ip link set {} mtu {mtu}", self.interface)).map(|_| ())
    }

    /// The MTU of the switch's end only: longer packets are dropped there, and no end knows.
    pub(crate) fn set_mtu_of_switch(&self, mtu: u32) -> Result<(), String> {
        tool(&format!("ip link set {} mtu {mtu}", self.far)).map(|_| ())
    }

    /// One more address, and with it one more GID: `10.78.0.1/24`, `fd77::1/64`.
    pub(crate) fn add_address(&self, address: IpAddr, prefix: u8) -> Result<(), String> {
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        tool(&format!("ip addr add {address}/{prefix} dev {} noprefixroute{nodad}", self.interface))
            .map(|_| ())
    }

    /// Takes all addresses away, and with them every GID that could be routed. The one of the link itself stays.
    pub(crate) fn drop_addresses(&self) -> Result<(), String> {
        tool(&format!("ip -4 addr flush dev {}", self.interface))?;
        tool(&format!("ip -6 addr flush dev {} scope global", self.interface)).map(|_| ())
    }

    /// Removes the device while its interface stays.
    pub(crate) fn remove_device(&self) -> Result<(), String> {
        tool(&format!("rdma link del {}", self.device)).map(|_| ())
    }

    /// Makes the device again.
    pub(crate) fn add_device(&self) -> Result<(), String> {
        batch("rdma", &[self.make_device()])
    }
}

/// Words before a program that may lock so many bytes only. Root is not limited, so it loses that right.
pub(crate) fn locked_memory(bytes: u64) -> String {
    format!("prlimit --memlock={bytes}:{bytes} setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock")
}

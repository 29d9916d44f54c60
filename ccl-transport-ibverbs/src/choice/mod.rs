//! The choices that operators get wrong, as pure functions: facts and settings come in, a decision and its reason
//! go out. Nothing here asks a device, a file or a clock, so every case is a test.
//!
//! | question | module | known from |
//! | --- | --- | --- |
//! | which ports carry links | [`rails`] | state, link layer, speed, network interface, `RDMACCL_IB_HCA` |
//! | which GID of a port | [`gid`] | type, family, scope, state of the interface, `RDMACCL_IB_GID_INDEX` |
//! | which port talks to which of the peer's | [`pairing`] | subnets, order, number of ports |
//! | packet size | [`mtu`] | both ports, the interfaces' MTU, `RDMACCL_IB_MTU` |
//! | traffic class and service level | [`quality`] | the host's default, `RDMACCL_IB_TC`, `RDMACCL_IB_SL` |
//! | how long a packet is tried | [`patience`] | number of rails, `RDMACCL_IB_TIMEOUT`, `RDMACCL_IB_RETRY_CNT` |
//! | queue pairs per connection, PCIe ordering | [`paths`] | link layer, bond, the variables of that name |
//! | where a process begins | [`nearness`] | NUMA node, number of the rank on its host |
//! | how much is on its way | [`window`] | bandwidth × delay |
//! | how far devices are apart | [`distance`] | their places on PCI Express, NUMA nodes |
//! | whether GPUDirect could be used | [`gpudirect`] | the GPU's driver, the NIC's answer, modules, distance |
//!
//! A [`Choice`] has its `why`, in plain words; what cannot be is an error that names the cure. [`table`] says it all in a line.

use std::fmt;

pub mod distance;
pub mod gid;
pub mod gpudirect;
pub mod mtu;
pub mod nearness;
pub mod pairing;
pub mod paths;
pub mod patience;
pub mod quality;
pub mod rails;
pub mod survey;
pub mod table;
pub mod window;

#[cfg(test)]
pub(crate) mod surveys;

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<T> {
    /// What was decided.
    pub value: T,
    /// Why, in plain words.
    pub why: String,
}

impl<T> Choice<T> {
    /// This, because of that.
    pub fn new(value: T, why: impl Into<String>) -> Choice<T> {
        Choice { value, why: why.into() }
    }
}

impl<T: fmt::Display> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.why)
    }
}

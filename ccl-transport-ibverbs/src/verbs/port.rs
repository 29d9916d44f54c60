//! Ports.

use super::sysfs::Folder;
use crate::sys::*;
use std::fmt;

/// A port as it was when it was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub state: PortState,
    /// What its line does.
    pub physical_state: PhysicalState,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// The longest packet that it could carry.
    pub max_mtu: Mtu,
    /// The longest packet that it carries as it is set up.
    pub active_mtu: Mtu,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Speed of the line in Gb/s; `None` where it is not known, as on a port that is down.
    pub gbps: Option<f64>,
    /// Local identifier (InfiniBand).
    pub lid: u16,
    /// How many low bits of the lid choose a path (InfiniBand).
    pub lid_mask_bits: u8,
    /// The subnet manager's lid (InfiniBand); 0: there is none.
    pub sm_lid: u16,
    /// Entries of its GID table, set or not.
    pub gids: u32,
    /// Entries of its partition table.
    pub pkeys: u16,
    /// Whether every packet needs a global route header (RoCE, or InfiniBand with routers).
    pub needs_global_route: bool,
}

impl Port {
    pub(super) fn of(number: u8, attributes: &ibv_port_attr, device: &Folder) -> Port {
        let link_layer = LinkLayer::of(attributes.link_layer);
        let gbps = line_gbps(attributes.active_width, attributes.active_speed);
        Port {
            number,
            state: PortState::of(attributes.state),
            physical_state: PhysicalState::of(attributes.phys_state),
            link_layer,
            max_mtu: Mtu::of(attributes.max_mtu),
            active_mtu: Mtu::of(attributes.active_mtu),
            max_message: attributes.max_msg_sz,
            // Speeds too new for the byte in the attributes are in the kernel's text.
            gbps: gbps.or_else(|| rate_gbps(&device.read(format!("ports/{number}/rate"))?)),
            lid: attributes.lid,
            lid_mask_bits: attributes.lmc,
            sm_lid: attributes.sm_lid,
            gids: u32::try_from(attributes.gid_tbl_len).unwrap_or(0),
            pkeys: attributes.pkey_tbl_len,
            needs_global_route: link_layer == LinkLayer::Ethernet
                || u32::from(attributes.flags) & IBV_QPF_GRH_REQUIRED != 0,
        }
    }

    /// Whether it carries traffic now.
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active
    }
}

/// Whether a port carries traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No state change; not seen in practice.
    Nop,
    /// Down.
    Down,
    /// The line is up, and waits for the subnet manager.
    Initializing,
    /// Set up, and waits for the subnet manager's last word.
    Armed,
    /// Carries traffic.
    Active,
    /// Carries traffic, while the line recovers from errors.
    ActiveDefer,
    /// A code that is newer than this library.
    Other(u32),
}

impl PortState {
    fn of(code: u32) -> PortState {
        match code {
            IBV_PORT_NOP => PortState::Nop,
            IBV_PORT_DOWN => PortState::Down,
            IBV_PORT_INIT => PortState::Initializing,
            IBV_PORT_ARMED => PortState::Armed,
            IBV_PORT_ACTIVE => PortState::Active,
            IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            other => PortState::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Nop => "nop",
            PortState::Down => "down",
            PortState::Initializing => "initializing",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::ActiveDefer => "active-defer",
            PortState::Other(code) => return write!(f, "state-{code}"),
        })
    }
}

/// What a port's line does; InfiniBand's numbers, which RoCE borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PhysicalState {
    /// Asleep.
    Sleep,
    /// Looks for somebody at the other end.
    Polling,
    /// Switched off.
    Disabled,
    /// The two ends tune in.
    Training,
    /// Up.
    LinkUp,
    /// Recovers from errors.
    ErrorRecovery,
    /// Under test.
    Test,
    /// Not told, or newer than this library.
    Other(u8),
}

impl PhysicalState {
    fn of(code: u8) -> PhysicalState {
        match code {
            1 => PhysicalState::Sleep,
            2 => PhysicalState::Polling,
            3 => PhysicalState::Disabled,
            4 => PhysicalState::Training,
            5 => PhysicalState::LinkUp,
            6 => PhysicalState::ErrorRecovery,
            7 => PhysicalState::Test,
            other => PhysicalState::Other(other),
        }
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PhysicalState::Sleep => "sleep",
            PhysicalState::Polling => "polling",
            PhysicalState::Disabled => "disabled",
            PhysicalState::Training => "training",
            PhysicalState::LinkUp => "link-up",
            PhysicalState::ErrorRecovery => "error-recovery",
            PhysicalState::Test => "test",
            PhysicalState::Other(code) => return write!(f, "state-{code}"),
        })
    }
}

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addresses are lids.
    InfiniBand,
    /// Ethernet: RoCE, addresses are GIDs.
    Ethernet,
}

impl LinkLayer {
    fn of(code: u8) -> LinkLayer {
        // Kernels that do not say know of InfiniBand only.
        if u32::from(code) == IBV_LINK_LAYER_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// The longest packet of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// From the smallest to the largest.
    pub const ALL: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

    /// In bytes.
    pub fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// The number that verbs give it.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The one of so many bytes.
    pub fn of_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// By the number that verbs give it. What is out of range is taken for the nearest.
    pub(super) fn of(code: u32) -> Mtu {
        Mtu::ALL[code.clamp(1, 5) as usize - 1]
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A line's lanes times their speed, without the line code's overhead as everybody states it.
fn line_gbps(width: u8, speed: u8) -> Option<f64> {
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    Some(lanes * lane)
}

/// `800 Gb/sec (4X XDR)`.
fn rate_gbps(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_a_line_is_lanes_times_speed() {
        assert_eq!(line_gbps(2, 128), Some(400.0));
        assert_eq!(line_gbps(1, 1), Some(2.5));
        assert_eq!(line_gbps(2, 0), None);
        assert_eq!(rate_gbps("800 Gb/sec (4X XDR)"), Some(800.0));
    }

    #[test]
    fn mtus_are_powers_of_two() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::of_bytes(1024), Some(Mtu::M1024));
        assert_eq!(Mtu::of_bytes(1500), None);
        assert_eq!(Mtu::of(7), Mtu::M4096);
    }
}

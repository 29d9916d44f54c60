//! Settings of the RDMA transport, and NCCL's names for them.

use super::Family;
use std::fmt;
use std::str::FromStr;

/// What a user may say about queue pairs and the devices below them. Whatever is `None` or automatic is chosen by the
/// transport, which says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ib {
    /// `RDMACCL_IBVERBS`: the file of libibverbs; `None`: the system's.
    pub library: Option<String>,
    /// `RDMACCL_IB_HCA`: devices and ports to use; `None`: every active one of the best kind.
    pub hca: Option<HcaFilter>,
    /// `RDMACCL_IB_GID_INDEX`: entry of the port's GID table; `None`: chosen by type, family and reach.
    pub gid_index: Option<u32>,
    /// `RDMACCL_IB_ADDR_FAMILY`: address family of the GID on RoCE.
    pub address_family: Family,
    /// `RDMACCL_IB_TC`: traffic class, the byte in the packet's header: DSCP × 4 + ECN.
    pub traffic_class: Option<u8>,
    /// `RDMACCL_IB_SL`: service level, 0 … 15.
    pub service_level: Option<u8>,
    /// `RDMACCL_IB_TIMEOUT`: a packet without an answer is sent again after 4.096 µs × 2^this.
    pub timeout: Option<u8>,
    /// `RDMACCL_IB_RETRY_CNT`: how often, 0 … 7.
    pub retry_count: Option<u8>,
    /// `RDMACCL_IB_PKEY`: entry of the port's table of partition keys.
    pub pkey_index: u16,
    /// `RDMACCL_IB_MTU`: longest packet payload in bytes; `None`: what both ports have.
    pub mtu: Option<u16>,
    /// `RDMACCL_IB_QPS_PER_CONNECTION`: queue pairs between two ports.
    pub qps_per_connection: Option<u32>,
    /// `RDMACCL_IB_RELAXED_ORDERING`: whether the device's writes to memory may pass one another on PCIe.
    pub relaxed_ordering: Switch,
}

impl Default for Ib {
    fn default() -> Ib {
        Ib {
            library: None,
            hca: None,
            gid_index: None,
            address_family: Family::Any,
            traffic_class: None,
            service_level: None,
            timeout: None,
            retry_count: None,
            pkey_index: 0,
            mtu: None,
            qps_per_connection: None,
            relaxed_ordering: Switch::Auto,
        }
    }
}

/// On, off, or as the library thinks right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// As the library thinks right.
    #[default]
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Switch::Auto => "auto",
            Switch::On => "on",
            Switch::Off => "off",
        })
    }
}

impl FromStr for Switch {
    type Err = ();

    /// Words, or NCCL's numbers.
    fn from_str(word: &str) -> Result<Switch, ()> {
        match word {
            "auto" | "2" => Ok(Switch::Auto),
            "on" | "1" => Ok(Switch::On),
            "off" | "0" => Ok(Switch::Off),
            _ => Err(()),
        }
    }
}

/// Devices and ports in NCCL's syntax: prefixes of names, each perhaps with `:port`; `=` before exact names, `^` before
/// those to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl HcaFilter {
    /// Whether this port of this device may be used.
    pub fn matches(&self, device: &str, port: u8) -> bool {
        let listed = self.entries.iter().any(|(name, number)| {
            let named = if self.exact { name == device } else { device.starts_with(name.as_str()) };
            named && number.is_none_or(|number| number == port)
        });
        listed != self.exclude
    }

    /// Whether the filter names what to use, not what to leave out.
    pub fn chooses(&self) -> bool {
        !self.exclude
    }
}

impl FromStr for HcaFilter {
    type Err = ();

    fn from_str(value: &str) -> Result<HcaFilter, ()> {
        let (exclude, rest) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entry = |item: &str| {
            let (name, port) = match item.trim().split_once(':') {
                Some((name, port)) => (name, Some(port.parse().ok().filter(|p| *p > 0)?)),
                None => (item.trim(), None),
            };
            let plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
            (!name.is_empty() && name.chars().all(plain)).then(|| (name.to_string(), port))
        };
        let entries = rest.split(',').map(entry).collect::<Option<_>>().ok_or(())?;
        Ok(HcaFilter { exclude, exact, entries })
    }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exclude = if self.exclude { "^" } else { "" };
        let exact = if self.exact { "=" } else { "" };
        let entry = |(name, port): &(String, Option<u8>)| match port {
            Some(port) => format!("{name}:{port}"),
            None => name.clone(),
        };
        write!(f, "{exclude}{exact}{}", self.entries.iter().map(entry).collect::<Vec<_>>().join(","))
    }
}

/// Our variables whose place one of NCCL's takes where they are not set.
pub(super) const FALLBACKS: [(&str, &str); 10] = [
    ("RDMACCL_IB_HCA", "NCCL_IB_HCA"),
    ("RDMACCL_IB_GID_INDEX", "NCCL_IB_GID_INDEX"),
    ("RDMACCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_FAMILY"),
    ("RDMACCL_IB_TC", "NCCL_IB_TC"),
    ("RDMACCL_IB_SL", "NCCL_IB_SL"),
    ("RDMACCL_IB_TIMEOUT", "NCCL_IB_TIMEOUT"),
    ("RDMACCL_IB_RETRY_CNT", "NCCL_IB_RETRY_CNT"),
    ("RDMACCL_IB_PKEY", "NCCL_IB_PKEY"),
    ("RDMACCL_IB_QPS_PER_CONNECTION", "NCCL_IB_QPS_PER_CONNECTION"),
    ("RDMACCL_IB_RELAXED_ORDERING", "NCCL_IB_PCI_RELAXED_ORDERING"),
];

/// A traffic class as the byte it is, or by its DSCP.
pub(super) fn traffic_class(value: &str) -> Option<u8> {
    match value.strip_prefix("dscp:") {
        Some(dscp) => dscp.parse().ok().filter(|dscp| *dscp < 64).map(|dscp: u8| dscp << 2),
        None => value.parse().ok(),
    }
}

/// A packet's payload that ports can be set to.
pub(super) fn mtu(value: &str) -> Option<u16> {
    value.parse().ok().filter(|mtu| [256, 512, 1024, 2048, 4096].contains(mtu))
}

/// A family in our words or in NCCL's.
pub(super) fn family(value: &str) -> Option<Family> {
    match value {
        "AF_INET" => Some(Family::V4),
        "AF_INET6" => Some(Family::V6),
        _ => value.parse().ok(),
    }
}

/// A number up to `most`; NCCL's -1 is none.
pub(super) fn number<N: FromStr + PartialOrd>(value: &str, most: N) -> Option<Option<N>> {
    if value == "-1" {
        return Some(None);
    }
    value.parse().ok().filter(|number| *number <= most).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_match_as_in_nccl() {
        let matches = |filter: &str, device: &str, port: u8| {
            let filter = filter.parse::<HcaFilter>().unwrap();
            filter.matches(device, port)
        };
        assert!(matches("mlx5", "mlx5_3", 1) && !matches("mlx5", "rxe0", 1));
        assert!(matches("=mlx5_1", "mlx5_1", 2) && !matches("=mlx5_1", "mlx5_11", 1));
        assert!(matches("mlx5_1:2,rxe", "mlx5_1", 2) && !matches("mlx5_1:2,rxe", "mlx5_1", 1));
        assert!(!matches("^=mlx5_0:1", "mlx5_0", 1) && matches("^=mlx5_0:1", "mlx5_0", 2));
        assert!(!matches("^mlx5_0", "mlx5_0", 1) && matches("^mlx5_0", "mlx5_1", 1));
        for text in ["mlx5", "=a,b:1", "^=x_0:2"] {
            assert_eq!(text.parse::<HcaFilter>().unwrap().to_string(), text);
        }
        for wrong in ["", "^", "=", "a,,b", "a:0", "a:x", "a:1:2", "a b"] {
            assert!(wrong.parse::<HcaFilter>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_traffic_class_is_a_byte_or_a_dscp() {
        assert_eq!([traffic_class("106"), traffic_class("dscp:26")], [Some(106), Some(104)]);
        assert_eq!([traffic_class("256"), traffic_class("dscp:64"), traffic_class("26dscp")], [None; 3]);
    }

    #[test]
    fn minus_one_is_none() {
        assert_eq!(
            [number("-1", 15u8), number("15", 15), number("16", 15)],
            [Some(None), Some(Some(15)), None]
        );
    }
}

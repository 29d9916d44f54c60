//! The kinds of values that variables have, and how each is read.

use super::Collective;
use crate::algorithms;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

macro_rules! words {
    ($(#[$doc:meta])* $kind:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $kind { $($(#[$case_doc])* $case),* }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($kind::$case => $word),* })
            }
        }

        impl FromStr for $kind {
            type Err = ();

            fn from_str(word: &str) -> Result<$kind, ()> {
                match word { $($word => Ok($kind::$case),)* _ => Err(()) }
            }
        }
    };
}

words! {
    /// Address families of the bootstrap.
    Family {
        /// Both.
        #[default]
        Any = "any",
        /// IPv4 only.
        V4 = "4",
        /// IPv6 only.
        V6 = "6",
    }
}

words! {
    /// Whether network devices reach the memory of GPUs.
    GpuDirect {
        /// Where the two sit near each other.
        #[default]
        Auto = "auto",
        /// Wherever it is possible.
        On = "on",
        /// Nowhere.
        Off = "off",
    }
}

words! {
    /// What carries pieces between hosts.
    Network {
        /// The best one that there is; says so where it is not RDMA.
        #[default]
        Auto = "auto",
        /// RDMA only.
        Ib = "ib",
        /// Sockets only.
        Tcp = "tcp",
    }
}

impl Network {
    /// Whether RDMA may be used.
    pub fn allows_ib(self) -> bool {
        self != Network::Tcp
    }

    /// Whether sockets may be used.
    pub fn allows_tcp(self) -> bool {
        self != Network::Ib
    }
}

impl Family {
    /// Whether IPv4 may be used.
    pub fn allows_v4(self) -> bool {
        self != Family::V6
    }

    /// Whether IPv6 may be used.
    pub fn allows_v6(self) -> bool {
        self != Family::V4
    }
}

words! {
    /// Which reduction kernels are used.
    SimdChoice {
        /// The best that the processor has.
        #[default]
        Auto = "auto",
        /// AVX-512.
        Avx512 = "avx512",
        /// AVX2.
        Avx2 = "avx2",
        /// NEON.
        Neon = "neon",
        /// No vector instructions.
        Scalar = "scalar",
    }
}

words! {
    /// Whether kernels make calls on device memory.
    DeviceEngine {
        /// Where all ranks reach each other's device memory.
        #[default]
        Auto = "auto",
        /// Nowhere.
        Off = "off",
    }
}

words! {
    /// Whether kernels store to all ranks at once.
    Multicast {
        /// Nowhere.
        #[default]
        Off = "off",
        /// Where the devices and the switch between them can.
        On = "on",
    }
}

words! {
    /// Which plans are proved before their first run.
    VerifyPolicy {
        /// Every loaded plan, and built-in ones up to 64 ranks; larger ones are proved in the library's tests.
        #[default]
        Auto = "auto",
        /// All.
        Always = "always",
        /// Loaded ones only.
        Never = "never",
    }
}

/// Threads that a rank runs long calls with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// As many as each rank of a host has cores, up to 4.
    #[default]
    Auto,
    /// So many.
    Exactly(u32),
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threads::Auto => f.write_str("auto"),
            Threads::Exactly(threads) => threads.fmt(f),
        }
    }
}

impl FromStr for Threads {
    type Err = ();

    fn from_str(value: &str) -> Result<Threads, ()> {
        match value {
            "auto" => Ok(Threads::Auto),
            number => number.parse().ok().filter(|n| (1..=64).contains(n)).map(Threads::Exactly).ok_or(()),
        }
    }
}

/// Interfaces by name, in NCCL's syntax: prefixes, `=` before exact names, `^` before names to leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFilter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl InterfaceFilter {
    /// Whether an interface of this name may be used.
    pub fn matches(&self, name: &str) -> bool {
        let listed =
            self.names.iter().any(|n| if self.exact { n == name } else { name.starts_with(n.as_str()) });
        listed != self.exclude
    }
}

impl FromStr for InterfaceFilter {
    type Err = ();

    fn from_str(value: &str) -> Result<InterfaceFilter, ()> {
        let (exclude, rest) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<String> = rest.split(',').map(|name| name.trim().to_string()).collect();
        if names.iter().any(String::is_empty) {
            Err(())
        } else {
            Ok(InterfaceFilter { exclude, exact, names })
        }
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exclude = if self.exclude { "^" } else { "" };
        let exact = if self.exact { "=" } else { "" };
        write!(f, "{exclude}{exact}{}", self.names.join(","))
    }
}

/// An algorithm asked for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// For this collective; `None`: for every one that it does.
    pub collective: Option<Collective>,
    /// The algorithm's name.
    pub algorithm: &'static str,
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.collective {
            Some(collective) => write!(f, "{}:{}", collective.name(), self.algorithm),
            None => f.write_str(self.algorithm),
        }
    }
}

pub(super) fn choices(value: &str) -> Option<Vec<AlgorithmChoice>> {
    let choice = |item: &str| {
        let (collective, algorithm) = match item.split_once(':') {
            Some((name, algorithm)) => {
                (Some(Collective::ALL.into_iter().find(|c| c.name() == name)?), algorithm)
            }
            None => (None, item),
        };
        Some(AlgorithmChoice { collective, algorithm: algorithms::by_name(algorithm)?.name() })
    };
    value.split(',').map(|item| choice(item.trim())).collect()
}

pub(super) fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_string())
}

/// Seconds, up to a year: longer ones overflow clocks.
pub(super) fn duration(value: &str) -> Option<Duration> {
    let seconds = value.parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 3.2e7)?;
    Some(Duration::from_secs_f64(seconds)).filter(|duration| !duration.is_zero())
}

/// Bytes, with K, M or G for powers of 1024.
pub(super) fn size(value: &str) -> Option<usize> {
    let (digits, shift) = match value.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&value[..value.len() - 1], 10),
        b'M' => (&value[..value.len() - 1], 20),
        b'G' => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

/// A value, or `auto` for none.
pub(super) fn auto<T>(value: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if value.eq_ignore_ascii_case("auto") { Some(None) } else { read(value).map(Some) }
}

/// A size that a slot may have: whole pages.
pub(super) fn slot(value: &str) -> Option<usize> {
    size(value).filter(|bytes| bytes.is_multiple_of(4096) && *bytes <= 64 << 20)
}

/// Where something listens: `host:4711` or `[::1]:4711`.
pub(crate) fn host_and_port(value: &str) -> Option<(&str, u16)> {
    let (host, port) = value.trim().rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let named = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
    named.then_some((host, port))
}

pub(super) fn port_range(value: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = value.split_once('-')?;
    let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
    (0 < low && low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_match_as_in_nccl() {
        let matches = |filter: &str, name: &str| filter.parse::<InterfaceFilter>().unwrap().matches(name);
        assert!(matches("eth,ib", "ib0") && !matches("eth,ib", "lo"));
        assert!(matches("=eth0", "eth0") && !matches("=eth0", "eth01"));
        assert!(!matches("^docker,lo", "docker0") && matches("^docker,lo", "eth0"));
        assert!(matches("^=eth0", "eth01") && !matches("^=eth0", "eth0"));
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(
            [size("64K"), size("1m"), size("2G"), size("7")],
            [Some(65536), Some(1 << 20), Some(2 << 30), Some(7)]
        );
        assert_eq!([size(""), size("K"), size("1T"), size("-1")], [None; 4]);
    }

    #[test]
    fn algorithms_are_for_all_or_for_one() {
        let both = choices("all_reduce:ring, tree").unwrap();
        assert_eq!(both[0], AlgorithmChoice { collective: Some(Collective::AllReduce), algorithm: "ring" });
        assert_eq!(both[1], AlgorithmChoice { collective: None, algorithm: "tree" });
        assert_eq!([choices("nothing:ring"), choices("rings")], [None, None]);
    }
}

//! Every setting of the library in one struct, read from the environment once, at the edge.
//!
//! [`Config::from_env`] is the only place that reads `RDMACCL_*` variables. [`VARIABLES`] declares each
//! one: its name, default, meaning and reading; the documentation's table and the `info` command come from it.

use crate::algorithms;
use crate::error::{self, Error, Result};
use crate::flight::RING_LENGTHS;
use crate::plan::{Collective, Placement};
use crate::transport::MOST_STREAMS;
use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

mod examine;
mod fallback;
mod ib;
mod machine;
mod profile;
mod values;
pub use examine::{Examined, Setting};
use fallback::Fallbacks;
pub use ib::{HcaFilter, Ib, Switch};
pub use machine::Machine;
pub use profile::{Profile, Tuned};
pub(crate) use values::host_and_port;
pub use values::{
    AlgorithmChoice, DeviceEngine, Family, GpuDirect, InterfaceFilter, Multicast, Network, SimdChoice,
    Threads, VerifyPolicy,
};
use values::{auto, choices, duration, port_range, size, slot, text};

/// The settings. `Config::default()` is what an empty environment gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `RDMACCL_DEBUG`: what is logged, a level or a `tracing` filter.
    pub debug: String,
    /// `RDMACCL_TIMEOUT`: how long a call may wait for its peers.
    pub timeout: Duration,
    /// `RDMACCL_INIT_TIMEOUT`: how long initialisation may wait for all ranks.
    pub init_timeout: Duration,
    /// `RDMACCL_FREEZE_TIMEOUT`: silence after which a rank counts as lost; `None`: never.
    pub freeze_timeout: Option<Duration>,
    /// `RDMACCL_NET`: what carries pieces between hosts.
    pub net: Network,
    /// `RDMACCL_TCP_SOCKETS`: sockets between two ranks of different hosts.
    pub tcp_sockets: u16,
    /// `RDMACCL_SOCKET_IFNAME`: interfaces of the bootstrap and of TCP; `None`: every real one, then loopback.
    pub socket_ifname: Option<InterfaceFilter>,
    /// `RDMACCL_SOCKET_FAMILY`: address families of the bootstrap and of TCP.
    pub socket_family: Family,
    /// `RDMACCL_PORT_RANGE`: ports to listen on; `None`: the system's choice.
    pub port_range: Option<RangeInclusive<u16>>,
    /// `RDMACCL_ALGO`: algorithms to use whatever the cost function says.
    pub algorithms: Vec<AlgorithmChoice>,
    /// `RDMACCL_TILE_BYTES`: longest piece in bytes; `None`: chosen by cost.
    pub tile_bytes: Option<usize>,
    /// `RDMACCL_SLOT_BYTES`: bytes of a link's slot; `None`: by the transport.
    pub slot_bytes: Option<usize>,
    /// `RDMACCL_CREDITS`: pieces of a link on their way at a time; `None`: by the transport.
    pub credits: Option<u32>,
    /// `RDMACCL_THREADS`: threads of a rank that share long calls.
    pub threads: Threads,
    /// `RDMACCL_SIMD`: which reduction kernels.
    pub simd: SimdChoice,
    /// `RDMACCL_HOSTID`: replaces the host's name in "same host or not".
    pub host_id: Option<String>,
    /// `RDMACCL_VERIFY`: which plans are proved before their first run.
    pub verify: VerifyPolicy,
    /// `RDMACCL_ID`: the job's unique id in hexadecimal.
    pub id: Option<String>,
    /// `RDMACCL_RANK`: this process's rank.
    pub rank: Option<u32>,
    /// `RDMACCL_SIZE`: how many ranks.
    pub size: Option<u32>,
    /// `RDMACCL_LOCAL_RANK`: which of its host's ranks this process is.
    pub local_rank: Option<u32>,
    /// `RDMACCL_ROOT`: `host:port` where rank 0 listens, instead of an id.
    pub root: Option<String>,
    /// `RDMACCL_SECRET`: what the ranks of this run share and nobody else knows, where they meet without an id.
    pub secret: Option<String>,
    /// `RDMACCL_HEAP_MIN`: from how many bytes on allocations are the preloaded heap's.
    pub heap_min: usize,
    /// `RDMACCL_FLIGHT_CALLS`: calls of a communicator that the flight record keeps.
    pub flight_calls: usize,
    /// `RDMACCL_FLIGHT_DIR`: where a communicator that breaks leaves its flight record; `None`: nowhere.
    pub flight_dir: Option<String>,
    /// `RDMACCL_PROFILE`: file with the constants of the cost function, or `none` for the built-in ones; `None`: the file at
    /// its [usual place](Config::profile_path), if there is one.
    pub profile: Option<String>,
    /// `RDMACCL_CUDA`: the file of the CUDA driver's library; `None`: the system's.
    pub cuda_library: Option<String>,
    /// `RDMACCL_STAGING_BYTES`: most pinned host memory that a communicator takes for calls on device buffers.
    pub staging_bytes: usize,
    /// `RDMACCL_DEVICE_ENGINE`: whether kernels make the calls on device memory where they can.
    pub device_engine: DeviceEngine,
    /// `RDMACCL_DEVICE_BLOCKS`: most thread blocks of such a call on a rank; `None`: what fits on the devices.
    pub device_blocks: Option<u32>,
    /// `RDMACCL_DEVICE_THREADS`: threads of a block.
    pub device_threads: u32,
    /// `RDMACCL_DEVICE_CODE`: folder with machine code of the kernels; `None`: `rdmaccl-kernels` beside the library.
    pub device_code: Option<String>,
    /// `RDMACCL_NVLS`: whether kernels store to all ranks of a host at once.
    pub multicast: Multicast,
    /// `RDMACCL_GPUDIRECT`: whether pieces of kernels lie in a device's memory where RDMA devices take them.
    pub gpudirect: GpuDirect,
    /// Queue pairs and the devices below them.
    pub ib: Ib,
    /// The user's folders, from `XDG_CONFIG_HOME` and `HOME`.
    places: profile::Places,
    /// Names of the variables that the environment set.
    from_environment: Vec<&'static str>,
    /// Names of variables that NCCL's have set, with those.
    fallbacks: Vec<(&'static str, &'static str)>,
}

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// An environment variable.
    Environment,
    /// The environment variable of this name, which is NCCL's.
    Nccl(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Environment => f.write_str("environment"),
            Origin::Nccl(name) => f.write_str(name),
        }
    }
}

/// The declaration of one variable.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its default, as people write it.
    pub default: &'static str,
    /// What it means, in one sentence.
    pub doc: &'static str,
    /// What a right value looks like, for errors.
    pub expects: &'static str,
    set: fn(&mut Config, &str) -> Option<()>,
    show: fn(&Config) -> String,
}

impl Variable {
    /// Whether its value must not be shown.
    fn is_secret(&self) -> bool {
        ["RDMACCL_ID", "RDMACCL_SECRET"].contains(&self.name)
    }

    /// A value of it, for an error.
    fn told(&self, value: &str) -> String {
        if self.is_secret() { "…".into() } else { error::excerpt(value) }
    }

    fn refused(&self, what: &str) -> Error {
        let space = if what.starts_with('=') { "" } else { " " };
        Error::invalid(format!("{}{space}{what}", self.name), format!("set it to {}", self.expects))
    }
}

/// What an entry of the environment is to us.
enum Found {
    /// Another program's, or empty.
    Nothing,
    /// One of ours.
    Variable(&'static Variable),
    /// Perhaps this one was meant.
    Unknown(&'static str),
}

impl Found {
    fn of(name: &str, value: &str) -> Found {
        // Also `rdmaccl_timeout` and `RDMACCL-TIMEOUT`.
        let ours = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("RDMACCL"));
        if !ours || value.trim().is_empty() {
            return Found::Nothing;
        }
        match VARIABLES.iter().find(|v| v.name == name) {
            Some(variable) => Found::Variable(variable),
            // What is longer than any name says no more than its beginning.
            None => Found::Unknown(nearest(&name[..name.floor_char_boundary(64)].to_ascii_uppercase())),
        }
    }
}

macro_rules! variables {
    ($($name:literal = $default:literal, $doc:literal, $expects:literal, $($field:ident).+: $read:expr, $show:expr;)*) => {
        /// Every variable, in the order of the documentation.
        pub static VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            default: $default,
            doc: $doc,
            expects: $expects,
            set: |config, value| {
                let read: fn(&str) -> Option<_> = $read;
                config.$($field).+ = read(value)?;
                Some(())
            },
            show: |config| {
                let show: fn(&_) -> String = $show;
                show(&config.$($field).+)
            },
        }),*];
    };
}

variables! {
    "RDMACCL_DEBUG" = "warn", "What is logged to standard error; the C library logs only where it is set.", "off, warn, info, debug, trace or a tracing filter",
        debug: text, String::clone;
    "RDMACCL_TIMEOUT" = "300", "Seconds that a call may wait for its peers.", "seconds above 0, like 30 or 0.5",
        timeout: duration, |d: &Duration| d.as_secs_f64().to_string();
    "RDMACCL_INIT_TIMEOUT" = "60", "Seconds that initialisation may wait for all ranks.",
        "seconds above 0, like 30 or 0.5", init_timeout: duration, |d: &Duration| d.as_secs_f64().to_string();
    "RDMACCL_FREEZE_TIMEOUT" = "60", "Seconds without a sign of life after which a rank counts as lost.",
        "seconds above 0, like 30 or 0.5, or never", freeze_timeout: |v| if v == "never" { Some(None) } else { duration(v).map(Some) },
        |d: &Option<Duration>| d.map_or("never".to_string(), |d| d.as_secs_f64().to_string());
    "RDMACCL_NET" = "auto", "What carries pieces between hosts; auto: the best there is, with a warning where that is TCP.", "auto, ib or tcp",
        net: |v| v.parse().ok(), Network::to_string;
    "RDMACCL_TCP_SOCKETS" = "2", "Sockets between two ranks that TCP connects; links are spread over them.", "a number from 1 to 64",
        tcp_sockets: |v| v.parse().ok().filter(|n| (1..=MOST_STREAMS).contains(n)), u16::to_string;
    "RDMACCL_SOCKET_IFNAME" = "", "Interfaces of the bootstrap and of TCP: prefixes; `=` exact names; `^` all but these. TCP spreads its sockets over several.",
        "names like eth,ib or =eth0,eth1 or ^docker,lo", socket_ifname: |v| v.parse().ok().map(Some), shown;
    "RDMACCL_SOCKET_FAMILY" = "any", "Address family of the bootstrap and of TCP.", "4, 6 or any",
        socket_family: |v| v.parse().ok(), Family::to_string;
    "RDMACCL_PORT_RANGE" = "", "Ports that ranks listen on.", "two ports like 40000-40999", port_range: |v| port_range(v).map(Some),
        |r: &Option<RangeInclusive<u16>>| r.as_ref().map_or_else(String::new, |r| format!("{}-{}", r.start(), r.end()));
    "RDMACCL_ALGO" = "", "Algorithm, for all collectives or for some.", "an algorithm like ring, or all_reduce:ring,broadcast:tree",
        algorithms: choices, |c: &Vec<AlgorithmChoice>| c.iter().map(AlgorithmChoice::to_string).collect::<Vec<_>>().join(",");
    "RDMACCL_TILE_BYTES" = "", "Longest piece of a chunk, in bytes.", "a size above 0 like 65536 or 64K",
        tile_bytes: |v| size(v).map(Some), shown;
    "RDMACCL_SLOT_BYTES" = "auto", "Bytes of a link's slot, the longest piece; auto: 64K; 128K between up to 4 ranks of one host; where each rank has its host for itself, 512K with TCP and 256K with RDMA by software.",
        "auto or a multiple of 4K up to 64M, like 65536 or 64K", slot_bytes: |v| auto(v, slot), or_auto;
    "RDMACCL_CREDITS" = "auto", "Pieces of a link on their way at a time, at most 8 of them in slots (32 where ranks share cores); auto: 256 in shared memory between up to 4 ranks, else 32, and up to 256 where a receiver lags behind; TCP with longer slots 16; RDMA by the speed of the ports.",
        "auto or a number from 1 to 1024", credits: |v| auto(v, |v| v.parse().ok().filter(|c| (1..=1024).contains(c))), or_auto;
    "RDMACCL_THREADS" = "auto", "Threads of a rank that share a long call; auto: as many as each rank of a host has cores, up to 4.",
        "auto or a number from 1 to 64", threads: |v| v.parse().ok(), Threads::to_string;
    "RDMACCL_SIMD" = "auto", "Reduction kernels.", "auto, avx512, avx2, neon or scalar",
        simd: |v| v.parse().ok(), SimdChoice::to_string;
    "RDMACCL_HOSTID" = "", "Name of this host; ranks with the same one share memory.", "any text", host_id: |v| text(v).map(Some), shown;
    "RDMACCL_VERIFY" = "auto", "Plans proved before their first run; auto: loaded ones, and built-in ones up to 64 ranks.",
        "auto, always or never", verify: |v| v.parse().ok(), VerifyPolicy::to_string;
    "RDMACCL_HEAP_MIN" = "32K", "From how many bytes on a program's allocations are those of the preloaded heap, `librdmaccl_heap.so`.", "a size from 4096, like 65536 or 64K",
        heap_min: |v| size(v).filter(|n| *n >= 4096), usize::to_string;
    "RDMACCL_FLIGHT_CALLS" = "256", "Calls of a communicator that its flight record keeps.", "a power of two from 4 to 4096",
        flight_calls: |v| v.parse().ok().filter(|n: &usize| n.is_power_of_two() && RING_LENGTHS.contains(n)), usize::to_string;
    "RDMACCL_FLIGHT_DIR" = "", "Folder where a communicator that breaks leaves its flight record.", "a path",
        flight_dir: |v| text(v).map(Some), shown;
    "RDMACCL_PROFILE" = "", "File with this machine's constants of the cost function, as `rdmaccl tune` writes it; without it the one in the user's configuration folder, if there is one.",
        "a path, or none for the built-in constants", profile: |v| text(v).map(Some), shown;
    "RDMACCL_ID" = "", "The job's unique id.", "256 hexadecimal digits", id: |v| text(v).filter(|v| v.len() == 256 && v.chars().all(|c| c.is_ascii_hexdigit())).map(Some),
        |id: &Option<String>| id.as_ref().map_or_else(String::new, |_| "set (secret)".to_string());
    "RDMACCL_RANK" = "", "This process's rank.", "a number from 0 to size - 1", rank: |v| v.parse().ok().map(Some), shown;
    "RDMACCL_SIZE" = "", "Number of ranks.", "a number from 1", size: |v| v.parse().ok().filter(|n| *n > 0).map(Some), shown;
    "RDMACCL_LOCAL_RANK" = "", "Which of its host's ranks this process is.", "a number from 0",
        local_rank: |v| v.parse().ok().map(Some), shown;
    "RDMACCL_ROOT" = "", "Where rank 0 listens, for launchers that give no address.", "host:port",
        root: |v| host_and_port(v).and(text(v)).map(Some), shown;
    "RDMACCL_SECRET" = "", "Secret of this run, the same on all ranks, where they meet without RDMACCL_ID.",
        "at least 16 random characters", secret: |v| text(v).filter(|v| v.len() >= 16).map(Some),
        |secret: &Option<String>| secret.as_ref().map_or_else(String::new, |_| "set (secret)".to_string());
    "RDMACCL_IBVERBS" = "", "File of libibverbs, in place of the system's.", "a path", ib.library: |v| text(v).map(Some), shown;
    "RDMACCL_CUDA" = "", "File of the CUDA driver's library, in place of the system's libcuda.so.1.", "a path", cuda_library: |v| text(v).map(Some), shown;
    "RDMACCL_STAGING_BYTES" = "1G", "Most pinned host memory that a communicator takes for calls on device buffers.", "a size above 0 like 268435456 or 256M",
        staging_bytes: size, usize::to_string;
    "RDMACCL_DEVICE_ENGINE" = "auto", "Whether kernels make calls on device memory where ranks reach each other's; otherwise it goes through pinned memory.", "auto or off",
        device_engine: |v| v.parse().ok(), DeviceEngine::to_string;
    "RDMACCL_DEVICE_BLOCKS" = "", "Most thread blocks of a kernel on a rank; without it as many as are sure to fit, up to 32, or two for each other rank.", "a number from 1 to 128",
        device_blocks: |v| v.parse().ok().filter(|n| (1..=128).contains(n)).map(Some), shown;
    "RDMACCL_DEVICE_THREADS" = "512", "Threads of a kernel's block.", "a number from 1 to 512",
        device_threads: |v| v.parse().ok().filter(|n| (1..=512).contains(n)), u32::to_string;
    "RDMACCL_DEVICE_CODE" = "", "Folder with machine code of the kernels, in place of rdmaccl-kernels beside the library. What is not there the driver compiles.", "a path",
        device_code: |v| text(v).map(Some), shown;
    "RDMACCL_NVLS" = "off", "Whether one-shot all-reduces of kernels store to all ranks of a host at once, by the multicast of the switch between their devices, where it is there. It has never run on a device.",
        "on or off", multicast: |v| v.parse().ok(), Multicast::to_string;
    "RDMACCL_GPUDIRECT" = "auto", "Whether RDMA devices reach the GPU's memory for what its kernels send to other hosts and get from there: where the two sit near each other, wherever it is possible, or never.",
        "auto, on or off", gpudirect: |v| v.parse().ok(), GpuDirect::to_string;
    "RDMACCL_IB_HCA" = "", "RDMA devices and ports: prefixes, each perhaps with `:port`; `=` exact names; `^` all but these.",
        "names like mlx5_0:1,mlx5_1 or =mlx5_0 or ^mlx5_3", ib.hca: |v| v.parse().ok().map(Some), shown;
    "RDMACCL_IB_GID_INDEX" = "", "Entry of the port's GID table; without it chosen by type, family and what the peer has.",
        "a number from 0 to 1023", ib.gid_index: |v| ib::number(v, 1023), shown;
    "RDMACCL_IB_ADDR_FAMILY" = "any", "Address family of the GID on RoCE.", "4, 6 or any", ib.address_family: ib::family, Family::to_string;
    "RDMACCL_IB_TC" = "", "Traffic class: the byte (DSCP × 4 + ECN), or dscp: and the DSCP.", "a number from 0 to 255, or dscp:26",
        ib.traffic_class: |v| if v == "-1" { Some(None) } else { ib::traffic_class(v).map(Some) }, shown;
    "RDMACCL_IB_SL" = "", "Service level.", "a number from 0 to 15", ib.service_level: |v| ib::number(v, 15), shown;
    "RDMACCL_IB_TIMEOUT" = "", "A packet without an answer is sent again after 4.096 µs × 2^this.", "a number from 1 to 31",
        ib.timeout: |v| v.parse().ok().filter(|t| (1..=31).contains(t)).map(Some), shown;
    "RDMACCL_IB_RETRY_CNT" = "", "How often it is sent again before the connection fails.", "a number from 0 to 7",
        ib.retry_count: |v| ib::number(v, 7), shown;
    "RDMACCL_IB_PKEY" = "0", "Entry of the port's table of partition keys.", "a number from 0 to 65535",
        ib.pkey_index: |v| v.parse().ok(), u16::to_string;
    "RDMACCL_IB_MTU" = "", "Longest packet payload in bytes; without it what both ports have.", "256, 512, 1024, 2048 or 4096",
        ib.mtu: |v| ib::mtu(v).map(Some), shown;
    "RDMACCL_IB_QPS_PER_CONNECTION" = "", "Queue pairs between two ports.", "a number from 1 to 128",
        ib.qps_per_connection: |v| v.parse().ok().filter(|n| (1..=128).contains(n)).map(Some), shown;
    "RDMACCL_IB_RELAXED_ORDERING" = "auto", "Whether the device's writes to memory may pass one another on PCIe.", "auto, on or off",
        ib.relaxed_ordering: |v| v.parse().ok(), Switch::to_string;
}

fn shown<T: fmt::Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(String::new, T::to_string)
}

fn or_auto<T: fmt::Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "auto".to_string(), T::to_string)
}

impl Config {
    /// How long an agreement may wait for those who are left: as long as initialisation, but never less than it takes
    /// to find out that a host is gone, first by the silence of those who are connected and then by that of those behind them.
    pub fn agreement_timeout(&self) -> Duration {
        const WAYS: Duration = Duration::from_secs(1);
        let silence = self.freeze_timeout.map_or(Duration::ZERO, |freeze| freeze.saturating_mul(2));
        self.init_timeout.max(silence.saturating_add(WAYS))
    }

    /// The settings that the process's environment gives.
    pub fn from_env() -> Result<Config> {
        Config::from_os_vars(std::env::vars_os())
    }

    /// [`from_vars`](Config::from_vars) for an environment as the system has it, where text may be none.
    pub fn from_os_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Config> {
        let text = |(name, value): (OsString, OsString)| {
            let name = name.to_string_lossy().into_owned();
            match (value.into_string(), VARIABLES.iter().find(|v| v.name == name)) {
                (Ok(value), _) => Ok((name, value)),
                // What replaces the wrong bytes is the same for all of them: two secrets would be one.
                (Err(_), Some(variable)) => Err(variable.refused("is not UTF-8 text")),
                (Err(value), None) => Ok((name, value.to_string_lossy().into_owned())),
            }
        };
        Config::from_vars(vars.into_iter().map(text).collect::<Result<Vec<_>>>()?)
    }

    /// The settings that these variables give. Those of other programs are passed over; one that looks like ours but is
    /// none is warned about; an empty value is as good as none, and the same value twice as good as once.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Config> {
        let mut config = Config::default();
        let mut fallbacks = Fallbacks::default();
        for (name, value) in vars {
            config.places.note(&name, &value);
            fallbacks.note(&name, &value);
            match Found::of(&name, &value) {
                Found::Nothing => {}
                Found::Variable(variable) => config.set(variable, &value)?,
                Found::Unknown(meant) => {
                    tracing::warn!(
                        variable = error::excerpt(&name),
                        did_you_mean = meant,
                        "unknown variable"
                    );
                }
            }
        }
        fallbacks.apply(&mut config).into_iter().next().map_or(Ok(config), |(_, wrong)| Err(wrong))
    }

    fn set(&mut self, variable: &'static Variable, value: &str) -> Result<()> {
        let before = self.from_environment.contains(&variable.name).then(|| self.clone());
        (variable.set)(self, value.trim())
            .ok_or_else(|| variable.refused(&format!("={}", variable.told(value))))?;
        match before {
            // Programs that look a name up get the first one, those that read them all the last.
            Some(before) if before != *self => {
                *self = before;
                return Err(variable.refused("is set twice, and differently"));
            }
            Some(_) => {}
            None => self.from_environment.push(variable.name),
        }
        Ok(())
    }

    /// The algorithm that `RDMACCL_ALGO` wants for this: one that was named for the collective, or one that was
    /// named for all and does it.
    pub fn algorithm_for(
        &self,
        collective: Collective,
        placement: impl Into<Placement>,
    ) -> Option<&'static str> {
        let placement = placement.into();
        let able = |name| algorithms::by_name(name).is_some_and(|a| a.parts(collective, placement).is_some());
        let wanted = self.algorithms.iter().find(|choice| match choice.collective {
            Some(named) => named == collective,
            None => able(choice.algorithm),
        });
        wanted.map(|choice| choice.algorithm)
    }

    /// Where the value of a variable comes from.
    pub fn origin(&self, name: &str) -> Origin {
        if self.from_environment.contains(&name) {
            return Origin::Environment;
        }
        let fallback = self.fallbacks.iter().find(|(ours, _)| *ours == name);
        fallback.map_or(Origin::Default, |(_, theirs)| Origin::Nccl(theirs))
    }

    /// Every variable with its value and where that comes from. Secrets are not shown.
    pub fn explain(&self) -> Vec<(&'static str, String, Origin)> {
        VARIABLES.iter().map(|v| (v.name, (v.show)(self), self.origin(v.name))).collect()
    }

    /// The variables as a Markdown table, for the documentation.
    pub fn table_markdown() -> String {
        let rows = VARIABLES.iter().map(|v| {
            let default = if v.default.is_empty() { String::new() } else { format!("`{}`", v.default) };
            format!("| `{}` | {default} | {} | {} |\n", v.name, v.doc, v.expects)
        });
        "| variable | default | meaning | values |\n| --- | --- | --- | --- |\n".to_string()
            + &rows.collect::<String>()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            debug: "warn".to_string(),
            timeout: Duration::from_secs(300),
            init_timeout: Duration::from_secs(60),
            freeze_timeout: Some(Duration::from_secs(60)),
            net: Network::Auto,
            tcp_sockets: 2,
            socket_ifname: None,
            socket_family: Family::Any,
            port_range: None,
            algorithms: Vec::new(),
            tile_bytes: None,
            slot_bytes: None,
            credits: None,
            threads: Threads::Auto,
            simd: SimdChoice::Auto,
            host_id: None,
            verify: VerifyPolicy::Auto,
            id: None,
            rank: None,
            size: None,
            local_rank: None,
            root: None,
            secret: None,
            heap_min: 32 << 10,
            flight_calls: 256,
            flight_dir: None,
            profile: None,
            cuda_library: None,
            staging_bytes: 1 << 30,
            device_engine: DeviceEngine::Auto,
            device_code: None,
            multicast: Multicast::Off,
            gpudirect: GpuDirect::Auto,
            device_blocks: None,
            device_threads: 512,
            ib: Ib::default(),
            places: profile::Places::default(),
            from_environment: Vec::new(),
            fallbacks: Vec::new(),
        }
    }
}

/// The known name with the fewest letters different.
fn nearest(name: &str) -> &'static str {
    let known = VARIABLES.iter().map(|v| v.name);
    known.min_by_key(|known| distance(known.as_bytes(), name.as_bytes())).unwrap_or_default()
}

/// Levenshtein's distance.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;

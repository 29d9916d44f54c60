//! The kernels' code: PTX, which a driver of any age compiles for the device that is there.

use super::Family;

/// A module: its name in `kernels/modules.txt`, its code, and the kernels in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// `interpret-bf16`.
    pub name: &'static str,
    /// PTX.
    pub code: &'static str,
    /// Names of kernels. Each takes a [`Launch`](super::Launch).
    pub kernels: &'static [&'static str],
    /// The compute capability from which on devices run it.
    pub since: (u32, u32),
}

const INTERPRET: &[&str] = &["rdmaccl_interpret"];
/// What most modules need: flags of the system.
const FLAGS: (u32, u32) = (7, 0);
/// What stores to all ranks at once need.
const MULTICAST: (u32, u32) = (9, 0);

const ALL_REDUCE: &[&str] = &["rdmaccl_two_shot", "rdmaccl_one_shot", "rdmaccl_packets", "rdmaccl_staged"];

macro_rules! modules {
    ($($name:literal: $kernels:expr, $since:expr;)*) => {
        /// All of them.
        pub const MODULES: &[Module] = &[$(Module {
            name: $name,
            code: include_str!(concat!("../../kernels/ptx/", $name, ".ptx")),
            kernels: $kernels,
            since: $since,
        }),*];
    };
}

modules! {
    "interpret-i8": INTERPRET, FLAGS;
    "interpret-i16": INTERPRET, FLAGS;
    "interpret-i32": INTERPRET, FLAGS;
    "interpret-i64": INTERPRET, FLAGS;
    "interpret-f16": INTERPRET, FLAGS;
    "interpret-f32": INTERPRET, FLAGS;
    "interpret-f64": INTERPRET, FLAGS;
    "interpret-bf16": INTERPRET, FLAGS;
    "interpret-e4m3": INTERPRET, FLAGS;
    "interpret-e5m2": INTERPRET, FLAGS;
    "interpret-order8": INTERPRET, FLAGS;
    "interpret-order16": INTERPRET, FLAGS;
    "interpret-order32": INTERPRET, FLAGS;
    "interpret-order64": INTERPRET, FLAGS;
    "interpret-bits": INTERPRET, FLAGS;
    "all_reduce-f16": ALL_REDUCE, FLAGS;
    "all_reduce-f32": ALL_REDUCE, FLAGS;
    "all_reduce-bf16": ALL_REDUCE, FLAGS;
    "measure": &["rdmaccl_meet", "rdmaccl_ping", "rdmaccl_add"], FLAGS;
    "finish": &["rdmaccl_finish"], FLAGS;
    "agree": &["rdmaccl_agree"], FLAGS;
    "multicast-f16": &["rdmaccl_multicast"], MULTICAST;
    "multicast-f32": &["rdmaccl_multicast"], MULTICAST;
    "multicast-bf16": &["rdmaccl_multicast"], MULTICAST;
}

impl Module {
    /// The module with this name.
    pub fn named(name: &str) -> Option<&'static Module> {
        MODULES.iter().find(|module| module.name == name)
    }

    /// The interpreter for a family: there is one for each.
    pub fn interpreter(family: Family) -> Option<&'static Module> {
        Module::named(&format!("interpret-{}", family.name()))
    }

    /// The all-reduces that are no plans, where a family has them.
    pub fn all_reduce(family: Family) -> Option<&'static Module> {
        Module::named(&format!("all_reduce-{}", family.name()))
    }

    /// One-shot all-reduces by multicast, where a family has them.
    pub fn multicast(family: Family) -> Option<&'static Module> {
        Module::named(&format!("multicast-{}", family.name()))
    }

    /// Whether devices of this compute capability run it.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        capability >= self.since
    }

    /// Whether it is for multicast, and so wanted by few.
    pub fn is_of_multicast(&self) -> bool {
        self.since == MULTICAST
    }
}

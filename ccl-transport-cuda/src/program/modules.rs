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
}

const INTERPRET: &[&str] = &["rdmaccl_interpret"];
const ALL_REDUCE: &[&str] = &["rdmaccl_two_shot", "rdmaccl_one_shot", "rdmaccl_packets"];

macro_rules! modules {
    ($($name:literal: $kernels:expr;)*) => {
        /// All of them.
        pub const MODULES: &[Module] = &[$(Module {
            name: $name,
            code: include_str!(concat!("../../kernels/ptx/", $name, ".ptx")),
            kernels: $kernels,
        }),*];
    };
}

modules! {
    "interpret-i8": INTERPRET;
    "interpret-i16": INTERPRET;
    "interpret-i32": INTERPRET;
    "interpret-i64": INTERPRET;
    "interpret-f16": INTERPRET;
    "interpret-f32": INTERPRET;
    "interpret-f64": INTERPRET;
    "interpret-bf16": INTERPRET;
    "interpret-e4m3": INTERPRET;
    "interpret-e5m2": INTERPRET;
    "interpret-order8": INTERPRET;
    "interpret-order16": INTERPRET;
    "interpret-order32": INTERPRET;
    "interpret-order64": INTERPRET;
    "interpret-bits": INTERPRET;
    "all_reduce-f16": ALL_REDUCE;
    "all_reduce-f32": ALL_REDUCE;
    "all_reduce-bf16": ALL_REDUCE;
    "measure": &["rdmaccl_meet", "rdmaccl_ping", "rdmaccl_add"];
    "finish": &["rdmaccl_finish"];
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
}

//! Which kernel, and where it is loaded.

use super::{GangError, TeamKernel, Work};
use crate::program::{self, Rule};
use crate::sys::{Function, Module, Primary};
use ccl_core::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The modules of a device, each loaded when it is first asked for.
pub struct Kernels {
    primary: Arc<Primary>,
    loaded: Mutex<BTreeMap<&'static str, Arc<Module>>>,
}

impl Kernels {
    /// None is loaded.
    pub fn new(primary: &Arc<Primary>) -> Kernels {
        Kernels { primary: Arc::clone(primary), loaded: Mutex::default() }
    }

    /// The context that they are in.
    pub fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    /// A kernel, loaded.
    pub fn function(&self, module: &'static program::Module, kernel: &str) -> Result<Function> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match loaded.get(module.name) {
            Some(module) => Arc::clone(module),
            None => {
                let fresh = Arc::new(Module::load(&self.primary, module)?);
                loaded.insert(module.name, Arc::clone(&fresh));
                fresh
            }
        };
        module.function(kernel)
    }

    /// The kernel of a call, and what is launched behind it.
    pub(super) fn of(&self, work: Work<'_>, rule: &Rule) -> Result<(Function, Option<Function>), GangError> {
        let family = rule.family();
        let (module, kernel) = match work {
            Work::Plan(_) => (program::Module::interpreter(family), "rdmaccl_interpret"),
            Work::Team { kernel, .. } => match kernel {
                TeamKernel::TwoShot => (program::Module::all_reduce(family), "rdmaccl_two_shot"),
                TeamKernel::OneShot => (program::Module::all_reduce(family), "rdmaccl_one_shot"),
                TeamKernel::Packets => (program::Module::all_reduce(family), "rdmaccl_packets"),
                TeamKernel::Meet => (program::Module::named("measure"), "rdmaccl_meet"),
                TeamKernel::Ping => (program::Module::named("measure"), "rdmaccl_ping"),
            },
        };
        let Some(module) = module else {
            return Err(GangError::NoKernel { kernel: kernel.into(), family: family.name() });
        };
        let finish = match rule.finish() {
            None => None,
            Some(_) => {
                let module = program::Module::named("finish").expect("it is among the modules");
                Some(self.function(module, "rdmaccl_finish")?)
            }
        };
        Ok((self.function(module, kernel)?, finish))
    }
}

//! The kernels of a device, loaded.

use crate::program;
use crate::sys::{Function, Module, Primary};
use ccl_core::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

    /// Those of a device for all that this process does there, for as long as somebody has them.
    pub fn of_device(primary: &Arc<Primary>) -> Arc<Kernels> {
        static SHARED: Mutex<BTreeMap<u32, Weak<Kernels>>> = Mutex::new(BTreeMap::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = shared.get(&primary.ordinal()).and_then(Weak::upgrade) {
            return kernels;
        }
        let kernels = Arc::new(Kernels::new(primary));
        shared.insert(primary.ordinal(), Arc::downgrade(&kernels));
        kernels
    }

    /// Loads all that calls may need: what a launch would load may wait for all that runs on the device.
    pub fn load(&self) -> Result<()> {
        for module in program::MODULES.iter().filter(|module| module.name != "measure") {
            module.kernels.iter().try_for_each(|kernel| self.function(module, kernel).map(drop))?;
        }
        Ok(())
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
}

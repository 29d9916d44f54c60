//! The kernels of a device, loaded.

use crate::code::MachineCode;
use crate::program;
use crate::sys::{Function, Module, Primary};
use ccl_core::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The modules of a device, each loaded when it is first asked for.
pub struct Kernels {
    primary: Arc<Primary>,
    /// Why the driver compiles all modules, where it does.
    code: Result<MachineCode>,
    loaded: Mutex<BTreeMap<&'static str, Arc<Module>>>,
}

impl Kernels {
    /// None is loaded. Machine code is taken from this folder, or from the one beside the library.
    pub fn new(primary: &Arc<Primary>, folder: Option<&str>) -> Kernels {
        let device = primary.driver().device(primary.ordinal());
        let code = device.and_then(|device| MachineCode::of(&device, folder));
        match &code {
            Ok(code) => tracing::info!(target: "cuda", device = primary.ordinal(), %code, "kernels"),
            Err(why) => {
                tracing::info!(target: "cuda", device = primary.ordinal(), %why, "the driver compiles the kernels")
            }
        }
        Kernels { primary: Arc::clone(primary), code, loaded: Mutex::default() }
    }

    /// Those of a device for all that this process does there, for as long as somebody has them.
    pub fn of_device(primary: &Arc<Primary>, folder: Option<&str>) -> Arc<Kernels> {
        type Shared = BTreeMap<(u32, Option<String>), Weak<Kernels>>;
        static SHARED: Mutex<Shared> = Mutex::new(BTreeMap::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (primary.ordinal(), folder.map(String::from));
        if let Some(kernels) = shared.get(&key).and_then(Weak::upgrade) {
            return kernels;
        }
        let kernels = Arc::new(Kernels::new(primary, folder));
        shared.insert(key, Arc::downgrade(&kernels));
        kernels
    }

    /// Loads all that calls of ranks that share a device may need: what a launch would load may wait for all that runs there. Such ranks have no
    /// multicast.
    pub fn load(&self) -> Result<()> {
        for module in
            program::MODULES.iter().filter(|module| module.name != "measure" && !module.is_of_multicast())
        {
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
                let fresh = Arc::new(self.fresh(module)?);
                loaded.insert(module.name, Arc::clone(&fresh));
                fresh
            }
        };
        module.function(kernel)
    }

    fn fresh(&self, module: &program::Module) -> Result<Module> {
        let given = self
            .code
            .as_ref()
            .map(|code| code.read(module).and_then(|bytes| Module::load_code(&self.primary, module, &bytes)));
        match given {
            Ok(Ok(loaded)) => return Ok(loaded),
            Ok(Err(why)) => {
                tracing::warn!(target: "cuda", module = module.name, %why, "no machine code: the driver compiles it");
            }
            Err(_) => {}
        }
        Module::load(&self.primary, module)
    }
}

//! What the machine is, and how long its driver compiles the kernels.

use crate::bench::Bench;
use crate::outcome::Outcome;
use ccl_transport_cuda::Module;
use ccl_transport_cuda::driver::{Attribute, Driver};
use ccl_transport_cuda::gang::GangError;
use ccl_transport_cuda::program::MODULES;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let driver = Driver::open(std::env::var("RDMACCL_CUDA").ok().as_deref())?;
    let (free, all) = bench.primary.free_memory()?;
    outcome.say(format!("{}", bench.device));
    outcome.say(format!("driver {driver:?}, {} GiB of memory free", free >> 30));
    let mut attributes = Map::new();
    for attribute in Attribute::ALL {
        attributes.insert(format!("{attribute:?}"), json!(bench.device.attribute(attribute)?));
    }
    let said: Vec<_> = attributes.iter().map(|(name, value)| format!("{name} {value}")).collect();
    outcome.say(said.join(", "));
    let capability = bench.device.capability;
    outcome.put(
        "device",
        json!({
            "name": bench.device.name, "uuid": bench.device.uuid_text(), "pci": bench.device.pci,
            "capability": [capability.0, capability.1], "memory": all, "free": free,
            "driver": driver.version().to_string(), "attributes": Value::Object(attributes),
        }),
    );
    compile(bench, outcome)
}

/// Loads every module twice: cold, if the driver's cache is, and then from its cache.
fn compile(bench: &Bench, outcome: &mut Outcome) -> Result<(), GangError> {
    let (mut modules, mut sums) = (Map::new(), [0.0; 2]);
    let all = MODULES.iter().filter(|module| module.runs_on(bench.device.capability));
    for module in all.clone() {
        let mut times = [0.0; 2];
        for (time, sum) in times.iter_mut().zip(&mut sums) {
            let begin = Instant::now();
            let loaded = Arc::new(Module::load(&bench.primary, module)?);
            *time = begin.elapsed().as_secs_f64() * 1e3;
            *sum += *time;
            for kernel in module.kernels {
                // What it cannot launch it could not use.
                if loaded.function(kernel)?.blocks_at_once(512)? == 0 {
                    outcome.fail(format!("{kernel} of {}: no room for 512 threads", module.name));
                }
            }
        }
        modules.insert(module.name.into(), json!({"first_ms": times[0], "second_ms": times[1]}));
    }
    let [first, second] = sums;
    outcome.say(format!("{} modules: loaded in {first:.0} ms, again in {second:.0} ms", all.count()));
    outcome.put("modules", Value::Object(modules));
    Ok(())
}

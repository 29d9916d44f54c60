//! Where the kernels' code for the devices of this host comes from.

use ccl_core::Result;
use ccl_core::config::Config;
use ccl_transport_cuda::code::MachineCode;
use ccl_transport_cuda::driver::Driver;

/// For each device, whether there is machine code of the kernels for it, or why its driver compiles them; a line each. The error says what is
/// missing: a driver, a device.
pub fn device_code(config: &Config) -> Result<Vec<String>> {
    let devices = Driver::open(config.cuda_library.as_deref())?.devices()?;
    let told = devices.iter().map(|device| match MachineCode::of(device, config.device_code.as_deref()) {
        Ok(code) => format!("kernels of device {}: {code}", device.ordinal),
        Err(why) => format!("kernels of device {}: the driver compiles them, as {why}", device.ordinal),
    });
    Ok(told.collect())
}

//! The modules as machine code for every kind of device, and what the assembler says of them.

use super::toolchain::{Toolchain, ptx, sources};
use crate::cores::by_all;
use crate::shell::target;
use ccl_transport_cuda::code;
use ccl_transport_cuda::program::{MODULES, Module};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Turing, Ampere, Hopper, and Blackwell in servers and in desktops.
pub(super) const DEVICES: [&str; 5] = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"];
/// Registers of a thread: with 512 threads to a block, twice as many blocks as kernels are written for would not fit with more.
const REGISTERS: u32 = 128;

/// Bytes that kernels may spill and load again: none, but for what is kept from one step of a call to the next.
fn may_spill(kernel: &str) -> u32 {
    if kernel == "rdmaccl_staged" { 320 } else { 0 }
}

/// What a kernel takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    registers: u32,
    spilled: u32,
    shared: u32,
}

/// Assembles all modules, prints a table, and fails where a kernel spills or takes more than it may.
pub(super) fn table(toolchain: &Toolchain, modules: &[&str]) -> Result<(), String> {
    let jobs = modules.iter().flat_map(|module| DEVICES.map(|device| (*module, device)));
    let jobs: Vec<_> = jobs.filter(|(module, device)| runs_on(module, device)).collect();
    let reports = by_all(&jobs, |(module, device)| {
        let into = target().join(format!("kernels/assembled-{module}-{device}"));
        assemble(toolchain.program("ptxas"), module, device, &into)
    });
    let mut kernels = BTreeMap::<(&str, String), BTreeMap<&str, Use>>::new();
    for ((module, device), report) in jobs.into_iter().zip(reports) {
        for (kernel, used) in report? {
            kernels.entry((module, kernel)).or_default().insert(device, used);
        }
    }
    println!("{:<18} {:<20} {:>9}  registers (spilled bytes)", "module", "kernel", "shared");
    println!("{:<49}  {}", "", DEVICES.map(|device| format!("{device:>8}")).join(""));
    let mut wrong = Vec::new();
    for ((module, kernel), uses) in &kernels {
        let shared = uses.values().map(|used| used.shared).max().unwrap_or(0);
        let columns = DEVICES.map(|device| {
            if !runs_on(module, device) {
                return format!("{:>8}", "-");
            }
            let used = uses.get(device).copied().unwrap_or_default();
            let spills = may_spill(kernel);
            if used.registers == 0 || used.registers > REGISTERS || used.spilled > spills {
                wrong.push(format!(
                    "{module} {kernel} on {device}: {used:?}, of at most {REGISTERS} registers and {spills} bytes spilled"
                ));
            }
            let spilled = if used.spilled > 0 { format!("({})", used.spilled) } else { String::new() };
            format!("{:>8}", format!("{}{spilled}", used.registers))
        });
        println!("{module:<18} {kernel:<20} {shared:>9}  {}", columns.join(""));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// All modules as machine code for the kinds of devices of which the library looks for it: where in its folder, and what.
pub(super) fn machine_code(toolchain: &Toolchain) -> Result<Vec<(String, Vec<u8>)>, String> {
    let into = target().join("kernels/machine-code");
    let mut all = Vec::new();
    for kind in code::KINDS {
        for module in MODULES.iter().filter(|module| module.runs_on(kind)) {
            assemble(toolchain.program("ptxas"), module.name, &code::name(kind), &into)?;
            let made = std::fs::read(&into).map_err(|e| format!("{}: {e}", into.display()))?;
            all.push((code::file(kind, module), made));
        }
    }
    Ok(all)
}

/// Whether a module is for a kind of device at all.
fn runs_on(module: &str, device: &str) -> bool {
    let kind = code::KINDS.into_iter().find(|kind| code::name(*kind) == device);
    kind.zip(Module::named(module)).is_some_and(|(kind, module)| module.runs_on(kind))
}

/// What each kernel of a module takes of a device.
fn assemble(
    mut ptxas: Command,
    module: &str,
    device: &str,
    into: &Path,
) -> Result<Vec<(String, Use)>, String> {
    let from = ptx(&sources().join("ptx"), module);
    ptxas.args(["-v", "-arch", device]).arg(&from).arg("-o").arg(into);
    let output = ptxas.output().map_err(|e| format!("ptxas: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("ptxas -arch {device} {}: {text}", from.display()));
    }
    let kernels = report(&text);
    if kernels.is_empty() { Err(format!("ptxas says nothing of {module}: {text}")) } else { Ok(kernels) }
}

/// Reads what `ptxas -v` says. A function that a kernel calls counts for that kernel.
fn report(text: &str) -> Vec<(String, Use)> {
    let mut kernels: Vec<(String, Use)> = Vec::new();
    for line in text.lines() {
        let number = |after: &str, before: &str| {
            let end = line.find(before)?;
            let start = if after.is_empty() { 0 } else { line.find(after)? + after.len() };
            line.get(start..end)?.split([' ', ',']).rfind(|word| !word.is_empty())?.parse::<u32>().ok()
        };
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            kernels.push((name.split('\'').next().unwrap_or_default().into(), Use::default()));
        } else if let Some((_, used)) = kernels.last_mut() {
            used.spilled += number("", " bytes spill stores").unwrap_or(0)
                + number("", " bytes spill loads").unwrap_or(0);
            used.registers = used.registers.max(number("Used ", " registers").unwrap_or(0));
            used.shared = used.shared.max(number("", " bytes smem").unwrap_or(0));
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_devices_have_multicast() {
        let all = |module| DEVICES.map(|device| runs_on(module, device));
        assert_eq!(all("multicast-f32"), [false, false, true, true, true]);
        assert_eq!(all("all_reduce-f32"), [true; 5]);
    }

    #[test]
    fn the_assembler_is_understood() {
        let text = "ptxas info    : Compiling entry function 'one' for 'sm_90'\n\
                    ptxas info    : Function properties for one\n    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n\
                    ptxas info    : Used 116 registers, used 1 barriers, 976 bytes smem\n\
                    ptxas info    : Compiling entry function 'two' for 'sm_90'\n\
                    ptxas info    : Used 40 registers, used 1 barriers\n";
        let one = Use { registers: 116, spilled: 16, shared: 976 };
        let two = Use { registers: 40, spilled: 0, shared: 0 };
        assert_eq!(report(text), [("one".to_string(), one), ("two".to_string(), two)]);
    }
}

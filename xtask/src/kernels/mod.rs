//! The device's kernels, without a device: their PTX is fresh, becomes machine code for every kind of GPU within bounds, and has the scope of
//! the system on every flag; and the same sources, on threads of the CPU, do what the host's engine does.

mod assembler;
mod scopes;
mod toolchain;

use crate::cores::by_all;
use crate::programs::test;
use crate::shell::{command, run, target};
use crate::tally::Outcome;
use crate::tools;
use ccl_transport_cuda::program;
use toolchain::{Toolchain, ptx, sources};

/// The version of PTX that is written over NVRTC's: the oldest that has flags of the system.
const VERSION: &str = ".version 6.0";
/// The oldest that has stores to a multicast address.
const MULTICAST_VERSION: &str = ".version 8.1";

/// What the PTX of all modules may have together: it is a part of the library.
const BYTES: usize = 1_600_000;

pub(crate) fn check(write: bool) -> Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Outcome::Skipped("NVIDIA's compilers are there for Linux on x86-64".into());
    }
    if let Err(why) = tools::need_all(&[("g++", "g++"), ("python3", "python3")]) {
        return Outcome::Skipped(why);
    }
    match compiled(write) {
        Err(why) => Outcome::Failed(why),
        Ok(()) if write => Outcome::tests(1, Vec::new()),
        Ok(()) => emulated(),
    }
}

/// The kernels as machine code, for a package: where in the library's folder for it, and what. It needs the pinned toolchain, and so PyPI, Linux on x86-64, and
/// Python.
pub(crate) fn machine_code() -> Result<Vec<(String, Vec<u8>)>, String> {
    tools::need_all(&[("python3", "python3")])?;
    assembler::machine_code(&Toolchain::ready()?)
}

/// A module: its name, its source, and the family that it is for.
struct Module {
    name: String,
    source: String,
    family: String,
}

impl Module {
    /// What NVRTC compiles it for, and the version of PTX that is written over NVRTC's; those of multicast keep the one that they need.
    fn needs(&self) -> (&'static str, Option<&'static str>) {
        let known = program::Module::named(&self.name);
        if known.is_some_and(program::Module::is_of_multicast) { ("90", None) } else { ("70", Some(VERSION)) }
    }
}

fn modules() -> Result<Vec<Module>, String> {
    let path = sources().join("modules.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let module = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, source, family] => {
            Ok(Module { name: name.into(), source: source.into(), family: family.into() })
        }
        _ => Err(format!("{}: '{line}' is not a name, a source and a family", path.display())),
    };
    text.lines().filter(|line| !line.starts_with('#')).map(module).collect()
}

fn compiled(write: bool) -> Result<(), String> {
    let (toolchain, modules) = (Toolchain::ready()?, modules()?);
    let folder = target().join("kernels/ptx");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for architecture in ["70", "90"] {
        let all = modules.iter().filter(|module| module.needs().0 == architecture);
        let all: Vec<_> =
            all.map(|m| (ptx(&folder, &m.name), m.source.as_str(), m.family.as_str())).collect();
        toolchain.nvrtc(true, &format!("compute_{architecture}"), &all)?;
    }
    let mut stale = Vec::new();
    let mut bytes = 0;
    for module in &modules {
        let made = ptx(&folder, &module.name);
        let text = std::fs::read_to_string(&made).map_err(|e| format!("{}: {e}", made.display()))?;
        let text = shipped(module, &text)?;
        let flags = scopes::check(&module.name, &text)?;
        if !scopes::is_complete(&module.name, &flags) {
            return Err(format!("{}: kernels that wait have {flags:?}", module.name));
        }
        bytes += text.len();
        let kept = ptx(&sources().join("ptx"), &module.name);
        if write {
            std::fs::write(&kept, text).map_err(|e| format!("{}: {e}", kept.display()))?;
        } else if std::fs::read_to_string(&kept).map_or(true, |on_disk| on_disk != text) {
            stale.push(module.name.as_str());
        }
    }
    if !stale.is_empty() {
        return Err(format!("not up to date: {}; run cargo xtask kernels --write", stale.join(", ")));
    }
    if bytes > BYTES {
        return Err(format!("{bytes} bytes of PTX: at most {BYTES}"));
    }
    println!("{} modules, {} KB of PTX; all flags have the scope of the system", modules.len(), bytes / 1000);
    let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
    assembler::table(&toolchain, &names)?;
    others(&toolchain, &modules)
}

/// The compilers that do not make what is shipped take the sources too: CUDA 13's NVRTC, and nvcc.
fn others(toolchain: &Toolchain, modules: &[Module]) -> Result<(), String> {
    let folder = target().join("kernels/others");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let made = |source: &str| folder.join(source).with_extension("cubin");
    let mut sources: Vec<&str> = modules.iter().map(|module| module.source.as_str()).collect();
    sources.dedup();
    let jobs: Vec<_> = sources.iter().map(|source| (made(source), *source, "SumsBF16")).collect();
    toolchain.nvrtc(false, "compute_90", &jobs)?;
    let compiled = by_all(&sources, |source| {
        let mut nvcc = toolchain.program("nvcc");
        nvcc.args("-std=c++17 -arch=sm_90 -cubin -DFAMILY=SumsBF16 -Werror all-warnings -o".split(' '));
        run(nvcc.arg(made(source)).arg(source))
    });
    compiled.into_iter().collect::<Result<(), String>>()?;
    println!("NVRTC and nvcc of CUDA 13 take all sources");
    Ok(())
}

/// NVRTC's PTX as it is kept: for the oldest drivers and devices, without what only people or other compilers read.
fn shipped(module: &Module, ptx: &str) -> Result<String, String> {
    let mut kept =
        format!("// {} for {}: written by cargo xtask kernels --write\n", module.source, module.family);
    let (architecture, version) = module.needs();
    let mut versions = Vec::new();
    for line in ptx.lines().map(str::trim) {
        // Constants of a header that every program of NVRTC has, and none of ours uses.
        if line.is_empty() || line.starts_with("//") || line.contains("nv6target") {
            continue;
        }
        let is_version = line.starts_with(".version ");
        let line = version.filter(|_| is_version).unwrap_or(line);
        versions.extend(is_version.then_some(line));
        kept.push_str(line);
        kept.push('\n');
    }
    let is_one = versions == [version.unwrap_or(MULTICAST_VERSION)];
    if is_one && kept.contains(&format!(".target sm_{architecture}\n")) {
        Ok(kept)
    } else {
        Err(format!("{}: this is no PTX for sm_{architecture}, but of {versions:?}", module.name))
    }
}

/// The kernels on threads of the CPU: by themselves under ThreadSanitizer, by the program that checks them on a GPU, and by calls
/// of the library.
fn emulated() -> Outcome {
    // That program opens the library, as any program does.
    if let Err(why) = run(&mut command("cargo build --workspace --lib --locked")) {
        return Outcome::Failed(why);
    }
    let emulations = command("cargo test --workspace --locked --test emulation");
    match test(emulations, &["--nocapture", "--test-threads=1"]) {
        // The PTX is a test, too.
        Outcome::Tests { passed, failed, skipped } => Outcome::Tests { passed: passed + 1, failed, skipped },
        other => other,
    }
}

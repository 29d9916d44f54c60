//! NVIDIA's compilers, pinned, from PyPI: no GPU, driver or installed CUDA is needed.

use crate::shell::{command, read, root, run, target};
use crate::tools;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The compilers of CUDA 13.0, and the last NVRTC whose PTX the oldest drivers can be given: those of CUDA 13 write what needs
/// PTX 8.3.
const PACKAGES: [&str; 7] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-nvrtc-cu12==12.1.105",
];

/// Where its parts are.
pub(super) struct Toolchain {
    python: PathBuf,
    packages: PathBuf,
}

impl Toolchain {
    /// Installs it into `target/kernels`, if it is not there.
    pub(super) fn ready() -> Result<Toolchain, String> {
        let folder = target().join("kernels");
        let (environment, list) = (folder.join("python"), folder.join("packages.txt"));
        let python = environment.join("bin/python");
        let wanted = PACKAGES.join("\n");
        if !std::fs::read_to_string(&list).is_ok_and(|have| have == wanted) {
            std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let mut make = command("python3 -m venv");
            if run(make.arg(&environment)).is_err() {
                tools::need_packages("what python3 builds environments with", &["python3-venv"])?;
                run(&mut make)?;
            }
            run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-deps"]).args(PACKAGES))?;
            std::fs::write(&list, wanted).map_err(|e| format!("{}: {e}", list.display()))?;
        }
        let packages = read(
            Command::new(&python).args(["-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]),
        )?;
        Ok(Toolchain { python, packages: PathBuf::from(packages.trim()).join("nvidia") })
    }

    /// A program of CUDA 13: `ptxas`, `nvcc`.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut program = Command::new(self.packages.join("cu13/bin").join(name));
        program.current_dir(sources());
        program
    }

    /// Compiles modules to PTX for an architecture with the old NVRTC, or with CUDA 13's: (file, source, family) each.
    pub(super) fn nvrtc(
        &self,
        old: bool,
        architecture: &str,
        modules: &[(PathBuf, &str, &str)],
    ) -> Result<(), String> {
        let folder = if old { "cuda_nvrtc/lib" } else { "cu13/lib" };
        let mut python = Command::new(&self.python);
        python
            .arg(root().join("xtask/src/kernels/nvrtc.py"))
            .arg(self.packages.join(folder))
            .arg(architecture);
        python.current_dir(sources()).stdin(Stdio::piped());
        let mut child = python.spawn().map_err(|e| format!("nvrtc.py: {e}"))?;
        let mut input = child.stdin.take().ok_or("no pipe to nvrtc.py")?;
        for (file, source, family) in modules {
            writeln!(input, "{} {source} {family}", file.display()).map_err(|e| format!("nvrtc.py: {e}"))?;
        }
        drop(input);
        let status = child.wait().map_err(|e| format!("nvrtc.py: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("NVRTC for {architecture}: {status}")) }
    }
}

/// The folder of the kernels.
pub(super) fn sources() -> PathBuf {
    root().join("ccl-transport-cuda/kernels")
}

/// The PTX of a module.
pub(super) fn ptx(folder: &Path, module: &str) -> PathBuf {
    folder.join(format!("{module}.ptx"))
}

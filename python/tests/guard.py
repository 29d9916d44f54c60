"""The package around the backend: what it loads, what it refuses, and what it says then: `python python/tests guard`."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from failures import scenarios
from harness import Outcome

# A module for the installed torch by its name, which says that it was compiled for another one: what is left of a backend
# that was compiled against a second version's headers and copied over.
OTHER = """
#include <Python.h>
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, nullptr}};
extern "C" __attribute__((visibility("default"))) PyObject* PyInit_{name}() {{
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddObject(module, "torch_version", Py_BuildValue("(ii)", 2, 6));
  return module;
}}
"""


def python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def expect_in(words: list[str], text: str) -> None:
    for word in words:
        if word not in text:
            raise AssertionError(f"{word!r} is not in:\n{text}")


def installed() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def faked_version(_: str) -> None:
    """Every torch but the one that it was compiled for is refused: its neighbours and a far one."""
    major, minor = (int(part) for part in installed().split("."))
    for other in (f"{major}.{minor - 1}.1", f"{major}.{minor + 1}.0", f"{major + 1}.0.0+cpu"):
        found = python(f"import torch; torch.__version__ = {other!r}; import rdmaccl.torch")
        if found.returncode == 0:
            raise AssertionError(f"torch {other} is accepted")
        expect_in(["ImportError", f"no backend for torch {other}", f"torch {installed()} on Python", "-m rdmaccl.build"], found.stderr)


def faked_patch(_: str) -> None:
    """A patch release changes no class: it is accepted."""
    found = python(f"import torch; torch.__version__ = '{installed()}.9+cpu'; import rdmaccl.torch; print('loaded')")
    expect_in(["loaded"], found.stdout + found.stderr)


def other_headers(_: str) -> None:
    """A module of the right name that was compiled against other headers is refused before anything of it is called."""
    import rdmaccl

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "rdmaccl"
        shutil.copytree(Path(rdmaccl.__file__).parent, package)
        module = next((package / "torch").glob(f"_c10d_{installed().replace('.', '_')}.*.so"))
        name = module.name.partition(".")[0]
        source = Path(folder) / "other.cpp"
        source.write_text(OTHER.format(name=name))
        module.unlink()
        include = sysconfig.get_paths()["include"]
        subprocess.run(["g++", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(module)], check=True)
        found = python("import rdmaccl.torch", PYTHONPATH=folder)
    if found.returncode == 0:
        raise AssertionError("it is accepted")
    expect_in(["ImportError", "was compiled for torch 2.6", "-m rdmaccl.build"], found.stderr)


def without_torch(_: str) -> None:
    """The package alone imports no torch."""
    program = "import sys, rdmaccl; print('version', rdmaccl.version()); print('info', rdmaccl.info()); assert 'torch' not in sys.modules"
    found = python(program)
    expect_in(["version", "info"], found.stdout + found.stderr)
    if found.returncode != 0 or not re.search(r"version \S*\d+\D+\d+", found.stdout):
        raise AssertionError(found.stdout + found.stderr)


def without_import(backend: str) -> None:
    """The entry point: a program that imports nothing of ours."""
    program = (
        "import torch, torch.distributed as dist\n"
        f"dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)\n"
        "t = torch.ones(3); dist.all_reduce(t); print(dist.get_backend(), t.tolist()); dist.destroy_process_group()"
    )
    found = python(program)
    expect_in([f"{backend} [1.0, 1.0, 1.0]"], found.stdout + found.stderr)


def no_compiler(_: str) -> None:
    """What the build says where there is none, of a package that has no backend yet."""
    import rdmaccl

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(rdmaccl.__file__).parent, Path(folder) / "rdmaccl", ignore=shutil.ignore_patterns("_c10d_*"))
        environment = {**os.environ, "CXX": "/nonexistent/c++", "PYTHONPATH": folder}
        command = [sys.executable, "-m", "rdmaccl.build"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    if found.returncode == 0 or "Traceback" in found.stderr:
        raise AssertionError(found.stderr)
    expect_in(["/nonexistent/c++", "install one"], found.stderr)


def options(_: str) -> None:
    """Options of a group reach it; what is no option, or no algorithm, is an error that says so."""
    program = (
        "import torch, torch.distributed as dist; from datetime import timedelta; from rdmaccl.torch import ProcessGroupRdmaccl as P\n"
        "def group(options, **more): dist.init_process_group('rdmaccl', store=dist.HashStore(), rank=0, world_size=1, pg_options=options)\n"
        "group(P.Options(algorithm='ring', timeout=timedelta(seconds=7), transport='tcp'))\n"
        "b = dist.group.WORLD._get_backend(torch.device('cpu')); t = torch.ones(1); dist.all_reduce(t)\n"
        "print(b.options.algorithm, b.options._timeout, b.options.transport); dist.destroy_process_group()\n"
        "for bad in (P.Options(algorithm='nonsense'), P.Options(transport='pigeons')):\n"
        "    try: group(bad); dist.all_reduce(t); print('accepted')\n"
        "    except (RuntimeError, ValueError) as error: print('refused:', error)\n"
        "    if dist.is_initialized(): dist.destroy_process_group()\n"
    )
    found = python(program)
    expect_in(["ring 0:00:07 tcp", "nonsense", "pigeons"], found.stdout + found.stderr)
    if "accepted" in found.stdout:
        raise AssertionError(found.stdout)


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    of = {
        "another_torch_is_refused": faked_version,
        "a_patch_release_is_not": faked_patch,
        "other_headers_are_refused": other_headers,
        "no_torch_is_imported": without_torch,
        "no_import_is_needed": without_import,
        "no_compiler_is_told": no_compiler,
        "options_reach_the_group": options,
    }
    return scenarios(backend, names, of)

"""Compiles the backend for the torch that is installed: `python -m rdmaccl.build`.

It is beside the backend and not in it, since a package without one for this torch cannot be imported. The sources are in the package; a C++20 compiler (`CXX`, otherwise `c++`) is all that is needed beside torch.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent

# What every source includes sooner or later, and what takes most of the time: compiled once.
COMMON = """\
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
"""


def build() -> Path:
    """Compiles the backend into this package; its file."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    name = f"_c10d_{major}_{minor}"
    headers = Path(torch.__file__).parent / "include"
    includes = [headers, headers / "torch/csrc/api/include", sysconfig.get_paths()["include"], HERE / "include"]
    flags = [
        *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-DNDEBUG"),
        f"-DTORCH_EXTENSION_NAME={name}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{folder}" for folder in includes),
    ]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    libraries, own = Path(torch.__file__).parent / "lib", HERE / "lib"
    module = HERE / "torch" / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    with tempfile.TemporaryDirectory() as objects:
        common = Path(objects, "common.hpp")
        common.write_text(COMMON)
        subprocess.run([*compiler, *flags, "-x", "c++-header", common, "-o", f"{common}.gch"], check=True)

        def compile_one(source: Path) -> str:
            made = f"{objects}/{source.stem}.o"
            subprocess.run([*compiler, *flags, "-include", common, "-c", source, "-o", made], check=True)
            return made

        # Each takes up to a gigabyte of memory.
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            made = list(pool.map(compile_one, sorted((HERE / "torch/csrc").glob("*.cpp"))))
        # Linked elsewhere and moved: a process that has the old one loaded keeps it.
        linked = f"{objects}/{module.name}"
        link = ["-shared", *made, "-o", linked, f"-L{libraries}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
        own_library = [str(own / "librdmaccl.so.0"), "-Wl,-rpath,$ORIGIN/../lib", "-Wl,--as-needed", "-s"]
        subprocess.run([*compiler, *link, *own_library], check=True)
        staged = module.with_suffix(".new")
        staged.write_bytes(Path(linked).read_bytes())
        staged.chmod(0o755)
        staged.replace(module)
    return module


def main() -> int:
    try:
        print(build())
    except ImportError as error:
        print(f"rdmaccl: the backend is compiled for the torch that is installed, but: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"rdmaccl: {error.cmd[0]} has failed; its words are above", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"rdmaccl: there is no compiler ({error}); install one, or name it in CXX", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

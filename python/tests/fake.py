"""CUDA tensors without a GPU: builds the fake driver and the fake devices, and puts them in CUDA's place in a process."""

import contextlib
import importlib.util
import os
import shlex
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAME = "_fake_device"
DEVICES = 2


def driver() -> Path:
    """The fake driver, built by cargo as the wheel's library is."""
    profile = os.environ.get("RDMACCL_CARGO_PROFILE", "release")
    subprocess.run(["cargo", "build", "--quiet", "--locked", "--profile", profile, "-p", "ccl-fake-cuda"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / ("debug" if profile == "dev" else profile) / "libccl_fake_cuda.so"


def build() -> Path:
    """Compiles the fake devices, if what is there is older than its sources or for another torch."""
    sources = sorted((HERE / "fake_device").iterdir())
    folder = ROOT / "target" / "python" / "fake_device"
    made = folder / f"{torch.__version__}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if made.exists() and made.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return made
    folder.mkdir(parents=True, exist_ok=True)
    base = Path(torch.__file__).parent
    includes = [base / "include", base / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    flags = [
        *("-std=c++20", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-s"),
        f"-DTORCH_EXTENSION_NAME={NAME}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{include}" for include in includes),
    ]
    libraries = [f"-L{base / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10", f"-Wl,-rpath,{base / 'lib'}"]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    staged = made.with_suffix(".new")
    subprocess.run([*compiler, *flags, HERE / "fake_device" / "module.cpp", "-o", staged, *libraries], check=True)
    staged.replace(made)
    return made


class Fake:
    """The fake devices of this process, and of those that it forks; the driver starts in each when it is first used."""

    _driver: Path | None = None

    @classmethod
    def prepare(cls) -> None:
        """Builds what is missing."""
        build()
        cls._driver = driver()

    def __init__(self, script: str = "") -> None:
        os.environ["RDMACCL_CUDA"] = str(self._driver or driver())
        os.environ["RDMACCL_FAKE_CUDA"] = f"devices {DEVICES}; {script}"
        spec = importlib.util.spec_from_file_location(NAME, build())
        self.module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.module.install()
        # Python asks for CUDA's own libraries before it makes a CUDA tensor.
        torch.cuda._lazy_init = lambda: None
        torch.cuda.get_device_capability = lambda _=None: (9, 0)
        torch.accelerator.device_count = lambda: DEVICES

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    @contextlib.contextmanager
    def on_stream(self, stream: int, device: int = 0) -> Iterator[None]:
        """Operators on the device go to this stream; 0 is the default stream."""
        before = self.module.set_stream(device, stream)
        try:
            yield
        finally:
            self.module.set_stream(device, before)

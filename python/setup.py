"""Builds the wheel: the library by cargo, and the backend for the torch that is installed here, if there is one.

`RDMACCL_CARGO_PROFILE` is cargo's profile (release); `RDMACCL_LIBRARY` a library that is built already, in place of cargo's.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def library() -> Path:
    if given := os.environ.get("RDMACCL_LIBRARY"):
        return Path(given)
    profile = os.environ.get("RDMACCL_CARGO_PROFILE", "release")
    # Of the whole workspace, as all else is built: of one package, crates would have other features, and be compiled once more.
    subprocess.run(["cargo", "build", "--locked", "--profile", profile, "--workspace", "--lib"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / ("debug" if profile == "dev" else profile) / "librdmaccl.so"


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


class BuildPackage(build_py):
    """The Python files, and beside them what was compiled, and what the backend can be compiled from elsewhere."""

    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "rdmaccl"
        library_dir, include, sources = package / "lib", package / "include", package / "torch" / "csrc"
        for folder in (library_dir, include, sources):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        # By the name under which it is looked for at run time.
        shutil.copy2(library(), library_dir / "librdmaccl.so.0")
        shutil.copy2(ROOT / "include" / "ccl.h", include)
        for source in (HERE / "csrc").iterdir():
            shutil.copy2(source, sources)
        if has_torch():
            subprocess.run([sys.executable, "-m", "rdmaccl.build"], cwd=self.build_lib, check=True)


class Wheel(bdist_wheel):
    """Without a backend in it, the wheel fits every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if has_torch() else ("py3", "none", platform)


class Compiled(Distribution):
    """It has compiled files, of which setuptools knows nothing."""

    def has_ext_modules(self) -> bool:
        return True


BUILD = ROOT / "target" / "python"
BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    packages=["rdmaccl", "rdmaccl.torch"],
    package_data={"rdmaccl": ["py.typed"], "rdmaccl.torch": ["*.pyi"]},
    distclass=Compiled,
    cmdclass={"build_py": BuildPackage, "bdist_wheel": Wheel},
    # Nothing is written beside the sources.
    options={"build": {"build_base": str(BUILD / "build")}, "egg_info": {"egg_base": str(BUILD)}},
)

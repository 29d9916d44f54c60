"""The process-group backend for PyTorch.

`torch.distributed.init_process_group("rdmaccl")` finds it by itself from torch 2.14 on; before, `import rdmaccl.torch` first.

The backend is C++ on classes of PyTorch that change from minor version to minor version, so it is compiled for each of them, and
the one for exactly this torch is loaded, or none.
"""

import atexit
import importlib
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

__all__ = ["ProcessGroupRdmaccl", "register", "shared_bytes", "shared_memory"]

_HERE = Path(__file__).parent

# How long a program that ends waits for its calls. One that fails does not: its peers learn of it at once.
_GRACE = timedelta(seconds=5)


def _minor(version: str) -> tuple[int, int]:
    """Major and minor of a version such as `2.15.0+cu130`."""
    major, minor = re.match(r"(\d+)\.(\d+)", version).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def _builds() -> list[str]:
    """The versions that this package has a backend for, in words."""
    pattern = re.compile(r"_c10d_(\d+)_(\d+)\.cpython-(\d)(\d+)-")
    found = (pattern.match(file.name) for file in sorted(_HERE.glob("_c10d_*.so")))
    return ["torch {}.{} on Python {}.{}".format(*match.groups()) for match in found if match]


def _refusal(because: str) -> ImportError:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ImportError(
        f"rdmaccl has no backend for torch {torch.__version__} on Python {python}: {because}. "
        f"This package has one for: {', '.join(_builds()) or 'no torch'}. Install a torch of one of these minor versions, or "
        f"build the backend for yours, which takes a C++20 compiler and a minute: `{sys.executable} -m rdmaccl.build`"
    )


def _load() -> Any:
    if not torch.distributed.is_available():
        raise ImportError("rdmaccl needs a torch with torch.distributed; this one was built without it")
    wanted = _minor(torch.__version__)
    name = "_c10d_{}_{}".format(*wanted)
    file = _HERE / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    if not file.exists():
        raise _refusal(f"there is no {file.name}")
    module = importlib.import_module(f"rdmaccl.torch.{name}")
    if module.torch_version != wanted:
        raise _refusal(f"{file.name} was compiled for torch {'.'.join(map(str, module.torch_version))}")
    return module


_module = _load()

if TYPE_CHECKING:
    from rdmaccl.torch._stub import ProcessGroupRdmaccl
else:
    ProcessGroupRdmaccl = _module.ProcessGroupRdmaccl
    ProcessGroupRdmaccl.__module__ = ProcessGroupRdmaccl.Options.__module__ = "rdmaccl.torch"


@contextmanager
def shared_memory(min_bytes: int = 1 << 20) -> Iterator[None]:
    """CPU tensors of `min_bytes` or more that are made inside lie in memory that the ranks of this host map.

    Collectives on such tensors copy nothing through the library's own memory. It holds for all threads of the process; tensors stay
    where they are when it ends. Where there is no such memory they are made as ever, with a warning.

    A process that is forked off has the tensors of its parent in common with it, as after `Tensor.share_memory_`, and makes
    its own as ever.
    """
    if min_bytes < 1:
        raise ValueError(f"min_bytes is {min_bytes}, and must be 1 at least")
    before = _module.share_from(min_bytes)
    try:
        yield
    finally:
        _module.share_from(before)


def shared_bytes() -> tuple[int, int]:
    """Bytes of the tensors that lie in `shared_memory` now, and of the memory reserved for such; that counts where it was touched."""
    return _module.shared_bytes()


def _create(group: Any, options: Any) -> "ProcessGroupRdmaccl":
    """What `init_process_group` and `new_group` call."""
    if options is None:
        options = ProcessGroupRdmaccl.Options()
    elif not isinstance(options, ProcessGroupRdmaccl.Options):
        raise TypeError(f"pg_options must be a ProcessGroupRdmaccl.Options for this backend, not a {type(options).__name__}")
    if not options.has_timeout:
        options._timeout = group.timeout if isinstance(group.timeout, timedelta) else timedelta(seconds=group.timeout)
    options.group_name = group.group_id
    options.global_ranks_in_group = group.global_ranks_in_group
    return ProcessGroupRdmaccl(group.store, group.group_rank, group.group_size, options)


def _records_itself() -> None:
    """Keeps PyTorch's flight recorder from this backend's calls, unless its size was set.

    It takes 2.5 us of each call, which is more than a short call takes; the library has a recorder of its own, which is always on
    and which `rdmaccl flight` reads. TORCH_FR_BUFFER_SIZE=2000 brings PyTorch's back.
    """
    if not any(os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")):
        getattr(torch.distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("rdmaccl")


def register() -> None:
    """Makes `rdmaccl` a backend of torch.distributed; a second time changes nothing."""
    if "RDMACCL" not in torch.distributed.Backend._plugins:
        torch.distributed.Backend.register_backend("rdmaccl", _create, extended_api=True, devices=["cpu", "cuda"])
        _records_itself()


@atexit.register
def _end() -> None:
    """Shuts down the groups that the program has not destroyed: none of their threads may outlive the interpreter."""
    fails = getattr(sys, "last_value", None) is not None
    late = _module.shut_down_all(timedelta(0) if fails else _GRACE)
    if late and not fails:
        warnings.warn(
            f"rdmaccl: the program ends while calls of its process groups ({', '.join(late)}) are not over; they are aborted, here "
            "and on the other ranks. Wait for them, and call torch.distributed.destroy_process_group()",
            RuntimeWarning,
            stacklevel=1,
        )


register()

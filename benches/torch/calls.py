"""Blocking all-reduces beside gloo and the C ABI, in the same processes, in turns."""

import ctypes
import statistics
import subprocess
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import memory
import turns

HERE = Path(__file__).resolve().parent
# Seconds of one measurement of one backend at one size.
SLICE = 0.05


def compile_loop(folder: Path) -> Path:
    """The loop in C over the library that the installed package carries."""
    import rdmaccl

    package, made = Path(rdmaccl.__file__).parent, folder / "loop.so"
    library = package / "lib" / "librdmaccl.so.0"
    flags = ["-O2", "-shared", "-fPIC", f"-I{package / 'include'}", f"-Wl,-rpath,{library.parent}"]
    subprocess.run(["cc", *flags, str(HERE / "loop.c"), str(library), "-o", str(made)], check=True)
    return made


class Loop:
    """A communicator of its own on the C ABI."""

    def __init__(self, file: Path, rank: int, ranks: int, store: dist.Store) -> None:
        self.c = ctypes.CDLL(str(file))
        self.c.all_reduce.restype = ctypes.c_double
        self.c.all_reduce.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        identity = ctypes.create_string_buffer(self.c.id_bytes())
        if rank == 0:
            self._check(self.c.make_id(identity))
            store.set("loop", identity.raw.hex())
        identity.raw = bytes.fromhex(store.get("loop").decode())
        self._check(self.c.join(ranks, identity, rank))

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"the C ABI returned {code}")

    def seconds(self, data: torch.Tensor, calls: int) -> float:
        found = self.c.all_reduce(data.data_ptr(), data.numel(), calls)
        if found < 0:
            raise RuntimeError("cclAllReduce failed")
        return found


def measure(groups: dict[str, dist.ProcessGroup], loop: Loop | None, sizes: list[int], repeats: int) -> list[dict]:
    """Per size and contender the median of the repeats, in microseconds per call."""
    rows = []
    # The first size twice, for the first time is over before every rank has found its core.
    for size in [sizes[0], *sizes]:
        contenders = {}
        for name, group in groups.items():
            with memory.of(name):
                data = torch.zeros(max(1, size // 4))
            contenders[name] = partial(turns.seconds, partial(dist.all_reduce, data, group=group))
        if loop:
            data = torch.zeros(max(1, size // 4))
            contenders["C"] = lambda calls: loop.seconds(data, calls)
        rows.append({"bytes": size, **turns.medians(contenders, SLICE, repeats)})
    return rows[1:]


def own_share(calls: int = 20000) -> float:
    """Microseconds of a `dist.all_reduce` that does nothing: PyTorch's own, by its `fake` backend, in one process."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    group = dist.new_group([dist.get_rank()], backend="fake", use_local_synchronization=True)
    data = torch.zeros(2)
    call = partial(dist.all_reduce, data, group=group)
    return statistics.median(turns.seconds(call, calls // 5) for _ in range(5)) * 1e6

"""The library that this package carries, by ctypes."""

import ctypes
import functools
import json
from pathlib import Path
from typing import Any

# Where the backend finds it too.
PATH = Path(__file__).parent / "lib" / "librdmaccl.so.0"


@functools.cache
def load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(PATH))
    handle = ctypes.c_void_p
    library.cclGetVersion.argtypes = [ctypes.POINTER(ctypes.c_int)]
    library.cclGetLastError.argtypes = [handle]
    library.cclGetLastError.restype = ctypes.c_char_p
    library.cclCommInitAll.argtypes = [ctypes.POINTER(handle), ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    library.cclCommDescribe.argtypes = [handle]
    library.cclCommDescribe.restype = ctypes.c_char_p
    library.cclCommAbort.argtypes = [handle]
    return library


def _check(result: int) -> None:
    if result != 0:
        text: bytes = load().cclGetLastError(None)
        raise RuntimeError(text.decode(errors="replace"))


def version() -> str:
    """The library's version, `major.minor.patch`."""
    number = ctypes.c_int()
    _check(load().cclGetVersion(ctypes.byref(number)))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def _described() -> dict[str, Any]:
    """What two ranks of this process say of the way from one to the other."""
    library, ranks = load(), (ctypes.c_void_p * 2)()
    _check(library.cclCommInitAll(ranks, 2, None))
    try:
        text: bytes | None = library.cclCommDescribe(ranks[0])
        _check(0 if text is not None else 1)
        return json.loads(text or b"{}")
    finally:
        for rank in ranks:
            library.cclCommAbort(rank)


def info() -> dict[str, Any]:
    """What there is on this host: the library, its RDMA devices, and which transport reaches a rank here, and why that one.

    Two ranks of this process meet for it, so a setting that is wrong, or a host on which nothing works, is an error here.
    """
    folder = Path("/sys/class/infiniband")
    return {
        "version": version(),
        "library": str(PATH),
        "rdma_devices": sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else [],
        "communicator": _described(),
    }

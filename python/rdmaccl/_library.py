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
    library.cclGetVersion.argtypes = [ctypes.POINTER(ctypes.c_int)]
    library.cclGetLastError.argtypes = [ctypes.c_void_p]
    library.cclGetLastError.restype = ctypes.c_char_p
    library.cclGetInfo.restype = ctypes.c_char_p
    return library


def _words() -> str:
    text: bytes = load().cclGetLastError(None)
    return text.decode(errors="replace")


def version() -> str:
    """The library's version, `major.minor.patch`."""
    number = ctypes.c_int()
    if load().cclGetVersion(ctypes.byref(number)) != 0:
        raise RuntimeError(_words())
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def info() -> dict[str, Any]:
    """What the library finds on this host: its devices and transports, and why those it would not use are not used."""
    text: bytes | None = load().cclGetInfo()
    if text is None:
        raise RuntimeError(_words())
    return json.loads(text)

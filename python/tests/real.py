"""A real CUDA device in the place of the fake ones: the same few things that tests ask of either."""

import contextlib
import ctypes
from collections.abc import Iterator

import torch

# What `cuStreamWaitValue32` compares by: the number there is as great as the one that is waited for, or greater.
AT_LEAST = 0


class Gate:
    """Holds the stream that is current when it is closed, until it is opened: the device waits for a number in pinned memory."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.number = torch.zeros(1, dtype=torch.int32, device="cpu").pin_memory()

    def hold(self) -> None:
        stream = torch.cuda.current_stream(self.device).cuda_stream
        call = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        error = call(ctypes.c_void_p(stream), ctypes.c_uint64(self.number.data_ptr()), ctypes.c_uint32(1), ctypes.c_uint(AT_LEAST))
        if error != 0:
            raise RuntimeError(f"cuStreamWaitValue32: error {error}")

    def open(self) -> None:
        self.number[0] = 1


class Real:
    """PyTorch's own devices and streams; stream 0 is the default one."""

    Gate = Gate

    def new_stream(self, device: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(device)

    @contextlib.contextmanager
    def on_stream(self, stream: "torch.cuda.Stream | int", device: int = 0) -> Iterator[None]:
        """Operators on the device go to this stream."""
        with torch.cuda.stream(torch.cuda.default_stream(device) if isinstance(stream, int) else stream):
            yield

    def synchronize(self, device: int) -> None:
        torch.cuda.current_stream(device).synchronize()

    def is_idle(self, device: int) -> bool:
        return torch.cuda.current_stream(device).query()

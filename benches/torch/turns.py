"""Contenders measured in turns."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def seconds(call: Callable[[], object], calls: int) -> float:
    """Of one of so many calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def medians(contenders: dict[str, Callable[[int], float]], slice_: float, repeats: int) -> dict[str, float]:
    """In microseconds per call, of contenders that make so many calls and return the seconds of one. Each turn takes about `slice_` seconds."""
    calls = {name: _calls(contender, slice_) for name, contender in contenders.items()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            dist.barrier()
            found[name].append(contender(calls[name]))
    return {name: statistics.median(all_) * 1e6 for name, all_ in found.items()}


def _calls(contender: Callable[[int], float], slice_: float) -> int:
    """How many fill the slice; rank 0 says, for all must make as many."""
    contender(2)
    chosen = torch.tensor([max(2, min(5000, int(slice_ / contender(3))))])
    dist.broadcast(chosen, 0)
    return int(chosen)

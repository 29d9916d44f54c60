"""Steps of DistributedDataParallel: what communication adds to a step, and how much of it lies beside computation."""

import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import memory

WIDTH, LAYERS, BATCH = 512, 6, 32


def _model(group: dist.ProcessGroup) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return DistributedDataParallel(nn.Sequential(*layers), process_group=group, bucket_cap_mb=1)


def _silent(model: DistributedDataParallel) -> DistributedDataParallel:
    """Has a model fill its buckets as ever and send none of them."""

    def unsent(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, unsent)
    return model


def _step(model: DistributedDataParallel, data: torch.Tensor) -> None:
    model(data).square().mean().backward()


def _seconds(model: DistributedDataParallel, data: torch.Tensor, steps: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        _step(model, data)
    return (time.perf_counter() - start) / steps


def measure(groups: dict[str, dist.ProcessGroup], repeats: int, steps: int) -> dict:
    """Milliseconds of a step, of the same where DDP does all but to communicate, and the difference; medians."""
    data = torch.randn(BATCH, WIDTH)
    pairs = {}
    for name, group in groups.items():
        # The first steps make the buckets that stay.
        with memory.of(name):
            pairs[name] = (_model(group), _silent(_model(group)))
            for model in pairs[name]:
                _seconds(model, data, 3)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
    for _ in range(repeats):
        for name, (model, silent) in pairs.items():
            # In turns, for the machine is not the same at all times.
            found[name].append((_seconds(model, data, steps), _seconds(silent, data, steps)))
    result = {}
    for name, times in found.items():
        whole, alone = (statistics.median(of) * 1e3 for of in zip(*times))
        communication = statistics.median(with_ - without for with_, without in times) * 1e3
        result[name] = {"step": whole, "alone": alone, "communication": communication}
    some = next(iter(pairs.values()))[0]
    result["megabytes"] = sum(p.numel() for p in some.parameters()) * 4 / 1e6
    return result


def overlap(group: dist.ProcessGroup, name: str, trace: Path | None) -> float:
    """The share of the all-reduces' time in which the backward pass computes; the trace is for chrome://tracing."""
    data = torch.randn(BATCH, WIDTH)
    with memory.of(name):
        model = _model(group)
        for _ in range(3):
            _step(model, data)
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(10):
            _step(model, data)
    if trace:
        profile.export_chrome_trace(str(trace))
    events = profile.events()
    span = lambda event: (event.time_range.start, event.time_range.end)  # noqa: E731
    communication = [span(event) for event in events if event.name.endswith(":all_reduce")]
    computation = _union([span(event) for event in events if event.name in ("aten::mm", "aten::addmm")])
    beside = sum(max(0, min(end, e) - max(start, s)) for start, end in communication for s, e in computation)
    total = sum(end - start for start, end in communication)
    return beside / total if total else 0.0


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined

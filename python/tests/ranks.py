"""What the conformance tests share: ranks that stay for a whole class, tensors of every kind, and calls in every manner.

Inputs are small whole numbers that every rank can compute for all the others, so that expected results are plain
expressions, and exact in every type and every order of summation: comparisons are for equal elements.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

from harness import Job, Outcome, run_case

WORLD = 4

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOATS8 = [torch.float8_e4m3fn, torch.float8_e5m2]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
TYPES = [*FLOATS, *FLOATS8, *SIGNED, *UNSIGNED, torch.bool, *COMPLEX]
# What gloo has no word for; the tests leave it out there.
BEYOND_GLOO = [*FLOATS8, torch.int16, *UNSIGNED[1:]]

SHAPES = [(), (1,), (7,), (0,), (3, 5), (2, 0, 3), (1025,), (65537,)]


class Ranks(common_distributed.MultiProcContinuousTest):
    """Four ranks of one group, for all tests of the class."""

    world_size = WORLD
    backend = "rdmaccl"

    @classmethod
    def backend_str(cls) -> str:
        return cls.backend

    @property
    def on_gloo(self) -> bool:
        return self.backend == "gloo"

    def beyond_gloo(self, why: str) -> None:
        """Leaves a test out on gloo."""
        if self.on_gloo:
            self.skipTest(f"gloo {why}")

    @property
    def types(self) -> list[torch.dtype]:
        return [dtype for dtype in TYPES if not (self.on_gloo and dtype in BEYOND_GLOO)]

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(WORLD) if rank != self.rank]

    def same(self, found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
        """Shape, type and every element are equal."""
        self.assertEqual((found.shape, found.dtype), (expected.shape, expected.dtype), msg=f"{what}: shape or type")
        found, expected = found.cpu(), expected.cpu()
        equal = plain(found) == plain(expected)
        if not bool(equal.all()):
            at = int((~equal).flatten().nonzero()[0])
            self.fail(
                f"{what}: rank {self.rank} has {plain(found).flatten()[at]} at element {at} of {found.numel()}, "
                f"expected {plain(expected).flatten()[at]}"
            )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type that has arithmetic and comparisons everywhere."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    if tensor.dtype == torch.bool or not tensor.dtype.is_floating_point:
        return tensor.to(torch.int64)
    return tensor.to(torch.float64)


def tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype, least: int = 0, most: int = 2) -> torch.Tensor:
    """Whole numbers that depend on the rank and on the place."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = (torch.arange(count) * 7 + rank * 3 + torch.arange(count) // 5) % (most - least + 1) + least
    if dtype.is_complex:
        numbers = torch.complex(numbers.double(), (numbers + 1).double() * (rank + 1))
    return numbers.to(dtype).reshape(shape)


def layouts(source: torch.Tensor, gaps: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor in memory in several manners: as it is, with gaps, from the middle, with its axes exchanged."""
    yield "contiguous", source.clone()
    if source.dim() == 0 or source.numel() == 0 or not gaps:
        return
    wide = torch.zeros((*source.shape, 2), dtype=source.dtype)[..., 0]
    wide.copy_(source)
    yield "with gaps", wide
    middle = torch.zeros(source.numel() + 6, dtype=source.dtype)[3:-3].view(source.shape)
    middle.copy_(source)
    yield "from the middle", middle
    if source.dim() > 1:
        yield "transposed", source.transpose(0, 1).contiguous().transpose(0, 1)


def manners() -> list[Callable]:
    """Calls a collective blocking, waits for it at once, and waits for its future."""

    def blocking(collective: Callable, *arguments: object, **named: object) -> None:
        collective(*arguments, **named)

    def waiting(collective: Callable, *arguments: object, **named: object) -> None:
        collective(*arguments, async_op=True, **named).wait()

    def by_future(collective: Callable, *arguments: object, **named: object) -> None:
        collective(*arguments, async_op=True, **named).get_future().wait()

    return [blocking, waiting, by_future]


def every(*lists: list) -> Iterator[tuple]:
    return itertools.product(*lists)


def job(case: type[Ranks], backend: str, names: list[str]) -> Job:
    """Runs the tests of a class, or the named ones; none of ours may be skipped."""
    own = [name for name in sorted(dir(case)) if name.startswith("test_") and (not names or name in names)]

    def run() -> list[Outcome]:
        torch.multiprocessing.set_start_method("fork", force=True)
        common_distributed.TIMEOUT_DEFAULT = 60
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "OFF"
        dist.set_debug_level_from_env()
        case.backend = backend
        case.setUpClass()
        outcomes = run_case(case, own)
        case.tearDownClass()
        for outcome in outcomes:
            if outcome.status == "skipped" and not outcome.text.startswith("gloo"):
                outcome.status = "failed"
        return outcomes

    return Job(case.__name__, run, 150)

"""CUDA tensors without a GPU: `python python/tests device`.

The tests of collectives and transfers again, on tensors of the fake devices; each collective against the same call on CPU tensors, bit
for bit; streams; what goes wrong; and training.
"""

import os

import torch
import torch.distributed as dist

import device_failures
from fake import Fake
from groups import Functional, Works
from harness import Job, Outcome, run_jobs
from moves import Moves
from ranks import FLOATS, FLOATS8, TYPES, WORLD, Ranks, job
from reductions import Reductions
from streams import Streams
from transfers import Transfers

# Work on streams waits for random times up to this, in microseconds.
DELAY = "delay 7 100"

# Each type is in `Bits`.
SOME_TYPES = [torch.bfloat16, torch.bool]

# What is another thing on a device.
LEFT_OUT = {
    "test_all_reduce_of_16_mib": "`Bits` has a long one",
    "test_sparse": "all_reduce of sparse tensors is for CPU tensors",
    "test_a_wait_has_a_timeout": "the first call on a device meets the other ranks; `Streams` has another test of it",
    "test_a_call_is_complete_after_its_wait": "a wait is one of the stream",
}


class CudaReductions(Reductions):
    types = SOME_TYPES

    def operators(self, dtype: torch.dtype) -> list:
        """The others are in `Bits`."""
        return [dist.ReduceOp.SUM]


class CudaMoves(Moves):
    types = SOME_TYPES


class CudaTransfers(Transfers):
    pass


class CudaFunctional(Functional):
    pass


class CudaWorks(Works):
    pass


class Bits(Ranks):
    """Every collective and type on both kinds of tensors of one group."""

    def noise(self, dtype: torch.dtype, count: int, salt: int) -> torch.Tensor:
        """Numbers whose sums depend on their order, and every value of small types but those that are no number."""
        generator = torch.Generator().manual_seed(1000 * salt + self.rank)
        if dtype == torch.bool:
            return torch.randint(0, 2, (count,), generator=generator).bool()
        if dtype.is_complex or dtype in (*FLOATS, *FLOATS8):
            real = torch.randn(count, generator=generator, dtype=torch.float64)
            return (torch.complex(real, real.flip(0)) if dtype.is_complex else real).to(dtype)
        return torch.randint(0, 120, (count,), generator=generator).to(dtype)

    def calls(self, dtype: torch.dtype, n: int) -> dict:
        """By name: the elements that go in and come out, and the call."""
        root, mine = 1, self.rank == 1
        op = dist.ReduceOp.SUM if dtype != torch.bool else dist.ReduceOp.MAX
        uneven = [n + peer for peer in range(WORLD)]
        received = [n + self.rank] * WORLD

        def in_place(call, *arguments):
            return lambda x, out: call(out.copy_(x), *arguments)

        reductions = {
            "all_reduce": (n, n, in_place(dist.all_reduce, op)),
            "reduce": (n, n, lambda x, out: dist.reduce(out.copy_(x) if mine else x.clone(), root, op)),
            "reduce_scatter_tensor": (n * WORLD, n, lambda x, out: dist.reduce_scatter_tensor(out, x, op)),
            "reduce_scatter": (n * WORLD, n, lambda x, out: dist.reduce_scatter(out, list(x.chunk(WORLD)), op)),
        }
        moves = {
            "broadcast": (n, n, in_place(dist.broadcast, root)),
            "all_gather_into_tensor": (n, n * WORLD, lambda x, out: dist.all_gather_into_tensor(out, x)),
            "all_gather": (n, n * WORLD, lambda x, out: dist.all_gather(list(out.chunk(WORLD)), x)),
            "all_to_all_single": (n * WORLD, n * WORLD, lambda x, out: dist.all_to_all_single(out, x)),
            "all_to_all_single, uneven": (sum(uneven), sum(received), lambda x, out: dist.all_to_all_single(out, x, received, uneven)),
            "all_to_all": (sum(uneven), sum(received), lambda x, out: dist.all_to_all(list(out.split(received)), list(x.split(uneven)))),
            "gather": (n, n * WORLD, lambda x, out: dist.gather(x, list(out.chunk(WORLD)) if mine else None, root)),
            "scatter": (n * WORLD, n, lambda x, out: dist.scatter(out, list(x.chunk(WORLD)) if mine else None, root)),
        }
        return moves if dtype == torch.uint32 or dtype == torch.uint64 else reductions | moves

    def test_every_collective_and_type(self) -> None:
        for place, dtype in enumerate(TYPES):
            for name, (inputs, outputs, call) in self.calls(dtype, 37).items():
                x, before = self.noise(dtype, inputs, place), self.noise(dtype, outputs, 99)
                expected, found = before.clone(), before.to("cuda:0")
                call(x, expected)
                call(x.to("cuda:0"), found)
                self.bits(found, expected, (name, dtype))

    def bits(self, found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
        same = torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
        self.assertTrue(same, msg=f"{what}: other bits than on the CPU")

    def test_operators(self) -> None:
        operators = [dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        operators.append(dist._make_nccl_premul_sum(0.3))
        operators.append(dist._make_nccl_premul_sum(torch.tensor(0.7, device="cuda:0")))
        for place, op in enumerate(operators):
            expected = self.noise(torch.float32, 1001, place)
            found = expected.to("cuda:0")
            dist.all_reduce(expected, op)
            dist.all_reduce(found, op)
            self.bits(found, expected, op)

    def test_long_ones(self) -> None:
        """Longer than a piece of the library's."""
        expected = self.noise(torch.float32, 3_000_001, 5)
        found = expected.to("cuda:0")
        dist.all_reduce(expected)
        dist.all_reduce(found)
        self.bits(found, expected, "all_reduce")


def on_cuda(made: Job, seconds: float = 150) -> Job:
    """A job with the fake devices, whose tensors are on the first one unless it says otherwise."""

    def run() -> list[Outcome]:
        Streams.fake = Fake(DELAY)
        torch.set_default_device("cuda:0")
        return made.run()

    return Job(made.name, run, seconds)


def by_name(made: Job) -> Job:
    def run() -> list[Outcome]:
        Streams.fake = Fake(DELAY)
        return made.run()

    return Job(made.name, run, 150)


def wanted(case: type[Ranks], names: list[str]) -> list[str]:
    """The tests of a class that hold here."""
    every = [name for name in dir(case) if name.startswith("test_") and name not in LEFT_OUT]
    return [name for name in every if not names or name in names] or ["none"]


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    if backend != "rdmaccl":
        return [Outcome("device", "skipped", f"{backend} has calls on host memory here")]
    import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.

    # Builds what is missing, once.
    Fake.prepare()
    again = [CudaMoves, CudaReductions, CudaTransfers, CudaFunctional, CudaWorks]
    jobs = [on_cuda(job(case, backend, wanted(case, names))) for case in again]
    jobs += [by_name(job(case, backend, names)) for case in (Bits, Streams)]
    found = run_jobs(jobs, max(1, (os.cpu_count() or 2) // 2), 420)
    return found + device_failures.outcomes(backend, names)

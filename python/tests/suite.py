"""PyTorch's own tests of a process-group backend, from the installed wheel, on the backend that is named.

The tests are `DistributedTest._DistTestBase`; its decorators skip what they believe a backend cannot do by the
backend's name. They are shown "gloo" while the class is read, and for the all_to_all tests, which they give to MPI
only, "mpi"; the tests then run on the named backend, as they are but for one word (`_logs_of`).

What gloo executes is recorded in suite-gloo.txt, by `python python/tests suite --record`. On another backend every
test of that list, and the all_to_all ones, must be executed and pass; EXCEPTIONS holds what cannot, with its reason.
"""

import importlib
import os
import sys
import unittest.mock
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal import common_distributed

from harness import Job, Outcome, run_case, run_jobs

RECORD = Path(__file__).with_name("suite-gloo.txt")
MODULE = "torch.testing._internal.distributed.distributed_test"
NEEDS_EIGHT = common_distributed.TEST_SKIPS["small_worldsize"].message

# What gloo executes and another backend need not: the reason of each is printed.
EXCEPTIONS: dict[str, str] = {}

# Run once more with every call checked by PyTorch's own wrapper (TORCH_DISTRIBUTED_DEBUG=DETAIL).
DETAIL = [
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallel_requires_grad",
    "test_all_gather",
    "test_all_reduce_sum",
    "test_all_to_all_single_unequal_split",
    "test_barrier",
    "test_broadcast",
    "test_ddp_create_graph",
    "test_isend",
    "test_reduce_max",
    "test_scatter",
    "test_send_recv_any_source",
]

# The longest of them takes a quarter of it here.
SECONDS_EACH = 120
SECONDS_ALL = 900


def outcomes(backend: str, names: list[str], record: bool) -> list[Outcome]:
    """Runs the suite, or only the named tests of it; with what is missing as failures."""
    _register(backend)
    tests = _Tests(backend)
    wanted = [name for name in tests.all() if not names or name in names]
    four = tests.run(wanted, 4)
    eight = tests.run([o.name for o in four if o.text == NEEDS_EIGHT], 8)
    four = [o for o in four if o.text != NEEDS_EIGHT]
    detail = tests.run([name for name in DETAIL if not names or name in names], 4, "DETAIL")
    found = {"4": four, "8": eight, "4 DETAIL": detail}
    _summary(found)
    if record:
        _write(four, eight)
    return _judged(backend, names, found)


def _register(backend: str) -> None:
    if backend == "rdmaccl":
        import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.
    features = common_distributed.DistTestCases.backend_feature
    for feature in ("ddp", "subgroup", "plugin"):
        features[feature].add(backend)


class _Tests:
    """The suite's classes: one as gloo sees it, one as MPI does."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        # Asked for while the class is read, set again for each job.
        os.environ["WORLD_SIZE"] = "8"
        os.environ["TEMP_DIR"] = "/nonexistent"
        self.mpi = self._read("mpi")
        # Last: objects that tests pickle find their classes by the module's name.
        self.gloo = self._read("gloo")

    def _read(self, shown: str) -> type:
        os.environ["BACKEND"] = shown
        sys.modules.pop(MODULE, None)
        module = importlib.import_module(MODULE)
        os.environ["BACKEND"] = self.backend
        module.BACKEND = _Name(self.backend)
        for profiled in (module.PROFILING_SUPPORTED_BACKENDS, module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
            profiled.append(self.backend)

        backend = self.backend

        class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
            def setUp(self) -> None:
                super().setUp()
                # Forked processes have torch already: the suite is twenty times as fast.
                self._start_processes(torch.multiprocessing.get_context("fork").Process)

            def test_ddp_logging_data_cpu(self) -> None:
                with _logs_of(backend):
                    super().test_ddp_logging_data_cpu()

        return Suite

    def all(self) -> list[str]:
        return sorted(name for name in dir(self.gloo) if name.startswith("test_"))

    def _of(self, name: str) -> type:
        return self.mpi if is_all_to_all(name) else self.gloo

    def run(self, names: list[str], ranks: int, debug: str = "OFF") -> list[Outcome]:
        jobs = [Job(name, self._one(name, ranks, debug), SECONDS_EACH) for name in names]
        return run_jobs(jobs, max(2, (os.cpu_count() or 2) * 2 // ranks), SECONDS_ALL)

    def _one(self, name: str, ranks: int, debug: str):
        def run() -> list[Outcome]:
            os.environ["WORLD_SIZE"] = str(ranks)
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = debug
            dist.set_debug_level_from_env()
            # Before the harness's, so that ranks that hang say where.
            common_distributed.TIMEOUT_DEFAULT = SECONDS_EACH * 2 // 3
            common_distributed.TIMEOUT_OVERRIDE.clear()
            case = self._of(name)
            case.setUpClass()
            return run_case(case, [name])

        return run


class _Name(str):
    """A backend's name that is also equal to gloo's: what tests ask while they run, to learn that tensors are on the CPU."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _logs_of(backend: str):
    """PyTorch's log of DDP calls every backend that is not its own "custom"; the test wants the group's name there."""
    original = DistributedDataParallel._get_ddp_logging_data

    def renamed(model: DistributedDataParallel) -> dict:
        found = original(model)
        return {**found, "backend_name": backend} if found.get("backend_name") == "custom" else found

    return unittest.mock.patch.object(DistributedDataParallel, "_get_ddp_logging_data", renamed)


def is_all_to_all(name: str) -> bool:
    """The all_to_all tests on the CPU."""
    return name.startswith("test_all_to_all") and "cuda" not in name


def _key(ranks: str, name: str) -> str:
    return f"{ranks.partition(' ')[0]} {name}"


def _write(four: list[Outcome], eight: list[Outcome]) -> None:
    must = {"4": four, "8": eight}
    # Gloo fails some of the all_to_all tests, which PyTorch gives to MPI only: no uneven lists.
    lines = [
        _key(ranks, o.name)
        for ranks, those in must.items()
        for o in those
        if o.status == "passed" or (o.status == "failed" and is_all_to_all(o.name))
    ]
    version = torch.__version__.partition("+")[0]
    head = f"# Ranks and name of what gloo passes in PyTorch {version}'s suite, and all_to_all; written by suite.py.\n"
    RECORD.write_text(head + "\n".join(sorted(lines)) + "\n")
    print(f"{len(lines)} tests recorded in {RECORD}")


def expected() -> set[str]:
    """What must be executed and pass: what gloo does, and all_to_all."""
    return {line for line in RECORD.read_text().splitlines() if not line.startswith("#")}


def _summary(found: dict[str, list[Outcome]]) -> None:
    for ranks, those in found.items():
        executed = [o for o in those if o.status != "skipped"]
        passed = sum(o.status == "passed" for o in executed)
        took = sum(o.seconds for o in executed)
        print(f"{ranks} ranks: {len(executed)} executed, {passed} passed, {len(those) - len(executed)} skipped, {took:.0f} s in all")
    slowest = sorted((o for those in found.values() for o in those), key=lambda o: -o.seconds)[:5]
    print("slowest: " + ", ".join(f"{o.name} {o.seconds:.1f} s" for o in slowest))


def _judged(backend: str, names: list[str], found: dict[str, list[Outcome]]) -> list[Outcome]:
    """What was executed, and what had to be and was not. What the suite itself skips for want of GPUs is not counted."""
    judged, done, excepted = [], set(), {} if backend == "gloo" else EXCEPTIONS
    for ranks, those in found.items():
        for outcome in those:
            if outcome.status == "skipped":
                continue
            key = _key(ranks, outcome.name)
            done.add(key)
            if key not in excepted:
                judged.append(Outcome(f"{outcome.name}, {ranks} ranks", outcome.status, outcome.text, outcome.seconds))
            elif outcome.status == "failed":
                judged.append(_exception(key))
            else:
                judged.append(Outcome(key, "failed", "it passes, and is listed as an exception"))
    if backend != "gloo" and not names:
        skips = {_key(ranks, o.name): o.text for ranks, those in found.items() for o in those if o.status == "skipped"}
        for key in sorted(expected() - done):
            why = f"gloo executes it, {backend} does not: {skips.get(key, 'it is not there')}"
            judged.append(_exception(key) if key in excepted else Outcome(key, "failed", why))
    return judged


def _exception(key: str) -> Outcome:
    print(f"exception: {key}: {EXCEPTIONS[key]}")
    return Outcome(key, "skipped", EXCEPTIONS[key])

"""Every collective against a plain reference, on ranks that stay: `python python/tests conformance`."""

import os

from groups import Functional, Groups, Works
from harness import Outcome, run_jobs
from moves import Moves, Objects
from ranks import job
from reductions import Reductions
from transfers import Transfers

CLASSES = [Reductions, Moves, Objects, Transfers, Groups, Functional, Works]


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    if backend == "rdmaccl":
        import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.
    jobs = [job(case, backend, names) for case in CLASSES]
    return run_jobs(jobs, max(1, (os.cpu_count() or 2) // 2), 420)

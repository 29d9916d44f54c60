"""The tests of the PyTorch backend: `python python/tests [PART...] [--backend NAME] [--only TEST]`."""

import argparse
import os
import sys
import time

# Before torch is imported: ranks are forked from this process, and each has one core at the most.
os.environ["OMP_NUM_THREADS"] = "1"

import conformance
import device
import failures
import gpu
import guard
import lifecycle
import sharing
import suite
from harness import report

# Where there is a GPU, and only if it is named.
ON_REQUEST = {"gpu"}

PARTS = {
    "guard": lambda a: guard.outcomes(a.backend, a.only),
    "conformance": lambda a: conformance.outcomes(a.backend, a.only),
    "device": lambda a: device.outcomes(a.backend, a.only),
    "failures": lambda a: failures.outcomes(a.backend, a.only),
    "gpu": lambda a: gpu.outcomes(a.backend, a.only),
    "lifecycle": lambda a: lifecycle.outcomes(a.backend, a.only),
    "sharing": lambda a: sharing.outcomes(a.backend, a.only),
    "suite": lambda a: suite.outcomes(a.backend, a.only, a.record),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python python/tests", description="The tests of the PyTorch backend")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all but gpu by default")
    parser.add_argument("--backend", default="rdmaccl", help="the process-group backend to test")
    parser.add_argument("--only", action="append", default=[], metavar="TEST", help="only this test; may be repeated")
    parser.add_argument("--record", action="store_true", help="record what the suite executes on gloo")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}")
    if arguments.record and arguments.backend != "gloo":
        parser.error("--record needs --backend gloo")
    good = True
    for part in arguments.parts or [part for part in PARTS if part not in ON_REQUEST]:
        print(f"== {part} on {arguments.backend}", flush=True)
        start = time.monotonic()
        outcomes = PARTS[part](arguments)
        good &= report(part, outcomes, time.monotonic() - start)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs tests in processes of their own: bounded in time, several at once, and nothing of them stays.

Each job is a function that is called in a forked child, the leader of a new session; all that it starts is in that
session, is killed when the job's time is over, and must be gone when the job ends. torch is imported once, before the
first fork. What a job prints is kept and shown if something in it fails.

`report` ends with the lines of Rust's test harness, which `cargo xtask torch` counts.
"""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass, field

# Lines of a job's output that begin so are shown in any case.
MEASURED = "MEASURED "

# How much of a failed job's output is shown.
TAIL = 6000


@dataclass
class Outcome:
    """What came out of one test: `passed`, `failed` or `skipped`, and what there is to say."""

    name: str
    status: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class Job:
    """A function that returns outcomes, and how long it may take."""

    name: str
    run: Callable[[], list[Outcome]]
    seconds: float


@dataclass
class _Running:
    job: Job
    pid: int
    folder: str
    start: float = field(default_factory=time.monotonic)


def run_jobs(jobs: list[Job], at_once: int, seconds: float) -> list[Outcome]:
    """Runs all jobs, `at_once` at a time, and kills what is not over when the total time is."""
    end = time.monotonic() + seconds
    waiting, running, outcomes = list(jobs), [], []
    with tempfile.TemporaryDirectory(prefix="rdmaccl-tests-") as folder:
        while waiting or running:
            if time.monotonic() > end:
                late = [Outcome(job.name, "failed", f"not begun when the {seconds:.0f} s for all were over") for job in waiting]
                outcomes += late
                waiting = []
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), folder))
            for one in list(running):
                over = _finished(one, end)
                if over is not None:
                    outcomes += over
                    running.remove(one)
            time.sleep(0.01)
    return outcomes


def _start(job: Job, parent: str) -> _Running:
    folder = tempfile.mkdtemp(dir=parent)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(job, folder)
    return _Running(job, pid, folder)


def _child(job: Job, folder: str) -> None:
    """Never returns."""
    os.setsid()
    with open(os.path.join(folder, "output"), "wb", 0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # Files that PyTorch's tests leave behind go away with the folder.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    code = 1
    try:
        outcomes = job.run()
        with open(os.path.join(folder, "outcomes"), "wb") as file:
            pickle.dump(outcomes, file)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _finished(one: _Running, end: float) -> list[Outcome] | None:
    """The outcomes of a job that is over, with whatever was wrong about its end; None while it runs."""
    took = time.monotonic() - one.start
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    problem = None
    if pid == 0:
        if took < one.job.seconds and time.monotonic() < end:
            return None
        problem = f"no end after {took:.0f} s"
        _kill_session(one.pid)
        os.waitpid(one.pid, 0)
    elif status != 0:
        problem = f"ended with status {os.waitstatus_to_exitcode(status)}"
    left = _kill_session(one.pid)
    if left and problem is None:
        problem = f"left processes behind: {', '.join(left)}"
    outcomes = []
    if problem is None:
        with open(os.path.join(one.folder, "outcomes"), "rb") as file:
            outcomes = pickle.load(file)
    else:
        outcomes = [Outcome(one.job.name, "failed", problem, took)]
    with open(os.path.join(one.folder, "output"), errors="replace") as file:
        said = file.read()
    for line in said.splitlines():
        if line.startswith(MEASURED):
            print(f"{one.job.name}: {line.removeprefix(MEASURED)}", flush=True)
    if any(outcome.status == "failed" for outcome in outcomes):
        next(outcome for outcome in outcomes if outcome.status == "failed").text += f"\n{said[-TAIL:]}"
    return outcomes


def _kill_session(session: int) -> list[str]:
    """Kills the processes of a session and names those that were there; its leader is not counted."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                command, _, rest = file.read().rpartition(")")
            state, _, _, of = rest.split()[:4]
            if int(of) != session or state == "Z":
                continue
            os.kill(int(entry), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # It is gone already.
        if int(entry) != session:
            found.append(f"{entry} ({command.partition('(')[2]})")
    return found


def run_case(case: type[unittest.TestCase], names: list[str]) -> list[Outcome]:
    """Runs tests of a class in this process."""
    outcomes = []
    suite = unittest.TestSuite(case(name) for name in names)
    result = _Recorder(outcomes)
    suite.run(result)
    return outcomes


class _Recorder(unittest.TestResult):
    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes
        self.begun = time.monotonic()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.begun = time.monotonic()

    def _record(self, test: unittest.TestCase, status: str, text: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.outcomes.append(Outcome(name, status, text, time.monotonic() - self.begun))

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._record(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._record(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: tuple) -> None:
        self._record(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: tuple | None) -> None:
        if err is not None:
            self._record(test, "failed", f"{subtest}\n{self._exc_info_to_string(err, test)}")


def report(part: str, outcomes: list[Outcome], seconds: float) -> bool:
    """Prints what failed and the counts; whether all is well."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    counts = {status: sum(o.status == status for o in outcomes) for status in ("passed", "failed", "skipped")}
    if failed:
        print("\nfailures:\n")
        for outcome in failed:
            print(f"---- {part}::{outcome.name} stdout ----\n{outcome.text}\n")
        print("failures:")
        for outcome in failed:
            print(f"    {part}::{outcome.name}")
        print()
    word = "FAILED" if failed else "ok"
    print(
        f"test result: {word}. {counts['passed']} passed; {counts['failed']} failed; {counts['skipped']} ignored; "
        f"{part} finished in {seconds:.1f}s",
        flush=True,
    )
    return not failed

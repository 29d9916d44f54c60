"""Groups that come and go in the same processes leave nothing behind: `python python/tests lifecycle`."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

from failures import expect, initialise, on_ranks, scenarios, telling
from harness import Outcome

WORLD = 3
ROUNDS = 20
# The first rounds load and allocate what stays for good.
SETTLED = 5
# Of resident memory, over all the rounds that count: what the allocator and PyTorch's own records take.
GROWTH_MIB = 4.0


def footprint() -> tuple[int, int, float]:
    """Threads, descriptors, and MiB of resident memory of this process."""
    gc.collect()
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return int(status["Threads"]), len(os.listdir("/proc/self/fd")), int(status["VmRSS"].split()[0]) / 1024


def at_rest(threads: int, files: int) -> tuple[int, int, float]:
    """The footprint once it is no larger than this: what ends by itself has not ended yet where a machine is busy."""
    end = time.monotonic() + 20
    while True:
        found = footprint()
        if found[0] <= threads and found[1] <= files or time.monotonic() > end:
            return found
        time.sleep(0.05)


def one_round(backend: str, rank: int, file: str) -> None:
    initialise(backend, rank, WORLD, file)
    group = dist.new_group()
    big = torch.full((1 << 18,), float(rank))
    works = [dist.all_reduce(big, async_op=True), dist.all_reduce(torch.ones(8), group=group, async_op=True)]
    works.append(dist.isend(torch.full((10,), float(rank)), (rank + 1) % WORLD))
    found = torch.empty(10)
    dist.recv(found, (rank - 1) % WORLD)
    for work in works:
        work.wait()
    assert float(big[0]) == sum(range(WORLD)) and float(found[0]) == (rank - 1) % WORLD
    dist.barrier()
    dist.destroy_process_group()


def again_and_again(backend: str) -> None:
    with tempfile.TemporaryDirectory() as folder:

        def main(rank: int) -> list[tuple[int, int, float]]:
            found = []
            for number in range(ROUNDS):
                one_round(backend, rank, os.path.join(folder, f"store{number}"))
                found.append(footprint())
            threads, files, _ = found[SETTLED - 1]
            return [*found[:-1], at_rest(threads, files)]

        seen = on_ranks(WORLD, main)
    expect(len(seen) == WORLD, "all ranks came through", seen)
    for rank, rounds in seen.items():
        (threads, files, memory), last = rounds[SETTLED - 1], rounds[-1]
        print(
            f"MEASURED rank {rank}, rounds {SETTLED} and {ROUNDS}: {threads} and {last[0]} threads, "
            f"{files} and {last[1]} descriptors, {memory:.1f} and {last[2]:.1f} MiB"
        )
        expect(last[0] <= threads and last[1] <= files, f"threads or descriptors grow on rank {rank}", {rank: rounds})
        expect(last[2] - memory < GROWTH_MIB, f"memory grows on rank {rank}", {rank: rounds})


def abort_then_again(backend: str) -> None:
    """An aborted group, with a call that never ends, does not stand in the way of the next one."""

    with tempfile.TemporaryDirectory() as folder:

        def main(rank: int) -> str:
            initialise(backend, rank, WORLD, os.path.join(folder, "first"))
            dist.barrier()
            if rank != 1:
                dist.all_reduce(torch.ones(4), async_op=True)
            dist.distributed_c10d._abort_process_group()
            initialise(backend, rank, WORLD, os.path.join(folder, "second"))
            total = torch.ones(4)
            dist.all_reduce(total)
            dist.destroy_process_group()
            return f"sum {float(total[0])}"

        seen = on_ranks(WORLD, main)
    expect(seen == dict.fromkeys(range(WORLD), f"sum {float(WORLD)}"), "the second group works", seen)


def destroyed_by_its_own_work(backend: str) -> None:
    """A group that is destroyed by what its own thread calls back, after a transfer and after a collective."""

    def issue(kind: str, rank: int) -> dist.Work:
        if kind == "collective":
            return dist.all_reduce(torch.ones(4), async_op=True)
        data = torch.full((10,), float(rank))
        return dist.isend(data, 1) if rank == 0 else dist.irecv(data, 0)

    with tempfile.TemporaryDirectory() as folder:

        def main(rank: int) -> str:
            for kind in ("transfer", "collective"):
                initialise(backend, rank, 2, os.path.join(folder, kind))
                gone = threading.Event()
                future = issue(kind, rank).get_future()

                def end(_: torch.futures.Future) -> None:
                    dist.destroy_process_group()
                    gone.set()

                future.then(end)
                expect(gone.wait(20), f"the group is destroyed after a {kind}", rank)
            return "done"

        seen = on_ranks(2, main)
    expect(seen == {0: "done", 1: "done"}, "both ranks come through", seen)


def after_the_end(backend: str) -> None:
    """Calls on a group that was shut down say that it was, those that block and those that do not."""
    with tempfile.TemporaryDirectory() as folder:

        def main(rank: int) -> str:
            initialise(backend, rank, 2, os.path.join(folder, "store"))
            dist.barrier()
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).shutdown()
            told = [telling(lambda: dist.all_reduce(torch.ones(4), async_op=later)).text for later in (False, True)]
            told.append(telling(lambda: dist.send(torch.ones(4), 1 - rank)).text)
            return "; ".join(told)

        seen = on_ranks(2, main)
    expect(all(text.count("shut down") == 3 for text in seen.values()) and len(seen) == 2, "each call says it", seen)


def sent_before_the_end(backend: str) -> None:
    """What was sent before its sender's group was destroyed arrives, also where it is taken much later."""
    late = 2.0
    with tempfile.TemporaryDirectory() as folder:

        def main(rank: int) -> float:
            initialise(backend, rank, 2, os.path.join(folder, "store"))
            found = torch.empty(10)
            if rank == 0:
                # Short ones, of which the first opens the link.
                for value in (1.0, 2.0, 3.0):
                    dist.send(torch.full((10,), value), 1)
                start = time.monotonic()
                dist.destroy_process_group()
                return time.monotonic() - start
            dist.recv(found, 0)
            time.sleep(late)
            for value in (2.0, 3.0):
                dist.recv(found, 0)
                assert found.tolist() == [value] * 10, found
            dist.destroy_process_group()
            return late

        seen = on_ranks(2, main)
    expect(len(seen) == 2, "both ranks come through", seen)
    print(f"MEASURED sends that were taken {late:.1f} s later: their sender's group was destroyed within {seen[0]:.1f} s")
    expect(seen[0] < late + 10, "the sender goes when they were taken", seen)


# A whole interpreter, which ends as any program does.
PROGRAM = """
import os, sys, torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
from failures import initialise, telling
rank = {rank}
initialise({backend!r}, rank, 2, {file!r})
dist.all_reduce(torch.ones(4))
{rest}
"""

# Calls end while the interpreter does: enough of them, and one that nothing comes for. A forked child has none of them.
FORGETFUL = """
dist.new_group()
dist.irecv(torch.ones(4), 1 - rank)
dist.all_reduce(torch.ones(4), async_op=True).wait()
child = os.fork()
if child == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
for _ in range(200):
    dist.all_reduce(torch.ones(1 << 19), async_op=True).get_future().then(lambda _: None)
sys.exit(7)
"""

# Rank 0 ends in this way, while rank 1 stays away from its call until it is told.
DESERTER = """
if rank == 0:
    dist.all_reduce(torch.ones(4), async_op=True)
    {end}
sys.stdin.read()
print(telling(lambda: dist.all_reduce(torch.ones(4))).text)
dist.destroy_process_group()
"""


def programs(backend: str, folder: str, rest: str) -> list[subprocess.Popen[str]]:
    """Two ranks, whose programs go on in this way."""
    here, file = os.path.dirname(os.path.abspath(__file__)), os.path.join(folder, "store")
    texts = [PROGRAM.format(tests=here, backend=backend, rank=rank, file=file, rest=rest) for rank in range(2)]
    pipe = subprocess.PIPE
    return [subprocess.Popen([sys.executable, "-c", text], stdin=pipe, stdout=pipe, stderr=pipe, text=True) for text in texts]


def no_destroy(backend: str) -> None:
    """Programs that end without destroying their group, or waiting for it, end nevertheless, and as they say."""
    with tempfile.TemporaryDirectory() as folder:
        running = programs(backend, folder, FORGETFUL)
        said = {rank: process.communicate(timeout=60)[1] for rank, process in enumerate(running)}
    expect([process.returncode for process in running] == [7, 7], "every program ends with its code", said)


def no_wait(backend: str) -> None:
    """Who ends without waiting for a call that another rank has still to make ends all the same, and that rank learns of it."""
    for end, code, warns in (("sys.exit(7)", 7, True), ("raise SystemError()", 1, False)):
        with tempfile.TemporaryDirectory() as folder:
            deserter, other = programs(backend, folder, DESERTER.format(end=end))
            said = {0: deserter.communicate(timeout=60)[1], 1: other.communicate(timeout=60)[0]}
        expect(deserter.returncode == code and other.returncode == 0, f"{end}: both end as they say", said)
        expect(("they are aborted, here and on the other" in said[0]) == warns, f"{end}: whether it warns", said)
        expect("rank 0 has aborted" in said[1], f"{end}: the other rank learns of it", said)


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    of = {
        "twenty_groups_one_after_the_other": again_and_again,
        "abort_then_again": abort_then_again,
        "destroyed_by_its_own_work": destroyed_by_its_own_work,
        "after_the_end": after_the_end,
        "sent_before_the_end": sent_before_the_end,
        "end_without_destroy": no_destroy,
        "end_without_wait": no_wait,
    }
    return scenarios(backend, names, of)

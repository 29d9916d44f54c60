"""What goes wrong is told, on every rank, by name and in time: `python python/tests failures`.

Every scenario has processes of its own. Each rank reports what it has seen, and when; the clock is one for all.
"""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from harness import Job, Outcome, run_jobs

WORLD = 4
# How soon the others must know of a death: 2 s are promised, and printed; more is allowed where a machine is busy.
DEATH_SECONDS = 10.0
# How long ranks wait for one that never comes; none of the others comes so late, also where a machine is busy.
ABSENCE_SECONDS = 8


@dataclass
class Told:
    """What a rank raised, and when."""

    error: BaseException | None
    text: str
    at: float


def initialise(backend: str, rank: int, world: int, file: str, seconds: float = 60) -> None:
    store = dist.FileStore(file, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))


def meet(what: str, rank: int, ranks: range) -> None:
    """Waits in the store until all these ranks are here: calls that begin behind it begin at about the same time."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{what} {rank}", "")
    store.wait([f"{what} {other}" for other in ranks], timedelta(seconds=50))


def on_ranks(world: int, main: Callable[[int], object]) -> dict[int, object]:
    """Calls `main` in one process per rank; what each returned, without those that died."""
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes = []
    for rank in range(world):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(main, rank, there))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    found = {}
    for rank, pipe in enumerate(pipes):
        try:
            found[rank] = pipe.recv()
        except EOFError:
            continue  # It was killed.
    for process in processes:
        process.join()
    return found


def _rank(main: Callable[[int], object], rank: int, pipe: Connection) -> None:
    pipe.send(main(rank))
    pipe.close()
    # Without destructors: what the failure has left may not be in order, and is not what is tested.
    os._exit(0)


def telling(act: Callable[[], object]) -> Told:
    try:
        act()
    except (RuntimeError, ValueError) as error:
        kind = dist.DistBackendError(str(error)) if isinstance(error, dist.DistBackendError) else RuntimeError(str(error))
        return Told(kind, str(error), time.monotonic())
    return Told(None, "no error", time.monotonic())


def expect(condition: bool, what: str, told: dict[int, object]) -> None:
    if not condition:
        said = "\n".join(f"rank {rank}: {getattr(one, 'text', one)}" for rank, one in told.items())
        raise AssertionError(f"{what}\n{said}")


def show(told: dict[int, Told]) -> None:
    for rank, one in told.items():
        print(f"rank {rank}: {one.text.splitlines()[0]}")


def _train(rank: int, victim: int, die: Callable[[], None]) -> None:
    """Steps without end; the victim dies in the 20th, with its gradients half sent."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        loss = model(torch.randn(8, 256)).square().mean()
        if step == 20 and rank == victim:
            model.module[3].weight.register_hook(lambda _: die())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def death(backend: str, victim: int) -> None:
    """In mid-training: in the backward pass, while buckets travel."""
    with tempfile.TemporaryDirectory() as folder:
        when = os.path.join(folder, "when")

        def die() -> None:
            with open(when, "w") as file:
                file.write(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)

        def main(rank: int) -> Told:
            initialise(backend, rank, WORLD, os.path.join(folder, "store"))
            return telling(lambda: _train(rank, victim, die))

        told = on_ranks(WORLD, main)
        with open(when) as file:
            died = float(file.read())
    show(told)
    expect(sorted(told) == [rank for rank in range(WORLD) if rank != victim], "who is left", told)
    slowest = max(one.at for one in told.values()) - died
    print(f"MEASURED rank {victim} killed in training: the last of the others raised after {slowest * 1e3:.1f} ms")
    expect(slowest < DEATH_SECONDS, f"{slowest:.1f} s are too long", told)
    expect(all(f"rank {victim}" in one.text for one in told.values()), f"every error names rank {victim}", told)
    expect(all(isinstance(one.error, dist.DistBackendError) for one in told.values()), "they are DistBackendErrors", told)


def death_in_batches(backend: str) -> None:
    """Ranks exchange long messages around a ring, all at once; one dies."""
    with tempfile.TemporaryDirectory() as folder:
        when = os.path.join(folder, "when")

        def exchange(rank: int) -> None:
            sent, found = torch.full((1 << 20,), float(rank)), torch.empty(1 << 20)
            for turn in range(100_000):
                if turn == 20 and rank == 1:
                    with open(when, "w") as file:
                        file.write(str(time.monotonic()))
                    os.kill(os.getpid(), signal.SIGKILL)
                send = dist.P2POp(dist.isend, sent, (rank + 1) % WORLD)
                receive = dist.P2POp(dist.irecv, found, (rank - 1) % WORLD)
                for work in dist.batch_isend_irecv([send, receive]):
                    work.wait()

        def main(rank: int) -> Told:
            initialise(backend, rank, WORLD, os.path.join(folder, "store"), 20)
            return telling(lambda: exchange(rank))

        told = on_ranks(WORLD, main)
        with open(when) as file:
            died = float(file.read())
    show(told)
    expect(sorted(told) == [0, 2, 3], "who is left", told)
    neighbours = max(told[rank].at for rank in (0, 2)) - died
    print(f"MEASURED rank 1 killed between batches: its neighbours raised after {neighbours * 1e3:.1f} ms")
    expect(neighbours < DEATH_SECONDS, f"{neighbours:.1f} s are too long", told)
    named = [("send to rank 1 (", told[0].text), ("recv from rank 1 (", told[2].text)]
    expect(all(who in text for who, text in named), "they name rank 1", told)
    expect(told[3].error is not None, "the last one raises too", told)


def mismatch(backend: str, call: str) -> None:
    """Rank 1 comes with another shape: all ranks are told, and by name."""

    def main(rank: int) -> Told:
        initialise(backend, rank, WORLD, store)
        mine = torch.ones(5 if rank == 1 else 4)
        act = {
            "blocking": lambda: dist.all_reduce(mine),
            "async": lambda: dist.all_reduce(mine, async_op=True).wait(),
            "future": lambda: dist.all_reduce(mine, async_op=True).get_future().wait(),
        }[call]
        return telling(act)

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(WORLD, main)
    show(told)
    expect(len(told) == WORLD and all(one.error is not None for one in told.values()), "all ranks raise", told)
    expect(all("rank 1" in one.text for one in told.values()), "every error names rank 1", told)
    if call != "future":
        expect(all(isinstance(one.error, dist.DistBackendError) for one in told.values()), "they are DistBackendErrors", told)


def absence(backend: str, per_call: bool) -> None:
    """Rank 3 is there and never calls: the others' calls end at the group's timeout, or at their own."""

    def main(rank: int) -> Told:
        initialise(backend, rank, WORLD, store, 60 if per_call else ABSENCE_SECONDS)
        dist.barrier()
        if rank == 3:
            dist.distributed_c10d._get_default_store().wait(["done 0", "done 1", "done 2"], timedelta(seconds=50))
            return Told(None, "late", time.monotonic())
        meet("ready", rank, range(3))
        start = time.monotonic()
        if per_call:
            told = telling(lambda: dist.barrier(timeout=timedelta(seconds=ABSENCE_SECONDS)))
        else:
            told = telling(lambda: dist.all_reduce(torch.ones(3)))
        told.at -= start
        dist.distributed_c10d._get_default_store().set(f"done {rank}", "")
        return told

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(WORLD, main)
    show(told)
    del told[3]
    slowest = max(one.at for one in told.values())
    print(f"MEASURED a rank that never calls: the others raised {slowest:.2f} s after their call, of {ABSENCE_SECONDS} s allowed")
    expect(len(told) == 3 and all("rank 3" in one.text for one in told.values()), "every error names rank 3", told)


def absence_at_init(backend: str) -> None:
    """Rank 2 never comes to the first rendezvous."""

    def main(rank: int) -> Told:
        if rank == 2:
            return Told(None, "never came", 0)
        return telling(lambda: initialise(backend, rank, WORLD, store, ABSENCE_SECONDS) or dist.barrier())

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(WORLD, main)
    show(told)
    del told[2]
    expect(all(one.error is not None for one in told.values()), "all that came raise", told)
    expect("absent ranks: 2" in told[0].text, "rank 0's error names rank 2", told)


def monitored(backend: str) -> None:
    """Ranks 1 and 3 stay away from a monitored barrier: rank 0 names both."""

    def main(rank: int) -> Told:
        initialise(backend, rank, WORLD, store)
        dist.barrier()
        group_store = dist.distributed_c10d._get_default_store()
        told = Told(None, "stayed away", 0)
        if rank in (0, 2):
            told = telling(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True))
        if rank == 0:
            group_store.set("over", "")
        group_store.wait(["over"], timedelta(seconds=50))
        return told

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(WORLD, main)
    show(told)
    text = told[0].text
    expect(told[0].error is not None and "1" in text and "3" in text, "rank 0 names ranks 1 and 3", told)


def wrong_device(backend: str) -> None:
    """A tensor that is not in host memory: the error says so."""

    def main(rank: int) -> Told:
        initialise(backend, rank, 2, store)
        group = dist.distributed_c10d._get_default_group()
        return telling(lambda: group._get_backend(torch.device("cpu")).allreduce([torch.ones(3, device="meta")]).wait())

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(2, main)
    show(told)
    expect(all(one.error is not None and "meta" in one.text for one in told.values()), "the error names the device", told)


def short_sizes_differ(backend: str) -> None:
    """A short send is over when it is handed over. Of another size the receiver is told at once, the sender by one of its next sends; what
    it sends besides arrives."""

    def main(rank: int) -> Told:
        initialise(backend, rank, 2, store)
        group_store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            # The first opens the link.
            for value in (1.0, 2.0):
                dist.send(torch.full((4,), value), 1)
            told, sent = Told(None, "never told", 0), 0
            while told.error is None and sent < 100:
                told = telling(lambda: dist.send(torch.full((4,), 3.0), 1))
                sent += 1
            group_store.set("sent", str(sent))
            dist.send(torch.full((4,), 4.0), 1)
            return told
        found, long = torch.empty(4), torch.empty(5)
        dist.recv(found, 0)
        told = telling(lambda: dist.recv(long, 0))
        for _ in range(int(group_store.get("sent"))):
            dist.recv(found, 0)
            assert found.tolist() == [3.0] * 4, found
        dist.recv(found, 0)
        assert found.tolist() == [4.0] * 4, found
        return told

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        told = on_ranks(2, main)
    show(told)
    expect(len(told) == 2 and all("rank 0 sends 16 bytes to rank 1" in one.text for one in told.values()), "both are told", told)
    expect(all("a tensor of 20 bytes" in one.text for one in told.values()), "of both sizes", told)


SCENARIOS: dict[str, Callable[[str], None]] = {
    "rank_2_dies_in_training": lambda b: death(b, 2),
    "rank_0_dies_in_training": lambda b: death(b, 0),
    "rank_1_dies_between_batches": death_in_batches,
    "shapes_differ_blocking": lambda b: mismatch(b, "blocking"),
    "shapes_differ_async": lambda b: mismatch(b, "async"),
    "shapes_differ_future": lambda b: mismatch(b, "future"),
    "sizes_of_short_sends_differ": short_sizes_differ,
    "a_rank_never_calls": lambda b: absence(b, per_call=False),
    "a_rank_never_calls_and_the_call_has_a_timeout": lambda b: absence(b, per_call=True),
    "a_rank_never_comes_to_init": absence_at_init,
    "monitored_barrier_names_the_late": monitored,
    "a_tensor_on_another_device": wrong_device,
}


def scenarios(backend: str, names: list[str], of: dict[str, Callable[[str], None]]) -> list[Outcome]:
    """Runs scenarios one after the other, which may measure; shows what they did."""
    if backend == "rdmaccl":
        import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.

    def job(name: str) -> Job:
        def run() -> list[Outcome]:
            start = time.monotonic()
            try:
                of[name](backend)
            except AssertionError as problem:
                return [Outcome(name, "failed", str(problem), time.monotonic() - start)]
            return [Outcome(name, "passed", "", time.monotonic() - start)]

        return Job(name, run, 90)

    return run_jobs([job(name) for name in of if not names or name in names], 1, 400)


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    return scenarios(backend, names, SCENARIOS)

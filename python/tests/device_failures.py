"""What goes wrong with CUDA tensors is told, groups of them come and go, and nets train: part of `python python/tests device`."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from failures import ABSENCE_SECONDS, WORLD, Told, expect, initialise, meet, on_ranks, scenarios, show, telling
from fake import Fake
from harness import Outcome
from training import ddp

# How long a rank waits on its host for a call that goes wrong. Errors come much sooner.
PATIENCE = timedelta(seconds=40)
ROUNDS = 8
SETTLED = 3


def ends(work: dist.Work) -> None:
    """Waits on the host until it is over; raises what has gone wrong."""
    work.wait(PATIENCE)


def in_folder(main: Callable[[int, Fake, str], object], script: str = "") -> dict[int, object]:
    fake = Fake(script)
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(WORLD, lambda rank: main(rank, fake, os.path.join(folder, "store")))


def death(backend: str) -> None:
    """Rank 2 dies while the others' streams wait for it; they raise, and their streams run on."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file)
        x = torch.ones(1000, device="cuda:0")
        dist.all_reduce(x)
        fake.synchronize(0)
        dist.barrier()
        if rank == 2:
            os._exit(9)
        told = telling(lambda: ends(dist.all_reduce(x, async_op=True)))
        fake.synchronize(0)
        again = telling(lambda: ends(dist.all_reduce(x, async_op=True)))
        expect(again.error is not None, "the next call raises too", {rank: again})
        return told

    told = in_folder(main)
    show(told)
    expect(sorted(told) == [0, 1, 3], "who is left", told)
    expect(all("rank 2" in one.text for one in told.values()), "every error names rank 2", told)
    expect(all(isinstance(one.error, dist.DistBackendError) for one in told.values()), "they are DistBackendErrors", told)


def mismatch(backend: str) -> None:
    """Rank 1 comes with another shape: all are told, by a wait, by the exception, and by the next call."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file)
        work = dist.all_reduce(torch.ones(5 if rank == 1 else 4, device="cuda:0"), async_op=True)
        told = telling(lambda: ends(work))
        expect(work.exception() is not None and work.is_completed(), "the call has an exception", {rank: told})
        later = telling(lambda: (dist.all_reduce(torch.ones(4, device="cuda:0")), fake.synchronize(0)))
        expect(later.error is not None, "the next call raises", {rank: later})
        return told

    told = in_folder(main)
    show(told)
    expect(len(told) == WORLD and all("rank 1" in one.text for one in told.values()), "every error names rank 1", told)


def absence(backend: str) -> None:
    """Rank 3 never calls: the others' calls end at the group's timeout, on their streams, and tell it."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file, ABSENCE_SECONDS)
        x = torch.ones(4, device="cuda:0")
        dist.all_reduce(x)
        fake.synchronize(0)
        if rank == 3:
            dist.distributed_c10d._get_default_store().wait(["done 0", "done 1", "done 2"], timedelta(seconds=50))
            return Told(None, "late", time.monotonic())
        meet("ready", rank, range(3))
        told = telling(lambda: ends(dist.all_reduce(x, async_op=True)))
        dist.distributed_c10d._get_default_store().set(f"done {rank}", "")
        return told

    told = in_folder(main)
    show(told)
    del told[3]
    expect(len(told) == 3 and all("rank 3" in one.text for one in told.values()), "every error names rank 3", told)


def absence_at_first_call(backend: str) -> None:
    """Rank 3 never comes to the first call on a device, which makes the communicator; calls on host memory go on."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file, ABSENCE_SECONDS)
        told = Told(None, "stayed away", 0)
        if rank != 3:
            meet("ready", rank, range(3))
            told = telling(lambda: dist.all_reduce(torch.ones(4, device="cuda:0")))
        meet("done", rank, range(WORLD))
        host = torch.ones(4)
        dist.all_reduce(host)
        expect(float(host[0]) == WORLD, "the host's communicator works", {rank: told})
        return told

    told = in_folder(main)
    show(told)
    expect("3" in told[0].text, "rank 0's error names rank 3", told)
    expect(all(told[rank].error is not None for rank in range(3)), "all that called raise", told)


def spoiled(backend: str) -> None:
    """A copy goes wrong on rank 1's device: all ranks are told."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file)
        x = torch.ones(100, device="cuda:0")
        dist.all_reduce(x)
        fake.synchronize(0)
        dist.barrier()
        if rank == 1:
            fake.script("spoil code=700")
        return telling(lambda: ends(dist.all_reduce(x, async_op=True)))

    told = in_folder(main)
    show(told)
    expect(len(told) == WORLD and all(one.error is not None for one in told.values()), "all ranks raise", told)


def abort(backend: str) -> None:
    """While the streams wait for rank 0, which never calls, another thread aborts: they run on, and waits raise."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        initialise(backend, rank, WORLD, file)
        x = torch.ones(100, device="cuda:0")
        dist.all_reduce(x)
        fake.synchronize(0)
        store = dist.distributed_c10d._get_default_store()
        told = Told(None, "aborted", 0)
        if rank != 0:
            work = dist.all_reduce(x, async_op=True)
            store.set(f"called {rank}", "")
            told = telling(lambda: ends(work))
            fake.synchronize(0)
        else:
            store.wait(["called 1", "called 2", "called 3"], timedelta(seconds=50))
            group = dist.distributed_c10d._get_default_group()
            thread = threading.Thread(target=group._get_backend(torch.device("cuda")).abort)
            thread.start()
            thread.join()
        return told

    told = in_folder(main)
    show(told)
    expect(len(told) == WORLD and all(told[rank].error is not None for rank in (1, 2, 3)), "the others raise", told)


def one_round(backend: str, rank: int, fake: Fake, file: str, name: str) -> int:
    """What the fake driver has afterwards."""
    dist.init_process_group(
        name, store=dist.FileStore(file, WORLD), rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    pair = dist.new_group([0, 1]) if rank < 2 else dist.new_group([0, 1]) and None
    total = float(sum(range(WORLD)))
    for device in (rank % 2, 1 - rank % 2):
        x = torch.full((1 << 16,), float(rank), device=f"cuda:{device}")
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(torch.ones(8), async_op=True)]
        if rank < 2:
            works.append(dist.all_reduce(torch.ones(8, device=f"cuda:{device}"), group=pair, async_op=True))
        # The last one is not waited for: leaving does.
        works[0].wait()
        found = float(x[0])
        assert found == total, f"{found} is not {total}"
    dist.barrier(device_ids=[rank % 2])
    dist.destroy_process_group()
    del works, x
    for device in (0, 1):
        fake.synchronize(device)
    return fake.live()


def again_and_again(backend: str) -> None:
    """Groups of both kinds of tensors, under both names, made and destroyed: the driver has no more in the end."""

    def main(rank: int, fake: Fake, file: str) -> list[int]:
        names = [backend, f"cpu:{backend},cuda:{backend}"]
        return [one_round(backend, rank, fake, f"{file}{number}", names[number % 2]) for number in range(ROUNDS)]

    seen = in_folder(main, "delay 3 100")
    for rank, counts in seen.items():
        print(f"rank {rank}: objects of the driver after each round: {counts}")
    expect(len(seen) == WORLD, "all ranks came through", seen)
    # One more or less is memory that was not free yet when the next was asked for.
    stays = max(counts[-1] - counts[SETTLED - 1] for counts in seen.values())
    expect(stays < ROUNDS - SETTLED, "something of every round stays", seen)


def bound(backend: str) -> None:
    """A group that is bound to a device, another one on each rank, has its barriers there; so has the group that is split from it."""

    def main(rank: int, fake: Fake, file: str) -> Told:
        device = torch.device("cuda", rank % 2)
        store = dist.FileStore(file, WORLD)
        dist.init_process_group(backend, store=store, rank=rank, world_size=WORLD, device_id=device)
        fake.set_device(device.index)
        gate = fake.Gate(device.index)
        if rank == 3:
            gate.hold()
        barrier = dist.barrier(async_op=True)
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        expect(not barrier.is_completed(), "the barrier waits for rank 3's stream", {})
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        gate.open()
        barrier.wait()
        expect(barrier.is_completed(), "the barrier is over after its wait", {})
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        x = torch.ones(4, device=device)
        dist.all_reduce(x, group=half)
        dist.all_reduce(x)
        found = x.tolist()
        dist.destroy_process_group()
        return Told(None, str(found), 0)

    told = in_folder(main, "delay 4 100")
    show(told)
    expect(len(told) == WORLD and all(one.text == str([8.0] * 4) for one in told.values()), "sums of sums", told)


SCENARIOS: dict[str, Callable[[str], None]] = {
    "a_rank_dies_under_cuda_calls": death,
    "cuda_shapes_differ": mismatch,
    "a_rank_never_makes_a_cuda_call": absence,
    "a_rank_never_makes_the_first_cuda_call": absence_at_first_call,
    "a_device_fails": spoiled,
    "cuda_calls_are_aborted": abort,
    "groups_with_cuda_tensors_again_and_again": again_and_again,
    "a_group_that_is_bound_to_a_device": bound,
    "ddp_on_cuda_tensors": ddp,
}


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    return scenarios(backend, names, SCENARIOS)

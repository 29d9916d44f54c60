"""CPU tensors in memory that ranks map: `python python/tests sharing`."""

import os
import random
import resource
import tempfile
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist

from failures import expect, initialise, on_ranks, scenarios
from harness import Outcome
from ranks import manners, tensor

WORLD = 3
LEAST = 4096


def shared_memory(least: int = LEAST):
    from rdmaccl.torch import shared_memory

    return shared_memory(least)


def shared_bytes() -> tuple[int, int]:
    from rdmaccl.torch import shared_bytes

    return shared_bytes()


def mappings() -> list[range]:
    """The shared memory that this process has mapped: its own, and peers'."""
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            if "/memfd:rdmaccl-buffer" in line:
                begin, _, end = line.split()[0].partition("-")
                found.append(range(int(begin, 16), int(end, 16)))
    return found


def is_shared(one: torch.Tensor) -> bool:
    return any(one.data_ptr() in mapping for mapping in mappings())


def check(condition: bool, what: str, said: object = "") -> None:
    expect(condition, what, {0: said})


def collectives(backend: str) -> None:
    """In every manner, on tensors that all ranks, or some, have in shared memory: what plain tensors give; and peers map them."""

    def made(rank: int, values: torch.Tensor, sharing: int) -> torch.Tensor:
        """Shared on as many of the ranks."""
        with shared_memory() if rank < sharing else nullcontext():
            return values.clone()

    def main(rank: int) -> str:
        initialise(backend, rank, WORLD, os.path.join(folder, "store"))
        for count in (1024, 6 * 4099, 1 << 20):
            inputs = [tensor(r, (count * WORLD,), torch.float32) for r in range(WORLD)]
            parts = [one.chunk(WORLD) for one in inputs]
            total = sum(inputs)
            expected = {
                "all_reduce": total,
                "broadcast": inputs[1],
                "all_gather": torch.cat(inputs),
                "reduce_scatter": total.chunk(WORLD)[rank],
                "all_to_all": torch.cat([part[rank] for part in parts]),
            }
            for sharing in (1, WORLD):
                for call in manners():
                    mine = made(rank, inputs[rank], sharing)
                    found = {name: made(rank, torch.zeros_like(values), sharing) for name, values in expected.items()}
                    found["all_reduce"].copy_(mine)
                    found["broadcast"].copy_(mine)
                    call(dist.all_reduce, found["all_reduce"])
                    call(dist.broadcast, found["broadcast"], 1)
                    call(dist.all_gather_into_tensor, found["all_gather"], mine)
                    call(dist.reduce_scatter_tensor, found["reduce_scatter"], mine)
                    call(dist.all_to_all_single, found["all_to_all"], mine)
                    for name, values in expected.items():
                        check(bool(torch.equal(found[name], values)), f"{name} of {count}, shared on {sharing}")
                        check(is_shared(found[name]) == (rank < sharing), f"{name} of {count} lies where it was asked for")
        others = len(mappings()) - 1
        dist.destroy_process_group()
        return f"{others} peers' memory is mapped"

    with tempfile.TemporaryDirectory() as folder:
        seen = on_ranks(WORLD, main)
    expect(seen == dict.fromkeys(range(WORLD), f"{WORLD - 1} peers' memory is mapped"), "nothing was copied through slots", seen)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def places(_: str) -> None:
    """Tensors do not overlap, long ones and short ones find their places, and nothing is left when they are gone."""
    dice, living, files = random.Random(7), {}, descriptors()
    check(shared_bytes() == (0, 0), "nothing is shared before it is asked for", shared_bytes())
    with shared_memory():
        check(not is_shared(torch.empty(LEAST - 1, dtype=torch.uint8)), "a short tensor is as ever")
        for number in range(2000):
            if living and dice.random() < 0.5:
                old = dice.choice(list(living))
                check(bool((living.pop(old) == old).all()), "nobody else has written there", old)
            size = int(LEAST * 2 ** (dice.random() * 8))
            living[number] = torch.full((size,), number, dtype=torch.int32)
        for number, one in living.items():
            check(bool((one == number).all()) and is_shared(one), "it holds what was written", number)
        used, reserved = shared_bytes()
        check(sum(one.nbytes for one in living.values()) <= used <= reserved, "what is used is counted", (used, reserved))
        # Takes memory where it is touched.
        long = torch.empty(3 << 30, dtype=torch.uint8)
        check(is_shared(long) and shared_bytes()[0] == used + (3 << 30), "a long tensor has memory of its own", shared_bytes())
        again = long.data_ptr()
        del long
        check(torch.empty(3 << 30, dtype=torch.uint8).data_ptr() == again, "an empty place is kept for the next one")
        kept = living.popitem()[1]
        living.clear()
        with shared_memory(1 << 30):
            check(not is_shared(torch.empty(1 << 20)), "the innermost length counts")
        check(is_shared(torch.empty(1 << 20)), "and the one around it after that")
    check(not is_shared(torch.empty(1 << 20)), "tensors are as ever afterwards")
    check(is_shared(kept) and len(mappings()) == 1, "what lives stays, and the rest is given back", mappings())
    del one, kept
    check(shared_bytes() == (0, 0) and not mappings() and descriptors() == files, "nothing is left", mappings())
    for wrong in (0, -1):
        try:
            with shared_memory(wrong):
                check(False, "a length of nothing is refused")
        except ValueError as error:
            check(str(wrong) in str(error), "the error says which", error)


def no_descriptor(_: str) -> None:
    """Where there is no such memory, tensors are made as ever, and one warning says why."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with shared_memory():
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            made = [torch.ones(LEAST) for _ in range(2)]
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            later = torch.ones(LEAST)
    check(not any(map(is_shared, made)) and all(float(one.sum()) == LEAST for one in made), "they are ordinary")
    check(is_shared(later), "a later one is not, where it can be")
    words = [str(one.message) for one in said]
    check(len(words) == 1 and "ulimit -n" in words[0], "one warning says what to do", words)


def children(_: str) -> None:
    """A child that is forked off has its parent's tensors, gives up none of them, and makes its own elsewhere."""

    def in_child() -> None:
        check(bool((parents[0] == 1).all()), "the child reads what the parent wrote")
        own = [torch.full_like(parents[0], 9) for _ in range(8)]
        check(not any(map(is_shared, own)), "its tensors are as ever")
        with shared_memory():
            own += [torch.full_like(parents[0], 9) for _ in range(8)]
            check(is_shared(own[-1]) and shared_bytes()[0] == 8 * own[-1].nbytes, "or in memory of its own", shared_bytes())
        parents[0].fill_(3)
        parents.clear()
        check(shared_bytes()[0] == 8 * own[-1].nbytes, "what it drops is not its own", shared_bytes())

    with shared_memory():
        # With free places between them.
        rows = [torch.full((1 << 16,), 1.0) for _ in range(8)]
        parents = rows[::2]
        del rows
        used = shared_bytes()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                in_child()
                code = 0
            except AssertionError as problem:
                print(problem, flush=True)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        check(os.waitstatus_to_exitcode(status) == 0, "the child found all in order")
        check(shared_bytes() == used, "the parent has what it had", shared_bytes())
        check(bool((parents[0] == 3).all()), "written by the child, for it is the same memory")
        check(all(bool((one == 1).all()) for one in parents[1:]), "and nothing else is")


def ddp(backend: str) -> None:
    """Trains to the same losses, to the bit, with its buckets in shared memory."""

    def losses(rank: int) -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(5):
            loss = model(torch.randn(8, 256, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        return found

    def main(rank: int) -> str:
        initialise(backend, rank, WORLD, os.path.join(folder, "store"))
        plain = losses(rank)
        with shared_memory():
            shared, others = losses(rank), len(mappings()) - 1
        dist.destroy_process_group()
        good = plain == shared and len(set(plain)) == len(plain) and others == WORLD - 1
        return "as ever" if good else f"{plain}, shared {shared}, and the memory of {others} peers"

    with tempfile.TemporaryDirectory() as folder:
        seen = on_ranks(WORLD, main)
    expect(seen == dict.fromkeys(range(WORLD), "as ever"), "the losses are the same, and buckets are mapped", seen)


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    of = {
        "collectives_on_shared_tensors": collectives,
        "places_are_used_again": places,
        "ordinary_where_there_is_no_descriptor": no_descriptor,
        "forked_children": children,
        "ddp_with_shared_buckets": ddp,
    }
    return scenarios(backend, names, of)

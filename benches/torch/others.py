"""The other calls of `torch.distributed` beside gloo, in the same processes, in turns."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import memory
import turns

SIZES = [8, 32 << 10, 1 << 20, 16 << 20]
# Seconds of one measurement of one contender.
SLICE = 0.03


class Place:
    """A group, and the tensors of a size for it: one of all bytes, which has a block for each rank, and one of a block."""

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        self.group, self.rank, self.ranks = group, dist.get_rank(), dist.get_world_size()
        elements = max(1, size // 4 // self.ranks)
        self.whole, self.other = torch.zeros(elements * self.ranks), torch.zeros(elements * self.ranks)
        self.block = torch.zeros(elements)
        self.blocks = list(self.whole.chunk(self.ranks))

    def blocks_of_root(self) -> list[torch.Tensor] | None:
        return self.blocks if self.rank == 0 else None


def _started(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def _exchange(at: Place) -> None:
    after, before = (at.rank + 1) % at.ranks, (at.rank - 1) % at.ranks
    send = dist.P2POp(dist.isend, at.whole, after, at.group)
    receive = dist.P2POp(dist.irecv, at.other, before, at.group)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def _to_and_fro(at: Place) -> None:
    peer = at.rank ^ 1
    if at.rank % 2 == 0:
        dist.send(at.whole, peer, at.group)
        dist.recv(at.whole, peer, at.group)
    else:
        dist.recv(at.whole, peer, at.group)
        dist.send(at.whole, peer, at.group)


CALLS: dict[str, Callable[[Place], object]] = {
    "`all_reduce(async_op=True)`, `wait()`": lambda at: _started(dist.all_reduce(at.whole, group=at.group, async_op=True)),
    "`broadcast`": lambda at: dist.broadcast(at.whole, 0, at.group),
    "`all_gather_into_tensor`": lambda at: dist.all_gather_into_tensor(at.whole, at.block, at.group),
    "`all_gather`": lambda at: dist.all_gather(at.blocks, at.block, at.group),
    "`reduce_scatter_tensor`": lambda at: dist.reduce_scatter_tensor(at.block, at.whole, group=at.group),
    "`all_to_all_single`": lambda at: dist.all_to_all_single(at.other, at.whole, group=at.group),
    "`reduce`": lambda at: dist.reduce(at.whole, 0, group=at.group),
    "`gather`": lambda at: dist.gather(at.block, at.blocks_of_root(), 0, at.group),
    "`scatter`": lambda at: dist.scatter(at.block, at.blocks_of_root(), 0, at.group),
    "`batch_isend_irecv`, to the next and from the one before": _exchange,
    "`send` and `recv`, to and fro": _to_and_fro,
}


def measure(groups: dict[str, dist.ProcessGroup], sizes: list[int], repeats: int) -> list[dict]:
    """Per call, size and contender the median of the repeats, in microseconds per call."""
    rows = []
    for size in sizes:
        places = {}
        for name, group in groups.items():
            with memory.of(name):
                places[name] = Place(group, size)
        for words, call in CALLS.items():
            contenders = {name: partial(turns.seconds, partial(call, at)) for name, at in places.items()}
            rows.append({"call": words, "bytes": size, **turns.medians(contenders, SLICE, repeats)})
    return rows

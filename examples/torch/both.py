"""Runs a training on rdmaccl and on gloo, in the same processes, and compares the losses of all steps."""

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

# Of a sum over more than two ranks the order is the algorithm's, and the last bits with it.
BOUND = 1e-3


def train_on_both(train: Callable[[], list[float]], what: str) -> None:
    """`train` returns the loss of each step; it must begin anew at each call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="rdmaccl", help="the backend that is compared with gloo")
    backend = parser.parse_args().backend
    losses, seconds = {}, {}
    # The launcher has set the rendezvous in the environment. It is one store, which serves three groups here; a program
    # that has one says `dist.init_process_group("rdmaccl")` and no more.
    store, rank, world = next(dist.rendezvous("env://"))
    # The first turn is for what happens once in a process, which takes seconds, and counts for nothing. gloo is not the last: a
    # mesh keeps its destroyed group, whose threads end a process with SIGABRT if it ends right after their last call.
    for turn, name in enumerate(("gloo", "gloo", backend)):
        dist.init_process_group(name, store=dist.PrefixStore(str(turn), store), rank=rank, world_size=world)
        torch.manual_seed(0)
        dist.barrier()
        start = time.perf_counter()
        losses[name] = train()
        seconds[name] = time.perf_counter() - start
        dist.barrier()
        dist.destroy_process_group()
    ours, theirs = losses[backend], losses["gloo"]
    equal = sum(a == b for a, b in zip(ours, theirs))
    apart = max(abs(a - b) for a, b in zip(ours, theirs))
    if rank == 0:
        print(f"{what}, {world} ranks, {len(ours)} steps: loss {ours[0]:.4f} -> {ours[-1]:.4f}")
        print(f"{backend} {seconds[backend]:.2f} s, gloo {seconds['gloo']:.2f} s")
        print(f"losses equal to gloo's bit by bit: {equal} of {len(ours)} steps; furthest apart {apart:.1e}", flush=True)
    if ours[-1] > ours[0] / 2:
        raise SystemExit("the training did not learn")
    if apart > (0 if world == 2 else BOUND):
        raise SystemExit("the losses are not gloo's")

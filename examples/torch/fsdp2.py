"""FSDP2: a small transformer whose parameters, gradients and optimizer state are spread over the ranks.

    torchrun --nproc-per-node 2 examples/torch/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from both import train_on_both
from sequences import Transformer, loss_of

STEPS = 60


def train() -> list[float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = Transformer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, step, rank)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(float(mean) / world)
    if rank == 0:
        whole = sum(parameter.numel() for parameter in model.parameters())
        print(f"{dist.get_backend()}: {here} of {whole} parameters on this rank", flush=True)
    return losses


if __name__ == "__main__":
    train_on_both(train, "FSDP2")

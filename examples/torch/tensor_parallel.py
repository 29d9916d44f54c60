"""Tensor parallelism: each rank computes some of the attention's heads and some of the wide layer's columns.

    torchrun --nproc-per-node 2 examples/torch/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from both import train_on_both
from sequences import Transformer, loss_of

STEPS = 60


def train() -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer()
    for block in model.blocks:
        plan = {
            "attention.query": ColwiseParallel(), "attention.key": ColwiseParallel(), "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel(),
        }  # fmt: skip
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    losses = []
    for step in range(STEPS):
        # Every rank sees the same texts.
        loss = loss_of(model, step, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    if dist.get_rank() == 0:
        up = model.blocks[0].up.weight
        print(f"{dist.get_backend()}: {tuple(up.to_local().shape)} of {tuple(up.shape)} of a wide layer on this rank", flush=True)
    return losses


if __name__ == "__main__":
    train_on_both(train, "tensor parallel")

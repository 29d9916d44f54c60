"""DistributedDataParallel on CUDA tensors, without a GPU."""

import torch
import torch.distributed as dist

from ranks import Ranks

STEPS = 3


def losses(device: str, rank: int) -> list[float]:
    """Of a small net, trained for a few steps on every rank's own data."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(device)
    # Several buckets.
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        data = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(float(total))
    return found


class Training(Ranks):
    def test_ddp(self) -> None:
        """Its losses are those on the CPU, to the bit: the operators are the CPU's, and so is the order of sums."""
        self.assertEqual(losses("cuda:0", self.rank), losses("cpu", self.rank))

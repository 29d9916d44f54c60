"""DistributedDataParallel: a small convolutional net learns to read digits, which are drawn here.

    torchrun --nproc-per-node 2 examples/torch/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from both import train_on_both

# Five by seven dots, each row five bits.
FONT = [
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31), (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14), (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14), (14, 17, 17, 15, 1, 2, 12),
]


def digits(count: int) -> TensorDataset:
    """Digits of 16 by 16 points: somewhere in the picture, in some brightness, in noise."""
    generator = torch.Generator().manual_seed(1)
    dots = torch.tensor([[[row >> (4 - x) & 1 for x in range(5)] for row in rows] for rows in FONT], dtype=torch.float32)
    labels = torch.randint(10, (count,), generator=generator)
    pictures = torch.randn(count, 1, 16, 16, generator=generator) * 0.3
    places = torch.randint(2, 7, (count, 2), generator=generator).tolist()
    for picture, label, (x, y) in zip(pictures, labels.tolist(), places):
        picture[0, y : y + 7, x : x + 5] += dots[label] * (0.7 + 0.6 * torch.rand(1, generator=generator))
    return TensorDataset(pictures, labels)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


def train() -> list[float]:
    data = digits(4096 + 512)
    training, test = TensorDataset(*data[:4096]), TensorDataset(*data[4096:])
    sampler = DistributedSampler(training, seed=3)
    loader = DataLoader(training, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # The loss of the whole batch, as all ranks see it.
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(float(mean) / dist.get_world_size())
    with torch.no_grad():
        pictures, labels = test[:]
        right = (model.module(pictures).argmax(1) == labels).float().mean()
    if dist.get_rank() == 0:
        print(f"{dist.get_backend()}: {float(right):.1%} of digits never seen are read rightly", flush=True)
    return losses


if __name__ == "__main__":
    train_on_both(train, "DDP")

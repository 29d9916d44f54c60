"""DistributedDataParallel on CUDA tensors, without a GPU: part of `python python/tests device`.

A rank is a program of its own, `python training.py EXTENSION BACKEND RANK STORE`: what autograd asks of CUDA has to be replaced before torch is
imported.
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

WORLD = 2
STEPS = 3
SECONDS = 60


def rank_main(extension: str, backend: str, rank: int, store: str) -> None:
    ctypes.CDLL(extension)
    import torch
    import torch.distributed as dist

    import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.
    from fake import Fake

    fake = Fake("delay 5 100")
    dist.init_process_group(backend, store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)

    def losses(device: str, hook: bool) -> list[float]:
        """Of a small net, trained for a few steps on every rank's own data."""
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(device)
        # Several buckets.
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
        if hook:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            model.register_comm_hook(None, allreduce_hook)
        # One operator at a time: those on lists are CUDA's own.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
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

    for hook in (False, True):
        expected, found = losses("cpu", hook), losses("cuda:0", hook)
        # The operators are the CPU's, and so is the order of sums.
        assert found == expected and len(set(found)) == STEPS, f"losses {found} are not {expected}"
    with fake.on_stream(fake.new_stream(0)):
        assert losses("cuda:0", False) == losses("cpu", False), "on a stream of the program's own"
    dist.destroy_process_group()


def ddp(backend: str) -> None:
    """Trained on CUDA tensors, a net has the losses that it has on the CPU, to the bit, with and without a hook that chains a future."""
    from fake import build

    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, __file__, build(), backend]
        ranks = [
            subprocess.Popen([*arguments, str(rank), f"{folder}/store"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(WORLD)
        ]
        said = []
        for rank in ranks:
            try:
                said.append(rank.communicate(timeout=SECONDS)[0])
            except subprocess.TimeoutExpired:
                rank.kill()
                said.append("killed: not over in time\n" + rank.communicate()[0])
    if any(rank.returncode != 0 for rank in ranks):
        raise AssertionError("\n".join(said))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    rank_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

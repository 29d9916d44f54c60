"""CUDA tensors on a real GPU, which all ranks share: `python python/tests gpu`.

What `device` does with fake devices, but for what needs two of them or a script that the driver follows; and what only real ones show: graphs, and a
net that is trained by their own arithmetic.
"""

import subprocess
import sys

import torch
import torch.distributed as dist

from device import Bits, CudaFunctional, CudaMoves, CudaReductions, CudaTransfers, CudaWorks, wanted
from harness import Job, Outcome, run_jobs
from ranks import WORLD, Ranks, job
from real import Real
from streams import ONES, TOTAL, Streams

ASK = "import sys, torch; sys.exit(not torch.cuda.is_available())"

# They need two devices.
OF_TWO = {"test_devices_differ"}


class RealStreams(Streams):
    def all_are_here(self) -> None:
        """By the host alone. A torch before 2.14 has monitored barriers for gloo only."""
        dist.all_reduce(torch.zeros(1, device="cpu"))


class Devices(Ranks):
    """What fake devices cannot show."""

    def test_graph(self) -> None:
        """A captured call is made again at each replay, on what is in the tensor then."""
        x = torch.zeros(1000, device="cuda:0")
        # What is made at the first call is not made in a capture.
        dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(x)
            x.mul_(2)
        for turn in range(20):
            x.fill_(self.rank + turn)
            graph.replay()
            total = 2 * (sum(range(WORLD)) + WORLD * turn)
            self.same(x, torch.full((1000,), float(total), device="cpu"), turn)

    def test_training(self) -> None:
        """A net has nearly the losses that it has on the CPU, where sums have another order; with a hook that chains a future, too."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def losses(device: str, hook: bool) -> list[float]:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 4)).to(device)
            model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.25)
            if hook:
                model.register_comm_hook(None, allreduce_hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for step in range(5):
                noise = torch.Generator("cpu").manual_seed(10 * step + self.rank)
                data = torch.randn(8, 256, generator=noise, device="cpu").to(device)
                loss = model(data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total = loss.detach().clone()
                dist.all_reduce(total)
                found.append(float(total))
            return found

        with torch.device("cpu"):
            expected = losses("cpu", False)
            for hook in (False, True):
                torch.testing.assert_close(losses("cuda:0", hook), expected, rtol=1e-3, atol=1e-4)


def on_gpu(made: Job) -> Job:
    """A job with the real device, where tensors are unless it says otherwise."""

    def run() -> list[Outcome]:
        Streams.fake = Real()
        torch.set_default_device("cuda:0")
        return made.run()

    return Job(made.name, run, 240)


def by_name(made: Job) -> Job:
    def run() -> list[Outcome]:
        Streams.fake = Real()
        return made.run()

    return Job(made.name, run, 240)


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    # This process forks, and must not know CUDA before.
    if subprocess.run([sys.executable, "-c", ASK]).returncode != 0:
        return [Outcome("gpu", "failed", "PyTorch sees no GPU here")]
    import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.

    again = [CudaMoves, CudaReductions, CudaTransfers, CudaFunctional, CudaWorks]
    jobs = [by_name(job(case, backend, names)) for case in (Devices, Bits)]
    jobs += [by_name(job(RealStreams, backend, [name for name in wanted(RealStreams, names) if name not in OF_TWO]))]
    jobs += [on_gpu(job(case, backend, wanted(case, names))) for case in again]
    return run_jobs(jobs, 1, 900)

"""CUDA tensors on a real GPU, which all ranks share: `python python/tests gpu`.

What `device` does with fake devices, but for what needs two of them or a script that the driver follows; and what only real ones show: graphs, and a
net that is trained by their own arithmetic.

A rank is a program of its own, `python gpu.py CLASS RANK FOLDER BACKEND TEST...`: who has touched CUDA can fork nobody who uses it.
"""

import json
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from device import Bits, CudaFunctional, CudaMoves, CudaReductions, CudaTransfers, CudaWorks, wanted
from harness import Outcome
from ranks import WORLD, Ranks
from real import Real
from streams import ONES, TOTAL, Streams

ASK = "import sys, torch; sys.exit(not torch.cuda.is_available())"

# They need two devices.
OF_TWO = {"test_devices_differ"}

# An older torch has none for a backend that is not its own.
NUMBERS = {"test_sequence_numbers_agree"}

# All tests of a class.
SECONDS = 120


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


# Those whose tensors are on the device unless they say otherwise, and those that name it.
BY_DEFAULT = [CudaMoves, CudaReductions, CudaTransfers, CudaFunctional, CudaWorks]
BY_NAME = [Devices, Bits, RealStreams]


def rank_main(case: type[Ranks], rank: int, folder: Path, backend: str, names: list[str]) -> None:
    """Makes this rank's part of the tests, up to the first that fails, and writes what came of each."""
    import rdmaccl.torch  # noqa: F401  Registers it where no entry point does.

    torch.cuda.set_device(0)
    if case in BY_DEFAULT:
        torch.set_default_device("cuda:0")
    Streams.fake = Real()
    case.rank, case.world_size, case.backend = rank, WORLD, backend
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group(backend, store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=30))
    # Kernels of PyTorch's are loaded when they are first used, which may wait for those that run.
    x = torch.ones(1000, device="cuda:0")
    dist.all_reduce(x)
    torch.full_like(x, -1).copy_(x).clone().mul_(2).cpu()
    with open(folder / f"rank-{rank}", "w") as file:
        for name in names:
            begun, why = time.monotonic(), ""
            try:
                one = case(name)
                one.rank = rank
                getattr(one, name)()
            except BaseException:
                why = f"rank {rank}:\n{traceback.format_exc()}"
            print(json.dumps([name, why, time.monotonic() - begun]), file=file, flush=True)
            if why:
                sys.exit(1)
    dist.destroy_process_group()


def play(case: type[Ranks], backend: str, names: list[str]) -> list[Outcome]:
    """The tests of a class, on ranks of their own."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        begun, ranks = time.monotonic(), []
        for rank in range(WORLD):
            command = [sys.executable, __file__, case.__name__, str(rank), made, backend, *names]
            with open(folder / f"said-{rank}", "w") as said:
                ranks.append(subprocess.Popen(command, stdout=said, stderr=said))
        # Where a rank has failed the others wait for it, and not for long.
        end = begun + SECONDS
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
            if any(rank.poll() for rank in ranks):
                end = min(end, time.monotonic() + 5)
            time.sleep(0.02)
        for rank in ranks:
            rank.kill()
            rank.wait()
        found = [read(folder / f"rank-{rank}") for rank in range(WORLD)]
        said = "".join(f"rank {rank}: {(folder / f'said-{rank}').read_text()[-2000:]}\n" for rank in range(WORLD))
    outcomes = []
    for name in names:
        of = [one.get(name) for one in found]
        if all(one == "" for one in of):
            outcomes.append(Outcome(name, "passed"))
            continue
        why = next((one for one in of if one), f"not over on all ranks\n{said}")
        outcomes.append(Outcome(name, "failed", why))
        # What comes behind it was not tried.
        break
    return outcomes


def read(file: Path) -> dict[str, str]:
    """By test: what is wrong with it."""
    if not file.exists():
        return {}
    return {name: why for name, why, _ in map(json.loads, file.read_text().splitlines())}


def outcomes(backend: str, names: list[str]) -> list[Outcome]:
    if subprocess.run([sys.executable, "-c", ASK]).returncode != 0:
        return [Outcome("gpu", "failed", "PyTorch sees no GPU here")]
    found = []
    for case in (*BY_NAME, *BY_DEFAULT):
        tests = [name for name in wanted(case, names) if name != "none" and name not in OF_TWO | NUMBERS]
        begun = time.monotonic()
        of = play(case, backend, tests) if tests else []
        # At once: whoever has little time on a GPU may not see the end.
        good = sum(one.status == "passed" for one in of)
        print(f"{case.__name__}: {good} of {len(tests)} tests passed in {time.monotonic() - begun:.1f} s", flush=True)
        for one in of:
            if one.status != "passed":
                print(f"{one.name}: {one.text}", flush=True)
        found += of
    return found


if __name__ == "__main__":
    cases = {case.__name__: case for case in (*BY_NAME, *BY_DEFAULT)}
    rank_main(cases[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5:])

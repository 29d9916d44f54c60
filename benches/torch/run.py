"""Measures the PyTorch backend beside gloo, in one run: `python benches/torch/run.py`.

It writes the tables of docs/pytorch.md, results.json beside itself, and a trace that chrome://tracing shows into
target/. The ranks of each number of ranks are processes that have both backends; everything is measured in turns.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

# Each rank has one core at the most.
os.environ["OMP_NUM_THREADS"] = "1"
# The profiler speaks of devices that are not there.
os.environ.setdefault("KINETO_LOG_LEVEL", "5")

import torch
import torch.distributed as dist

import calls
import memory
import others
import training

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DOCUMENT = ROOT / "docs" / "pytorch.md"
SIZES = [8, 256, 1 << 10, 8 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
NAMES = {1 << 20: "M", 1 << 10: "K"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the PyTorch backend beside gloo")
    parser.add_argument("--backend", default="rdmaccl", help="the backend that is compared with gloo")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--repeats", type=int, default=9, help="of each measurement; medians are shown")
    parser.add_argument("--quick", action="store_true", help="few sizes, once: whether it runs at all; writes nothing")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.repeats = "2", 1
    busy = share_of_others()
    if busy > 0.1:
        print(f"warning: others use {busy:.0%} of this machine: nothing measured now says much", flush=True)
    results = {"busy": round(busy, 2), "torch": torch.__version__, "cores": os.cpu_count(), "ranks": {}}
    with tempfile.TemporaryDirectory() as folder:
        loop = calls.compile_loop(Path(folder)) if options.backend == "rdmaccl" else None
        for ranks in (int(n) for n in options.ranks.split(",")):
            results["ranks"][ranks] = on_ranks(ranks, options, loop, Path(folder))
    text = tables(results, options.backend)
    print(f"\n{text}", flush=True)
    if not options.quick:
        write(text, results)


def share_of_others() -> float:
    """The share of the cores that others use, before anything is measured."""

    def read() -> tuple[int, int]:
        with open("/proc/stat") as file:
            times = [int(word) for word in file.readline().split()[1:]]
        return sum(times), times[3] + times[4]

    (all_before, idle_before), _, (all_after, idle_after) = read(), time.sleep(1), read()
    return 1 - (idle_after - idle_before) / (all_after - all_before)


def on_ranks(ranks: int, options: argparse.Namespace, loop: Path | None, folder: Path) -> dict:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    arguments = [(rank, ranks, options, loop, folder / f"store{ranks}", there) for rank in range(ranks)]
    processes = [context.Process(target=one_rank, args=of) for of in arguments]
    for process in processes:
        process.start()
    there.close()
    found = here.recv()
    for process in processes:
        process.join()
    return found


def one_rank(rank: int, ranks: int, options: argparse.Namespace, loop: Path | None, file: Path, pipe) -> None:
    store = dist.FileStore(str(file), ranks)
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=ranks)
    groups = {options.backend: dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if options.backend == "rdmaccl":
        groups[memory.SHARED] = dist.group.WORLD
    by_c = calls.Loop(loop, rank, ranks, store) if loop else None
    sizes = [8, 1 << 20] if options.quick else SIZES
    found = {"all_reduce": calls.measure(groups, by_c, sizes, options.repeats)}
    found["own"] = calls.own_share()
    found["others"] = others.measure(groups, sizes[:1] if options.quick else others.SIZES, options.repeats)
    dist.barrier()
    found["ddp"] = training.measure(groups, options.repeats, 3 if options.quick else 20)
    found["overlap"] = {}
    for name, group in groups.items():
        trace = ROOT / "target" / f"overlap-{name.replace(', ', '-')}-{ranks}.json"
        found["overlap"][name] = training.overlap(group, name, trace if rank == 0 and not options.quick else None)
    if by_c:
        by_c.c.leave()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        pipe.send(found)


def in_words(size: int) -> str:
    return next((f"{size // unit}{letter}" for unit, letter in NAMES.items() if size >= unit), str(size))


def tables(results: dict, backend: str) -> str:
    lines: list[str] = []
    for ranks, of in results["ranks"].items():
        ours = [name for name in (backend, memory.SHARED) if name in of["ddp"]]
        columns = ["bytes", "C ABI", *ours, "gloo", *(f"gloo ÷ {name}" for name in ours)]
        lines += [
            f"`dist.all_reduce`, blocking, {ranks} ranks on {results['cores']} cores, µs per call:\n",
            f"| {' | '.join(columns)} |\n|{' ---: |' * len(columns)}",
        ]
        for row in of["all_reduce"]:
            by_c = f"{row['C']:.1f}" if "C" in row else ""
            times = [f"{row[name]:.1f}" for name in (*ours, "gloo")]
            ratios = [f"{row['gloo'] / row[name]:.1f}" for name in ours]
            lines.append(f"| {' | '.join([in_words(row['bytes']), by_c, *times, *ratios])} |")
        first, ddp = of["all_reduce"][0], of["ddp"]
        if "C" in first:
            above = first[backend] - first["C"]
            lines.append(f"\nAbove the C ABI at 8 bytes: {above:.1f} µs; of a call that does nothing PyTorch takes {of['own']:.1f} µs.")
        lines += [f"\nThe other calls, {ranks} ranks, µs per call (gloo ÷ it):\n", *table_of_others(of["others"], ours)]
        lines += [
            f"\nDDP, {ddp['megabytes']:.1f} MB of gradients in buckets of 1 MB, {ranks} ranks, ms per step:\n",
            "| | step | without communication | communication | of it beside computation |\n| --- | ---: | ---: | ---: | ---: |",
        ]
        for name in (*ours, "gloo"):
            row = ddp[name]
            numbers = " | ".join(f"{row[column]:.2f}" for column in ("step", "alone", "communication"))
            lines.append(f"| {name} | {numbers} | {of['overlap'][name]:.0%} |")
        ratios = [f"gloo ÷ {name}: {ddp['gloo']['communication'] / ddp[name]['communication']:.1f}" for name in ours]
        lines.append(f"\nCommunication of DDP, {'; '.join(ratios)}\n")
    return "\n".join(lines)


def table_of_others(rows: list[dict], ours: list[str]) -> list[str]:
    sizes = sorted({row["bytes"] for row in rows})
    at = {(row["call"], row["bytes"]): row for row in rows}
    lines = [f"| | | {' | '.join(in_words(size) for size in sizes)} |", f"| --- | --- |{' ---: |' * len(sizes)}"]
    for call in dict.fromkeys(row["call"] for row in rows):
        for name in ours:
            of_sizes = [at[call, size] for size in sizes]
            cells = [f"{row[name]:.1f} ({row['gloo'] / row[name]:.1f})" for row in of_sizes]
            lines.append(f"| {call} | {name} | {' | '.join(cells)} |")
    return lines


def write(text: str, results: dict) -> None:
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    head, begin, rest = DOCUMENT.read_text().partition("<!-- torch: measured -->\n")
    _, end, tail = rest.partition("<!-- torch: end -->\n")
    DOCUMENT.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


if __name__ == "__main__":
    main()

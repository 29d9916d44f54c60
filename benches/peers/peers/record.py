"""The results of a machine as a JSON file, a line for each cell."""
import dataclasses
import json

from .cells import Cell
from .measure import Results, Sample


@dataclasses.dataclass
class Machine:
    """What one run found there; `about` tells of the machine and the settings."""

    name: str
    results: Results
    about: dict
    overlap: dict

    @property
    def file(self):
        """The stem of its files' names."""
        return stem(self.name)


def stem(name):
    return name.lower().replace(" ", "-")


def digits(value):
    return float(f"{value:.4g}")


def text(machine):
    results, lines = machine.results, []
    for cell in sorted(results.samples):
        times = {}
        for name in results.samples[cell]:
            best = results.best(cell, name)
            runs = len(results.samples[cell][name])
            times[name] = [digits(best.median), digits(best.p99), runs, int(best.noisy)]
        lines.append(json.dumps({**dataclasses.asdict(cell), "times": times}))
    head = {"machine": machine.name, "about": machine.about, "versions": results.versions}
    head |= {"notes": list(results.notes), "overlap": machine.overlap, "bare": results.bare}
    members = [f"{json.dumps(key)}: {json.dumps(value, indent=1)}" for key, value in head.items()]
    columns = json.dumps(["median µs", "p99 µs", "runs", "noisy"], ensure_ascii=False)
    return "{\n" + ",\n".join([*members, f'"times": {columns}', '"cells": [\n' + ",\n".join(lines) + "\n]"]) + "\n}\n"


def read(path):
    """What `text` wrote."""
    record = json.loads(path.read_text())
    results = Results()
    results.versions = record["versions"]
    results.notes = dict.fromkeys(record["notes"], True)
    # Machines measured before this was have none.
    results.bare = {int(size): times for size, times in record.get("bare", {}).items()}
    for line in record["cells"]:
        times = line.pop("times")
        for name, (median, p99, runs, noisy) in times.items():
            for _ in range(runs):
                results.add(Cell(**line), name, Sample(median, p99, bool(noisy)))
    return Machine(record["machine"], results, record["about"], record["overlap"])

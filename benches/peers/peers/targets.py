"""What must be reached, and whether it is."""
import dataclasses
import statistics

from .cells import ALL_SIZES, LATENCY_RANKS, RANKS, TYPE_SIZES, Cell, required, short
from .configurations import MAPPED, ORDINARY, OURS, PRELOADED

NOISE = 1.03

ORDINARY_2 = dict(zip(ALL_SIZES, [0.8, 0.8, 0.65, 0.75, 0.9, 0.9, 0.8, 0.7, 0.7, 0.7]))
MAPPED_2 = dict(zip(ALL_SIZES, [0.8, 0.6, 0.4, 0.4, 0.4, 0.45, 0.4, 0.4, 0.4, 0.5]))
CROWDED = 0.8
BEHIND = 1.0
MEAN = 0.75
NARROW = 1.15
TAIL = 3.0
OVERLAP = 0.10


@dataclasses.dataclass
class Target:
    group: str
    what: str
    wanted: float
    reached: float
    """None: not measured."""
    noisy: bool = False

    @property
    def met(self):
        return self.reached is not None and self.reached <= self.wanted * NOISE


def ratio(results, cell, configurations, peers=None):
    """The best of these configurations of ours by the best peer's (of those whose names `peers` accepts), and whether one
    of them was measured noisily; (None, False) without both."""
    found = [sample for c in configurations if (sample := results.best(cell, c.name))]
    ours, peer = min(found, key=lambda sample: sample.median, default=None), results.best_peer(cell, OURS, peers)
    if not ours or not peer:
        return None, False
    return ours.median / peer[1].median, ours.noisy or peer[1].noisy


BOTH = (ORDINARY, PRELOADED)
"""Ours on ordinary memory: the better one stands beside the best of each peer's configurations."""


def beside_peers(results, ordinary):
    for size in ALL_SIZES:
        cell = Cell(2, "all_reduce", "out", "float32", size)
        for configurations, name, wanted in ((ordinary, "ordinary", ORDINARY_2), ((MAPPED,), MAPPED.variant, MAPPED_2)):
            group = f"all_reduce, 2 ranks, {name} buffers"
            yield Target(group, short(size), wanted[size], *ratio(results, cell, configurations))
    for ranks in RANKS[1:]:
        for size in ALL_SIZES:
            cell = Cell(ranks, "all_reduce", "out", "float32", size)
            group = f"all_reduce, {ranks} ranks, ordinary buffers"
            yield Target(group, short(size), CROWDED, *ratio(results, cell, ordinary))
    everything = [c for c in required() if c.type == "float32" and c.place != "each"]
    for cell in everything:
        if (cell.collective, cell.place) != ("all_reduce", "out"):
            group = f"{cell.collective}, {cell.ranks} ranks, {'in' if cell.place == 'in' else 'out of'} place"
            yield Target(group, short(cell.bytes), BEHIND, *ratio(results, cell, ordinary))
    ratios = [r for cell in everything if (r := ratio(results, cell, ordinary)[0])]
    mean = statistics.geometric_mean(ratios) if ratios else None
    yield Target("geometric mean of all cells", f"{len(ratios)} of {len(everything)} cells", MEAN, mean)


def narrow_types(results):
    """Time per byte, by float32's."""
    for type in ("bfloat16", "float16"):
        for size in TYPE_SIZES:
            narrow = results.best(Cell(2, "all_reduce", "out", type, size), ORDINARY.name)
            single = results.best(Cell(2, "all_reduce", "out", "float32", size), ORDINARY.name)
            both = narrow and single
            reached = narrow.median / single.median if both else None
            group = "narrow type by float32, per byte"
            yield Target(group, f"{type} {short(size)}", NARROW, reached, bool(both) and (narrow.noisy or single.noisy))


def tails(results):
    for ranks in LATENCY_RANKS:
        sample = results.best(Cell(ranks, "all_reduce", "each", "float32", 8), ORDINARY.name)
        reached = sample.p99 / sample.median if sample else None
        yield Target("8 B all_reduce, 99th percentile by median", f"{ranks} ranks", TAIL, reached, bool(sample) and sample.noisy)


def computation(overlap):
    """What the asynchronous call costs the thread that computes, with a core left for the library's threads."""
    spare = overlap.get("spare")
    reached = None
    if spare:
        alone, beside = spare["values"][:2]
        reached = max(0.0, 1 - beside / alone)
    yield Target("computation beside 64M all_reduce", "lost, with a spare core", OVERLAP, reached, bool(spare) and spare["noisy"])


def targets(results, overlap, ordinary=BOTH):
    return [*beside_peers(results, ordinary), *narrow_types(results), *tails(results), *computation(overlap)]


def text(found):
    """A line for each target; then how many are met."""
    lines = []
    for target in found:
        reached = "-" if target.reached is None else f"{target.reached:.2f}"
        verdict = "not measured" if target.reached is None else "met" if target.met else "NOT MET"
        noisy = " (noisy)" if target.noisy else ""
        lines.append(f"{target.group:48} {target.what:26} <= {target.wanted:.2f}  {reached:>6}  {verdict}{noisy}")
    met = sum(target.met for target in found)
    lines.append(f"{met} of {len(found)} targets met, within {100 * (NOISE - 1):.0f} % of noise")
    return "\n".join(lines)

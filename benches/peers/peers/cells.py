"""What is measured: a cell is one collective, in one place, of one type and size, between so many ranks."""
import dataclasses

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
OTHERS = ["reduce", "gather", "scatter", "send_recv"]
"""Measured where they are asked for; out of place only."""
PLACES = ["out", "in"]
TYPES = ["float32", "float16", "bfloat16"]
RANKS = [2, 4, 8]

KIB, MIB = 1 << 10, 1 << 20
ALL_SIZES = [8, KIB, 8 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
"""Of all-reduce out of place, which most programs make most."""
SOME_SIZES = [8, KIB, 32 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
"""Of everything else."""
TYPE_SIZES = [MIB, 64 * MIB]
"""Of the narrow types."""
LATENCY_RANKS = [2, 8]


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    ranks: int
    collective: str
    place: str
    """`out` or `in`; `each` is out of place with every call timed by itself."""
    type: str
    bytes: int

    def argument(self):
        """As the drivers read it."""
        return f"{self.collective}:{self.place}:{self.type}:{self.bytes}"


BARE = [Cell(2, "all_reduce", "out", "float32", size) for size in (64 * MIB, 256 * MIB)]
"""Which no cache holds: their work is measured without a library too."""


def required(all_ranks=RANKS):
    """The cells that the project's targets are about; the same for other numbers of ranks."""
    cells = []
    for ranks in all_ranks:
        for collective in COLLECTIVES:
            # A broadcast has one buffer.
            for place in PLACES[:1] if collective == "broadcast" else PLACES:
                sizes = ALL_SIZES if (collective, place) == ("all_reduce", "out") else SOME_SIZES
                cells += [Cell(ranks, collective, place, "float32", size) for size in sizes]
    cells += [Cell(2, "all_reduce", "out", type, size) for type in TYPES[1:] for size in TYPE_SIZES]
    cells += [Cell(ranks, "all_reduce", "each", "float32", 8) for ranks in LATENCY_RANKS]
    return cells


def others(all_ranks=RANKS):
    """The cells that no target is about."""
    places = [(ranks, collective) for ranks in all_ranks for collective in OTHERS]
    return [Cell(*place, "out", "float32", size) for place in places for size in SOME_SIZES]


def chosen(ranks=None, collectives=None, places=None, types=None, sizes=None):
    """The cells that fit: the required ones, and those of other collectives that are named. Numbers of ranks need not be
    among them, nor sizes: those are measured of every row that fits."""
    fits = lambda cell: (
        (not ranks or cell.ranks in ranks)
        and (not collectives or cell.collective in collectives)
        and (not places or cell.place in places)
        and (not types or cell.type in types)
    )
    cells = [*required(ranks or RANKS), *(others(ranks or RANKS) if collectives else [])]
    cells = [cell for cell in cells if fits(cell)]
    if not sizes:
        return cells
    rows = dict.fromkeys(dataclasses.replace(cell, bytes=0) for cell in cells if cell.place != "each")
    return [dataclasses.replace(row, bytes=size) for row in rows for size in sizes]


def short(size):
    """1024 as 1K, 1048576 as 1M."""
    for unit, letter in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def parse_size(text):
    units = {"K": KIB, "M": MIB, "G": KIB * MIB}
    unit = units.get(text[-1:].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit

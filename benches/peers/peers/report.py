"""The tables, and where they stand in the documents.

A document says where by a pair of lines, `<!-- peers: NAME -->` and `<!-- peers: end -->`; what is between them is
replaced. The names are those of `sections`."""
import re
import statistics

from .cells import COLLECTIVES, PLACES, RANKS, TYPES, Cell, required, short
from .configurations import MAPPED, ORDINARY, OURS
from .targets import ratio, targets

MARKED = re.compile(r"(<!-- peers: (?!end)([^>]+?) -->\n).*?(<!-- peers: end -->)", re.DOTALL)


def number(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def noted(text, noisy):
    """`~` stands before what was never measured quietly."""
    return f"~{text}" if noisy else text


def place_name(place):
    return {"out": "out of place", "in": "in place", "each": "out of place, each call by itself"}[place]


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def beside(results, cells):
    """Ours and the best peer's time for each cell."""
    head = ["bytes", "malloc, µs", "÷ best peer", "cclMemAlloc, µs", "÷ best peer", "best peer, µs", "which"]
    rows = []
    for cell in cells:
        row, peer = [short(cell.bytes)], results.best_peer(cell, OURS)
        for configuration in (ORDINARY, MAPPED):
            sample, (by, noisy) = results.best(cell, configuration.name), ratio(results, cell, configuration)
            row.append(noted(number(sample.median), sample.noisy) if sample else "")
            row.append(noted(f"{by:.2f}", noisy) if by else "")
        row += [noted(number(peer[1].median), peer[1].noisy), peer[0]] if peer else ["", ""]
        rows.append(row)
    return table(head, rows)


def measured(results, ranks, collective, place, type="float32"):
    return [c for c in sorted(results.samples) if (c.ranks, c.collective, c.place, c.type) == (ranks, collective, place, type)]


def every(results):
    """All cells, a table for each collective, place, type and number of ranks."""
    parts = []
    for ranks in sorted({cell.ranks for cell in results.samples}):
        for collective in COLLECTIVES:
            for place in (*PLACES, "each"):
                for type in TYPES:
                    if cells := measured(results, ranks, collective, place, type):
                        title = f"### {collective}, {ranks} ranks, {type}, {place_name(place)}"
                        parts.append(f"{title}\n\n{beside(results, cells)}")
    return "\n".join(parts)


def ratios(results):
    """Ours by the best peer, malloc and cclMemAlloc, of everything but all-reduce out of place."""
    cells = [c for c in required() if c.type == "float32" and c.place in PLACES]
    cells = [c for c in cells if (c.collective, c.place) != ("all_reduce", "out") and c in results.samples]
    sizes = sorted({cell.bytes for cell in cells})
    rows = {}
    for cell in cells:
        values = [ratio(results, cell, configuration) for configuration in (ORDINARY, MAPPED)]
        words = [noted(f"{by:.2f}", noisy) if by else "-" for by, noisy in values]
        key = (cell.ranks, cell.collective, cell.place)
        rows.setdefault(key, {})[cell.bytes] = " / ".join(words)
    head = ["ranks", "collective", "place", *(short(size) for size in sizes)]
    return table(head, [[str(r), c, p, *(row.get(s, "") for s in sizes)] for (r, c, p), row in rows.items()])


def narrow(results):
    """Microseconds of the narrow types beside float32's: ours, and the best peer."""
    head = ["bytes", "type", "rdmaccl, µs", "÷ its float32", "best peer, µs", "÷ its float32", "which"]
    rows = []
    for cell in sorted(c for c in results.samples if c.type != "float32"):
        single = Cell(cell.ranks, cell.collective, cell.place, "float32", cell.bytes)
        row = [short(cell.bytes), cell.type]
        ours, ours_single = results.best(cell, ORDINARY.name), results.best(single, ORDINARY.name)
        peer, peer_single = results.best_peer(cell, OURS), results.best_peer(single, OURS)
        for sample, other in ((ours, ours_single), (peer and peer[1], peer_single and peer_single[1])):
            row.append(noted(number(sample.median), sample.noisy) if sample else "none can")
            row.append(f"{sample.median / other.median:.2f}" if sample and other else "")
        rows.append([*row, peer[0] if peer else ""])
    return table(head, rows)


def tails(results):
    """Median and 99th percentile of single calls."""
    head = ["ranks", "library", "median, µs", "99th percentile, µs", "÷ median"]
    rows = []
    for cell in sorted(c for c in results.samples if c.place == "each"):
        names = [ORDINARY.name, *(peer[0] for peer in [results.best_peer(cell, OURS)] if peer)]
        for name in names:
            if sample := results.best(cell, name):
                by = f"{sample.p99 / sample.median:.2f}"
                row = [str(cell.ranks), name, noted(number(sample.median), sample.noisy), number(sample.p99), by]
                rows.append(row)
    return table(head, rows)


def overlapping(overlap):
    names = {
        "spare": "rank 0 computes on a core that is its own; the threads of both streams share the others",
        "shared": "rank 0 computes; the kernel places the threads",
        "busy": "both ranks compute: no core is free",
    }
    head = ["arrangement", "computation lost", "all_reduce alone, ms", "beside it, ms"]
    rows = []
    for name, found in overlap.items():
        alone, beside_it, quiet, loaded = found["values"]
        lost = noted(f"{100 * (1 - beside_it / alone):.0f} %", found["noisy"])
        rows.append([names[name], lost, f"{quiet / 1000:.1f}", f"{loaded / 1000:.1f}"])
    return table(head, rows)


def summary(results, overlap):
    found = targets(results, overlap)
    cells = [c for c in results.samples if c.type == "float32" and c.place in PLACES]
    lines = []
    for configuration in (ORDINARY, MAPPED):
        known = [r for cell in cells if (r := ratio(results, cell, configuration)[0])]
        if known:
            behind = sum(r > 1.03 for r in known)
            mean = statistics.geometric_mean(known)
            lines.append(
                f"- `{configuration.variant}` buffers: {len(known)} cells, geometric mean of the ratios {mean:.2f}, "
                f"behind the best peer in {behind}."
            )
    lines.append(f"- {sum(t.met for t in found)} of the {len(found)} targets met (`benches/peers/run --targets`).")
    return "\n".join(lines) + "\n"


def about(results, run):
    versions = [f"- {library}: {version}" for library, version in sorted(results.versions.items())]
    how = (
        f"{run['cores']} cores of {run['processor']}; {run['seconds']} s for each cell, the best of up to "
        f"{run['repeats']} runs; a cache line from core to core {run['line']} ns, two cores copy {run['copy']} GB/s.\n"
    )
    return "\n".join([how, *versions]) + "\n"


def sections(results, run, overlap):
    """The texts by name."""
    found = {
        "about": about(results, run),
        "summary": summary(results, overlap),
        "picture": "![Ratio to the best peer, and bus bandwidth, over size](peers.svg)\n",
        "ratios": ratios(results),
        "types": narrow(results),
        "tails": tails(results),
        "overlap": overlapping(overlap),
        "all": every(results),
    }
    for ranks in RANKS:
        found[f"all_reduce {ranks}"] = beside(results, measured(results, ranks, "all_reduce", "out"))
    return found


def filled(document, texts):
    """The document with its marked parts replaced. KeyError: there is no section of that name."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{texts[mark[2]]}\n{mark[3]}", document)

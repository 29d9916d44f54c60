"""The tables, the page of a machine, and what other documents show of all machines.

A document says where a table stands by a pair of lines, `<!-- peers: NAME -->` and `<!-- peers: end -->`; what is between
them is replaced. The names are those of `sections`."""
import re
import statistics

from .cells import ALL_SIZES, BARE, COLLECTIVES, OTHERS, PLACES, RANKS, TYPES, Cell, required, short
from .configurations import LENT, MAPPED, ORDINARY, OUR_CONFIGURATIONS, OURS, PRELOADED
from .targets import MAPPED_2, NOISE, ratio, targets

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


def ours(results):
    """The configurations of ours that there are results of: earlier versions had no heap."""
    names = {name for times in results.samples.values() for name in times}
    return [c for c in OUR_CONFIGURATIONS if c.name in names]


def heads(configurations):
    return [text for c in configurations for text in (f"{c.variant}, µs", "÷ best peer")]


def beside(results, cells):
    """Ours and the best peer's time for each cell."""
    head = ["bytes", *heads(ours(results)), "best peer, µs", "which"]
    rows = []
    for cell in cells:
        row, peer = [short(cell.bytes)], results.best_peer(cell, OURS)
        for configuration in ours(results):
            sample, (by, noisy) = results.best(cell, configuration.name), ratio(results, cell, (configuration,))
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
        for collective in (*COLLECTIVES, *OTHERS):
            for place in (*PLACES, "each"):
                for type in TYPES:
                    if cells := measured(results, ranks, collective, place, type):
                        title = f"### {collective}, {ranks} ranks, {type}, {place_name(place)}"
                        parts.append(f"{title}\n\n{beside(results, cells)}")
    return "\n".join(parts)


def ratios(results):
    """Ours by the best peer, each configuration, of everything but all-reduce out of place."""
    cells = [c for c in required() if c.type == "float32" and c.place in PLACES]
    cells = [c for c in cells if (c.collective, c.place) != ("all_reduce", "out") and c in results.samples]
    sizes = sorted({cell.bytes for cell in cells})
    rows = {}
    for cell in cells:
        values = [ratio(results, cell, (configuration,)) for configuration in ours(results)]
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


def bare(results):
    """Mapped all-reduces of two ranks beside what the memory takes in the same run, and beside what is wanted of them."""
    rows = []
    for cell in BARE:
        if cell.bytes in results.bare:
            work, stores = results.bare[cell.bytes]
            sample, peer = results.best(cell, MAPPED.name), results.best_peer(cell, OURS)
            reached = noted(number(sample.median), sample.noisy) if sample else ""
            wanted = number(MAPPED_2[cell.bytes] * peer[1].median) if peer else ""
            rows.append([short(cell.bytes), number(stores), number(work), reached, wanted])
    return table(["bytes", "stores alone, µs", "two threads, µs", f"{MAPPED.variant}, µs", "wanted, µs"], rows)


def standing(results, configuration, peers=None):
    """In how many cells ours has been beside a peer, the geometric mean of the ratios, in how many a peer was ahead."""
    cells = [c for c in results.samples if c.type == "float32" and c.place in PLACES]
    known = [r for cell in cells if (r := ratio(results, cell, (configuration,), peers)[0])]
    return (len(known), statistics.geometric_mean(known), sum(r > NOISE for r in known)) if known else None


def ordinary(name):
    """Whether the configuration's buffers are ordinary memory, as `malloc`'s are."""
    return name not in LENT


def in_words(found):
    return f"{found[1]:.2f}, behind in {found[2]} of {found[0]}" if found else "-"


def met(results, overlap, *ordinary):
    """How many targets are."""
    return sum(target.met for target in targets(results, overlap, *ordinary))


def missed(results, overlap):
    found = targets(results, overlap)
    rows = [
        [t.group, t.what, f"{t.wanted:.2f}", "-" if t.reached is None else noted(f"{t.reached:.2f}", t.noisy)]
        for t in found
        if not t.met
    ]
    counted = f"{len(found) - len(rows)} of the {len(found)} targets are met, within {100 * (NOISE - 1):.0f} % of noise"
    if PRELOADED in ours(results):
        counted += f" ({met(results, overlap, (ORDINARY,))} without the preloaded heap)"
    return f"{counted}.\n" if not rows else f"{counted}; not:\n\n{table(['', 'cell', 'wanted', 'reached'], rows)}"


def about(results, run):
    versions = [f"- {library}: {version}" for library, version in sorted(results.versions.items())]
    how = (
        f"{run['date']}: {run['cores']} cores of {run['processor']}; {run['seconds']} s for each cell, the best of up to "
        f"{run['repeats']} runs; a cache line from core to core {run['line']} ns, two cores copy {run['copy']} GB/s.\n"
    )
    return "\n".join([how, *versions]) + "\n"


def page(machine, picture):
    """The document of one machine: every cell."""
    results, overlap = machine.results, machine.overlap
    lent = standing(results, ORDINARY, ordinary)
    variants = " / ".join(f"`{c.variant}`" for c in ours(results))
    with_heap = f"- The same program with `librdmaccl_heap.so` preloaded (`heap`): {in_words(standing(results, PRELOADED))}.\n"
    taken = (
        "## What the memory takes\n\n"
        "Two threads, one on each core, that read both inputs of a mapped all-reduce, write both outputs past the caches and do nothing else,\n"
        "and that store as much and read nothing (`limits bare`), each the least that was seen in the run; ours; and the target. A target below\n"
        f"the stores is less than the memory took then.\n\n{bare(results)}"
    )
    parts = [
        f"# Beside the peers: {machine.name}",
        "Written by `benches/peers/run`, from one run. [performance.md](../performance.md) says how to read it, and\n"
        "[benches/peers](../../benches/peers/README.md) how it is measured. `~`: the cores were elsewhere in every run of that cell.",
        about(results, machine.about),
        f"- `malloc` buffers, time by the best peer's: mean {in_words(standing(results, ORDINARY))}.\n"
        f"- The same beside the peers' configurations that take ordinary memory too: {in_words(lent)}.\n"
        f"{with_heap if PRELOADED in ours(results) else ''}"
        f"- `cclMemAlloc` buffers: {in_words(standing(results, MAPPED))}.",
        f"![Ratio to the best peer, and bus bandwidth, over size]({picture})",
        f"## Targets\n\n{missed(results, overlap)}",
        *([taken] if results.bare else []),
        f"## All but all-reduce out of place\n\nTime by the best peer's, {variants}, by size in bytes:\n\n{ratios(results)}",
        "## Narrow types\n\nall_reduce, 2 ranks, out of place, ordinary memory. What a byte costs, by what one of float32 costs in the same\n"
        f"library:\n\n{narrow(results)}",
        f"## Latency under load\n\nall_reduce of 8 bytes, every call timed by itself:\n\n{tails(results)}",
        "## Computation beside an asynchronous all_reduce\n\n"
        "2 ranks on 2 cores, 64 MiB of float32 on a host stream, while the calling thread computes in registers. Each stream has a thread,\n"
        f"so two ranks leave no core free unless threads share one; what rank 0's computation loses:\n\n{overlapping(overlap)}",
        f"## Every cell\n\n{every(results)}",
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def side_by_side(machines, ranks):
    """All-reduce out of place on each machine: our microseconds and, in brackets, by the best peer's."""
    head = ["bytes"]
    for machine in machines:
        first, *rest = (c.variant for c in ours(machine.results))
        head += [f"{machine.name}: {first}", *rest]
    rows = []
    for size in ALL_SIZES:
        row, cell = [short(size)], Cell(ranks, "all_reduce", "out", "float32", size)
        for machine in machines:
            for configuration in ours(machine.results):
                sample, (by, noisy) = machine.results.best(cell, configuration.name), ratio(machine.results, cell, (configuration,))
                time = noted(number(sample.median), sample.noisy) if sample else ""
                row.append(f"{time} {noted(f'({by:.2f})', noisy)}" if by else time)
        rows.append(row)
    return table(head, rows)


def overview(machines):
    """A line for each machine."""
    head = ["machine", "processor", "a line, ns", "targets met", "without the heap", "malloc", "beside ordinary memory", "heap", "cclMemAlloc"]
    rows = []
    for machine in machines:
        found = targets(machine.results, machine.overlap)
        rows.append([
            f"[{machine.name}](peers/{machine.file}.md)",
            machine.about["processor"],
            f"{machine.about['line']:.0f}",
            f"{sum(t.met for t in found)} of {len(found)}",
            str(met(machine.results, machine.overlap, (ORDINARY,))),
            in_words(standing(machine.results, ORDINARY)),
            in_words(standing(machine.results, ORDINARY, ordinary)),
            in_words(standing(machine.results, PRELOADED)),
            in_words(standing(machine.results, MAPPED)),
        ])
    return table(head, rows)


def sections(machines):
    """The texts by name."""
    found = {f"all_reduce {ranks}": side_by_side(machines, ranks) for ranks in RANKS}
    return {**found, "machines": overview(machines)}


def filled(document, texts):
    """The document with its marked parts replaced. KeyError: there is no section of that name."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{texts[mark[2]]}\n{mark[3]}", document)

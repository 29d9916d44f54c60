"""The command line."""
import argparse
import os
import pathlib
import platform
import shlex
import sys

from . import cells, configurations, install, measure, plot, record, report, targets
from .configurations import OURS, OUR_CONFIGURATIONS, PEERS

JSON = install.SOURCES.parent / "results.json"
PICTURE = install.ROOT / "docs/peers.svg"
DOCUMENTS = [install.ROOT / name for name in ("README.md", "docs/performance.md", "docs/peers.md")]

KEPT = 1.10
"""--only ours+best runs a peer's configuration in the cells where it was within this of the best."""


def words(allowed):
    def parse(text):
        found = text.split(",")
        for word in found:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(allowed)}")
        return found

    return parse


def arguments():
    parser = argparse.ArgumentParser(prog="benches/peers/run", description="Measures collectives of several libraries.")
    add = parser.add_argument
    add("--ranks", type=lambda t: [int(n) for n in t.split(",")], help="like 2,8 (2,4,8)")
    add("--collectives", type=words(cells.COLLECTIVES), metavar="NAMES", help=",".join(cells.COLLECTIVES))
    add("--places", type=words([*cells.PLACES, "each"]), metavar="NAMES", help="out, in, each (single calls)")
    add("--types", type=words(cells.TYPES), metavar="NAMES", help=",".join(cells.TYPES))
    add("--sizes", type=lambda t: [cells.parse_size(s) for s in t.split(",")], help="like 8,1K,64M")
    add("--peers", type=words([*configurations.LIBRARIES, "none"]), metavar="NAMES", help="which; none: only ours")
    add("--only", choices=["ours", "ours+best"], help="ours+best: the peers where they were best in the last results")
    add("--ucc", type=pathlib.Path, metavar="PREFIX", help="an installed UCC, which no package registry has")
    add("--seconds", type=float, default=0.03, help="for each cell and run (0.03)")
    add("--repeats", type=int, default=7, help="runs of ours, and of what is near the best peer (7)")
    add("--contend", type=float, default=1.2, metavar="FACTOR", help="how near (1.2)")
    add("--prefix-command", type=shlex.split, default=[], metavar="WORDS", help="put before every run: nice, a lock")
    add("--profile", default="release", help="cargo's, to build ours with (release)")
    add("--no-build", action="store_true", help="take what was installed and built last time")
    add("--no-write", action="store_true", help="print the tables, and leave results and documents alone")
    add("--targets", action="store_true", help="measure nothing; say what of the last results meets its target")
    add("--write", action="store_true", help="measure nothing; write the documents again from the last results")
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def chosen_configurations(options):
    """Ours first, then the peers'."""
    wanted = options.peers or configurations.LIBRARIES
    if options.only == "ours":
        wanted = []
    # UCC is measured where somebody has it.
    wanted = [name for name in wanted if name != "none" and (name != "ucc" or options.ucc)]
    return [*OUR_CONFIGURATIONS, *(c for c in PEERS if c.library in wanted)]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write(results, about, overlap):
    """The picture, and the marked parts of the documents."""
    if picture := plot.svg(results):
        PICTURE.write_text(picture)
    texts = report.sections(results, about, overlap)
    for document in DOCUMENTS:
        document.write_text(report.filled(document.read_text(), texts))


def run(options):
    wanted = cells.chosen(options.ranks, options.collectives, options.places, options.types, options.sizes)
    if not wanted:
        sys.exit("error: no cell fits these options")
    chosen = chosen_configurations(options)
    libraries = {c.library for c in chosen}
    if not options.no_build:
        if libraries - {OURS, "ucc"}:
            install.peers(say)
        install.ours(say, options.profile)
        install.drivers(say, libraries, options.ucc)
    options.only = known(options, wanted)
    machine, results = measure.Machine(options.prefix_command, say), measure.Results()
    machine.survey()
    measure.everything(machine, results, wanted, chosen, OURS, options)
    whole = set(wanted) == set(cells.required())
    overlap = measure.overlap(machine) if whole else {}
    about = {
        "cores": os.cpu_count(),
        "processor": processor(),
        "profile": install.profile(),
        "seconds": options.seconds,
        "repeats": options.repeats,
        "line": machine.line,
        "copy": machine.copy,
    }
    return results, about, overlap, whole


def known(options, wanted):
    """The cells that each peer's configuration is measured in, for --only ours+best."""
    if options.only != "ours+best":
        return None
    if not JSON.exists():
        sys.exit(f"error: --only ours+best needs {JSON}: run without it first")
    before, _, _ = record.read(JSON)
    return measure.contenders(before, [c for c in wanted if c in before.samples], OURS, KEPT)


def main():
    options = arguments()
    if options.targets or options.write:
        if not JSON.exists():
            sys.exit(f"error: there is no {JSON} yet")
        results, about, overlap = record.read(JSON)
        if options.write:
            write(results, about, overlap)
        print(targets.text(targets.targets(results, overlap)))
        return 0
    results, about, overlap, whole = run(options)
    print(report.every(results))
    for note in results.notes:
        say(f"note: {note}")
    if whole:
        print(targets.text(targets.targets(results, overlap)))
    if whole and not options.no_write and about["profile"] != "release":
        say(f"nothing is written: librdmaccl was built with the profile {about['profile']}")
    elif whole and not options.no_write:
        JSON.write_text(record.text(results, about, overlap))
        write(results, about, overlap)
    ours_failed = any(note.startswith(OURS) for note in results.notes)
    return 1 if ours_failed or any("wrong data" in note for note in results.notes) else 0

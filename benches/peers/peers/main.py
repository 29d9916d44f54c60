"""The command line."""
import argparse
import datetime
import os
import pathlib
import platform
import re
import shlex
import sys

from . import cells, configurations, install, measure, plot, record, report, targets
from .configurations import OURS, OUR_CONFIGURATIONS, PEERS

RESULTS = install.SOURCES.parent / "results"
PAGES = install.ROOT / "docs/peers"
DOCUMENTS = [install.ROOT / name for name in ("README.md", "docs/performance.md")]

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


def named(text):
    """A machine's name, which becomes that of its files."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 .-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of letters, digits, blanks, dots and hyphens")
    return text


def arguments():
    parser = argparse.ArgumentParser(prog="benches/peers/run", description="Measures collectives of several libraries.")
    add = parser.add_argument
    add("--ranks", type=lambda t: [int(n) for n in t.split(",")], help="like 2,8 (2,4,8)")
    collectives = [*cells.COLLECTIVES, *cells.OTHERS]
    add("--collectives", type=words(collectives), metavar="NAMES", help=",".join(collectives))
    add("--places", type=words([*cells.PLACES, "each"]), metavar="NAMES", help="out, in, each (single calls)")
    add("--types", type=words(cells.TYPES), metavar="NAMES", help=",".join(cells.TYPES))
    add("--sizes", type=lambda t: [cells.parse_size(s) for s in t.split(",")], help="like 8,1K,64M")
    add("--peers", type=words([*configurations.LIBRARIES, "none"]), metavar="NAMES", help="which; none: only ours")
    add("--machine", type=named, metavar="NAME", help="whose results these are, like 'Zen 4': a run of all cells writes them, and the documents")
    add("--only", choices=["ours", "ours+best"], help="ours+best: the peers where they were best in the machine's results")
    add("--ucc", type=pathlib.Path, metavar="PREFIX", help="an installed UCC, which no package registry has")
    add("--seconds", type=float, default=0.03, help="for each cell and run (0.03)")
    add("--repeats", type=int, default=7, help="runs of ours, and of what is near the best peer (7)")
    add("--contend", type=float, default=1.2, metavar="FACTOR", help="how near (1.2)")
    add("--prefix-command", type=shlex.split, default=[], metavar="WORDS", help="put before every run: nice, a lock")
    add("--profile", default="release", help="cargo's, to build ours with (release)")
    add("--no-build", action="store_true", help="take what was installed and built last time")
    add("--targets", action="store_true", help="measure nothing; say which targets the machine's results meet")
    add("--write", action="store_true", help="measure nothing; write the documents again from all machines' results")
    options = parser.parse_args()
    if options.machine is None and (options.targets or options.only == "ours+best"):
        parser.error(f"name one with --machine: {', '.join(m.name for m in machines()) or 'none has results yet'}")
    return options


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


def machines():
    """All that have results, by name."""
    return sorted((record.read(path) for path in RESULTS.glob("*.json")), key=lambda machine: machine.name)


def results_of(name):
    path = RESULTS / f"{record.stem(name)}.json"
    if not path.exists():
        sys.exit(f"error: {name} has no results yet")
    return record.read(path)


def write():
    """The page and the picture of each machine, and the marked parts of the other documents."""
    known = machines()
    for machine in known:
        picture = PAGES / f"{machine.file}.svg"
        picture.write_text(plot.svg(machine.results))
        picture.with_suffix(".md").write_text(report.page(machine, picture.name))
    texts = report.sections(known)
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
    survey, results = measure.Machine(options.prefix_command, say), measure.Results()
    survey.survey()
    measure.everything(survey, results, wanted, chosen, OURS, options)
    whole = set(wanted) == set(cells.required())
    overlap = measure.overlap(survey) if whole else {}
    about = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "profile": install.profile(),
        "seconds": options.seconds,
        "repeats": options.repeats,
        "line": survey.line,
        "copy": survey.copy,
    }
    return record.Machine(options.machine, results, about, overlap), whole


def known(options, wanted):
    """The cells that each peer's configuration is measured in, for --only ours+best."""
    if options.only != "ours+best":
        return None
    before = results_of(options.machine).results
    return measure.contenders(before, [c for c in wanted if c in before.samples], OURS, KEPT)


def unfit(machine, whole):
    """Why results are not for the documents; '' if they are."""
    if not whole:
        return "these were not all cells"
    if not machine.results.peers(OURS):
        return "there was no peer"
    if machine.about["profile"] != "release":
        return f"librdmaccl was built with the profile {machine.about['profile']}"
    return ""


def main():
    options = arguments()
    if options.targets or options.write:
        if options.write:
            write()
        if options.targets:
            machine = results_of(options.machine)
            print(targets.text(targets.targets(machine.results, machine.overlap)))
            print(f"{report.met(machine.results, machine.overlap, (configurations.ORDINARY,))} without the preloaded heap")
        return 0
    machine, whole = run(options)
    results = machine.results
    print(report.every(results))
    for note in results.notes:
        say(f"note: {note}")
    if whole:
        print(targets.text(targets.targets(results, machine.overlap)))
    if machine.name and (why := unfit(machine, whole)):
        say(f"nothing is written: {why}")
    elif machine.name:
        (RESULTS / f"{machine.file}.json").write_text(record.text(machine))
        write()
    ours_failed = any(note.startswith(OURS) for note in results.notes)
    return 1 if ours_failed or any("wrong data" in note for note in results.notes) else 0

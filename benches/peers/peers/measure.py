"""Runs drivers. A run is one configuration over some cells, each of which is measured while the cores are as far from each
other as they usually are."""
import contextlib
import dataclasses
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from .cells import BARE, Cell
from .configurations import driver

NEAR = 1.5
"""Cores are as far from each other as they were if a cache line takes between this part and this many times as long."""
SIBLINGS = 35.0
"""Nanoseconds that a line takes at most between two threads of one core, which have half the speed each."""
OFTEN = 0.2
PROBES = 40
PAUSE = 0.25
LIMIT = 90.0
"""Seconds after which a run is ended."""
PAGE = 4096


@dataclasses.dataclass
class Sample:
    """Microseconds per call, from one run."""

    median: float
    p99: float
    noisy: bool


def usual(lines):
    """Of the nanoseconds that a cache line took at several times, the least that others were often near, and not two
    threads of one core."""
    near = lambda line: sum(line / NEAR <= other <= line * NEAR for other in lines)
    often = [line for line in lines if line > SIBLINGS and near(line) >= OFTEN * len(lines)]
    return min(often, default=statistics.median(lines))


class Machine:
    """Runs commands; `prefix` stands before each, like `nice` or a lock."""

    def __init__(self, prefix, say):
        self.prefix = prefix
        self.say = say
        self.line = self.copy = None

    def probe(self):
        """Nanoseconds of a cache line from core to core, and GB/s that two cores copy."""
        lines, why = self.run([driver("probe")])
        if why:
            sys.exit(f"error: no probe: {why}")
        return [float(field) for field in lines[0]]

    def survey(self):
        """Sees for some ten seconds how far the cores are from each other, and at which distance to measure."""
        probes = []
        for _ in range(PROBES):
            probes.append(self.probe())
            time.sleep(PAUSE)
        lines, copies = zip(*probes)
        self.line, self.copy = usual(lines), statistics.median(copies)
        self.say(f"a cache line from core to core: {self.line} ns, of {min(lines)} to {max(lines)}")

    def bounds(self):
        return self.line / NEAR, self.line * NEAR

    def as_usual(self):
        low, high = self.bounds()
        return low <= self.probe()[0] <= high

    @contextlib.contextmanager
    def watch(self):
        """The driver's arguments by which it watches how far the cores are from each other."""
        low, high = self.bounds()
        with tempfile.NamedTemporaryFile() as page:
            page.write(bytes(PAGE))
            page.flush()
            yield ["-w", f"{low:.1f}:{high:.1f}:{page.name}"]

    def run(self, words, environment=None):
        """What the command printed, as lines of fields; why it failed, or ''."""
        words = [*self.prefix, "timeout", "-k", "5", str(LIMIT), *words]
        done = subprocess.run(
            words, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1][:160]
        return lines, why and f"exit status {done.returncode}: {why}"


class Results:
    """Samples of every cell and configuration."""

    def __init__(self):
        self.samples = {}
        self.bare = {}
        """By bytes, microseconds of a mapped all-reduce of two threads without a library, and of its stores alone: the least seen."""
        self.versions = {}
        self.notes = {}

    def add(self, cell, name, sample):
        self.samples.setdefault(cell, {}).setdefault(name, []).append(sample)

    def add_bare(self, size, times):
        self.bare[size] = [min(pair) for pair in zip(times, self.bare.get(size, times))]

    def note(self, text):
        self.notes[text] = True

    def best(self, cell, name):
        """The sample of the least median, of a quiet run where there was one; None if there is none."""
        samples = self.samples.get(cell, {}).get(name, [])
        quiet = [sample for sample in samples if not sample.noisy]
        return min(quiet or samples, key=lambda sample: sample.median, default=None)

    def peers(self, ours):
        """The names of all configurations that are not ours."""
        return {name for times in self.samples.values() for name in times if not name.startswith(ours)}

    def best_peer(self, cell, ours, among=None):
        """The quickest configuration that is not one of ours, of all or of those whose names `among` accepts, and its
        sample; None without a peer."""
        names = [n for n in self.samples.get(cell, {}) if not n.startswith(ours) and (among is None or among(n))]
        found = {name: self.best(cell, name) for name in names}
        name = min(found, key=lambda name: found[name].median, default=None)
        return name and (name, found[name])


def measure(machine, results, configuration, cells, seconds):
    """Runs a configuration over cells of one number of ranks; how many were noisy. Wrong data is noted, and gives no
    sample."""
    words, environment = configuration.command(cells[0].ranks)
    # The dynamic linker goes on without it.
    preloaded = environment.get("LD_PRELOAD")
    if preloaded and not pathlib.Path(preloaded).exists():
        sys.exit(f"error: {configuration.name}: there is no {preloaded}")
    with machine.watch() as watch:
        arguments = ["-t", str(seconds), *watch, *(cell.argument() for cell in cells)]
        lines, why = machine.run([*words, *arguments], environment)
    at, seen, loud = f"{configuration.name}, {cells[0].ranks} ranks", 0, 0
    for kind, *fields in lines:
        if kind == "version":
            results.versions[configuration.library] = fields[0]
        elif kind in ("cell", "wrong", "unsupported"):
            cell = Cell(cells[0].ranks, fields[0], fields[1], fields[2], int(fields[3]))
            seen += 1
            if kind == "cell":
                noisy = fields[7] == "noisy"
                loud += noisy
                results.add(cell, configuration.name, Sample(float(fields[4]), float(fields[6]), noisy))
            elif kind == "wrong":
                results.note(f"{at}: {cell.argument()}: wrong data")
            else:
                results.note(f"{configuration.library} has no {cell.collective} of {cell.type}")
    if why or seen < len(cells):
        results.note(f"{at}: {seen} of {len(cells)} cells; {why or 'it ended early'}")
    return loud


def groups(cells):
    """Cells that one run takes together: of as many ranks, and all-reduce by itself."""
    found = {}
    for cell in cells:
        found.setdefault((cell.ranks, cell.collective == "all_reduce"), []).append(cell)
    return list(found.values())


def contenders(results, cells, ours, within):
    """For each peer's configuration, the cells where it is within a factor of the best peer."""
    found = {}
    for cell in cells:
        best = results.best_peer(cell, ours)
        for name in results.samples.get(cell, {}):
            if best and not name.startswith(ours) and results.best(cell, name).median <= within * best[1].median:
                found.setdefault(name, []).append(cell)
    return found


def everything(machine, results, cells, configurations, ours, options):
    """Each group of cells in turn: every configuration over all its cells, then, `repeats` - 1 times, ours again over
    all of them and each peer's where it is within `options.contend` of the best. `options.only` may hold, from an
    earlier run, the cells that each configuration is measured in. Ours and the
    best peers get up to as many runs more where all were noisy."""
    start, split = time.monotonic(), groups(cells)

    def one(configuration, some):
        before = time.monotonic()
        loud = measure(machine, results, configuration, some, options.seconds)
        now = time.monotonic()
        machine.say(
            f"[{now - start:5.0f} s, group {done + 1} of {len(split)}] {some[0].ranks} ranks, {configuration.name}: "
            f"{len(some)} cells in {now - before:.1f} s{f', {loud} noisy' if loud else ''}"
        )

    for done, group in enumerate(split):
        fitting = [c for c in configurations if c.fits(group[0].ranks)]
        for repeat in range(options.repeats):
            if options.only is not None:
                wanted = {name: [c for c in group if c in some] for name, some in options.only.items()}
            elif repeat:
                wanted = contenders(results, group, ours, options.contend)
            else:
                wanted = {c.name: group for c in fitting}
            for configuration in fitting:
                some = group if configuration.library == ours else wanted.get(configuration.name)
                if some:
                    one(configuration, some)
            bare(machine, results, [cell for cell in BARE if cell in group])
        for _ in range(options.repeats):
            wanted = contenders(results, group, ours, 1.0)
            for configuration in fitting:
                some = group if configuration.library == ours else wanted.get(configuration.name, [])
                if noisy := [c for c in some if (s := results.best(c, configuration.name)) and s.noisy]:
                    one(configuration, noisy)


def bare(machine, results, cells):
    """What the machine's memory takes at that time for mapped all-reduces, whatever the library."""
    if not cells:
        return
    lines, why = machine.run([driver("limits"), "bare", *(str(cell.bytes) for cell in cells)])
    for size, *times in lines:
        results.add_bare(int(size), [float(time) for time in times])
    if why:
        results.note(f"limits: {why}")


def overlap(machine):
    """What the overlap driver prints, by arrangement: computation per µs alone and beside, µs of the call alone and
    beside; and whether the cores were elsewhere before or after."""
    for _ in range(PROBES):
        quiet = machine.as_usual()
        if quiet:
            break
        time.sleep(PAUSE)
    lines, why = machine.run([driver("overlap"), "-n", "2"])
    noisy = not (quiet and machine.as_usual())
    if why:
        return {}
    return {name: {"values": [float(v) for v in values], "noisy": noisy} for name, *values in lines}

"""Ratio to the best peer, and bus bandwidth, against size, as an SVG picture."""
import math

from .cells import RANKS, short
from .configurations import LIBRARIES, MAPPED, ORDINARY, OUR_CONFIGURATIONS
from .report import measured
from .targets import ratio

WIDTH, TOP, PANEL = 1180, 50, (470, 330)
LEFTS = (80, 660)
# Told apart also by people who do not see all colours (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00"]


class Axis:
    """Where values lie between the two ends, from 0 to 1, and what is written beside it."""

    def __init__(self, low, high, ticks, logarithmic):
        self.low, self.high, self.ticks, self.logarithmic = low, high, ticks, logarithmic

    def at(self, value):
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def of_sizes(sizes):
    low, high = min(sizes), max(sizes)
    powers = range(int(math.log2(low)), int(math.log2(high)) + 1, 3)
    return Axis(low, max(high, 2 * low), [(2**p, short(2**p)) for p in powers], True)


def linear(high):
    """Five steps of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(high / 5))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power * 5 >= high * 0.999)
    return Axis(0, 5 * step, [(i * step, f"{i * step:.4g}") for i in range(6)], False)


def panel(left, title, x, y, series, line_at=None):
    width, height = PANEL
    right, bottom = left + width, TOP + height
    across = lambda value: left + width * x.at(value)
    up = lambda value: bottom - height * min(1, max(0, y.at(value)))
    out = [f'<text x="{left + width / 2}" y="30" text-anchor="middle" font-size="16">{title}</text>']
    for value, name in y.ticks:
        h = up(value)
        out.append(f'<path d="M{left} {h:.1f}H{right}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{h + 4:.1f}" text-anchor="end">{name}</text>')
    for value, name in x.ticks:
        w = across(value)
        out.append(f'<path d="M{w:.1f} {TOP}V{bottom}" stroke="#eee"/>')
        out.append(f'<text x="{w:.1f}" y="{bottom + 20}" text-anchor="middle">{name}</text>')
    if line_at is not None:
        out.append(f'<path d="M{left} {up(line_at):.1f}H{right}" stroke="#333"/>')
    out.append(f'<rect x="{left}" y="{TOP}" width="{width}" height="{height}" fill="none" stroke="#333"/>')
    out.append(f'<text x="{left + width / 2}" y="{bottom + 42}" text-anchor="middle">Size (bytes)</text>')
    for i, (name, colour, dashed, points) in enumerate(series):
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        line = "L".join(f"{across(size):.1f} {up(value):.1f}" for size, value in points)
        stroke = f'stroke="{colour}" stroke-width="2"{dash}'
        if line:
            out.append(f'<path d="M{line}" fill="none" {stroke}/>')
        for size, value in [] if dashed else points:
            out.append(f'<circle cx="{across(size):.1f}" cy="{up(value):.1f}" r="3" fill="{colour}"/>')
        row = bottom + 75 + 20 * i
        out.append(f'<path d="M{left} {row}H{left + 40}" {stroke}/>')
        out.append(f'<text x="{left + 50}" y="{row + 4}">{name}</text>')
    return out


def svg(results):
    """Left the ratios of all-reduce for all numbers of ranks, right the bus bandwidths between 2; None without both."""
    by_ratio, by_bandwidth, sizes = [], [], set()
    for i, ranks in enumerate(RANKS):
        cells = measured(results, ranks, "all_reduce", "out")
        for configuration in (ORDINARY, MAPPED):
            points = [(c.bytes, r) for c in cells if (r := ratio(results, c, (configuration,))[0])]
            sizes |= {size for size, _ in points}
            dashed = configuration is MAPPED
            by_ratio.append((f"{ranks} ranks, {configuration.variant}", COLOURS[i], dashed, points))
    cells = measured(results, 2, "all_reduce", "out")
    for i, library in enumerate((*(c.name for c in OUR_CONFIGURATIONS), *LIBRARIES)):
        points = []
        for cell in cells:
            names = [n for n in results.samples[cell] if n == library or n.startswith(f"{library}/")]
            if names:
                microseconds = min(results.best(cell, name).median for name in names)
                points.append((cell.bytes, cell.bytes / microseconds / 1000))
        if points:
            by_bandwidth.append((library, COLOURS[i], library == MAPPED.name, points))
    if not sizes or not cells:
        return None
    x = of_sizes(sizes)
    highest = max(value for *_, points in by_bandwidth for _, value in points)
    rows = max(len(by_ratio), len(by_bandwidth))
    height = TOP + PANEL[1] + 80 + 20 * rows
    title = "all_reduce: time by the best peer's (below 1: quicker)"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        *panel(LEFTS[0], title, x, linear(max(1.25, max(v for *_, p in by_ratio for _, v in p))), by_ratio, 1),
        *panel(LEFTS[1], "all_reduce, 2 ranks: bus bandwidth (GB/s)", x, linear(highest), by_bandwidth),
        "</svg>",
    ]
    return "\n".join(out) + "\n"

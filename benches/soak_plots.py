#!/usr/bin/env python3
"""Draws the samples of a soak: benches/soak_plots.py FILE reads FILE.jsonl, which `lockkeeper-faults soak --out` writes, and
writes FILE-PICTURE.svg next to it."""

import json
import pathlib
import sys
from html import escape

from plots import COLOURS, DARK, TEXT, WIDTH, short

LEFT, RIGHT, TOP, HEIGHT = 78, 16, 62, 220
MIB = 1024.0 * 1024.0

PROCESSES = {
    "server": "server",
    "client-0": "client, TCP, with large values",
    "client-1": "client, connections cut",
    "client-2": "client, Unix socket",
    "embedded": "stores of a process, `file:` and `memory:`".replace("`", ""),
}


class Lines:
    """Lines over the minutes of a soak."""

    def __init__(self, title, unit):
        self.title, self.unit = title, unit
        self.series = []  # (name, [(minute, value)])

    def add(self, name, points):
        if points:
            self.series.append((name, points))

    def svg(self):
        last = max(minute for _, points in self.series for minute, _ in points)
        most = max(value for _, points in self.series for _, value in points) or 1
        step = nice(most / 5)
        high = step * (int(most / step) + 1)
        x = lambda minute: LEFT + (WIDTH - LEFT - RIGHT) * minute / last
        y = lambda value: TOP + HEIGHT * (1 - value / high)
        rows = (len(self.series) + 1) // 2
        height = TOP + HEIGHT + 60 + 20 * rows
        svg = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img" aria-label="{escape(self.title)}">',
            "<style>",
            f"text{{{TEXT};fill:#1f2328}} .small{{font-size:11px;fill:#59636e}} .title{{font-weight:600}}",
            ".card{fill:#fff;stroke:#d1d9e0} .grid{stroke:#d1d9e0} .line{fill:none;stroke-width:1.5}",
            " ".join(f".s{at}{{stroke:{colour}}}" for at, colour in enumerate(COLOURS)),
            "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .small{fill:#9198a1}",
            ".card{fill:#0d1117;stroke:#3d444d} .grid{stroke:#3d444d}",
            " ".join(f".s{at}{{stroke:{colour}}}" for at, colour in enumerate(DARK)) + "}",
            "</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            f'<text class="title" x="16" y="26">{escape(self.title)}</text>',
            f'<text class="small" x="16" y="46">{escape(self.unit)}, by minutes</text>',
        ]
        for tick in range(round(high / step) + 1):
            at = y(tick * step)
            svg.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            svg.append(f'<text class="small" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(tick * step)}</text>')
        minutes = nice(last / 6)
        for tick in range(int(last / minutes) + 1):
            svg.append(
                f'<text class="small" x="{x(tick * minutes):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{short(tick * minutes)}</text>'
            )
        for at, (name, points) in enumerate(self.series):
            path = " ".join(f"{x(minute):.1f},{y(value):.1f}" for minute, value in points)
            svg.append(f'<polyline class="line s{at}" points="{path}"><title>{escape(name)}</title></polyline>')
            left, down = 16 + 345 * (at % 2), TOP + HEIGHT + 45 + 20 * (at // 2)
            svg.append(f'<line class="line s{at}" x1="{left}" x2="{left + 14}" y1="{down - 4}" y2="{down - 4}"/>')
            svg.append(f'<text x="{left + 20}" y="{down}">{escape(name)}</text>')
        return "\n".join(svg + ["</svg>", ""])


def nice(value):
    """Returns the value rounded up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 0.1
    return next(power * part for part in (1, 2, 5, 10, 20) if power * part >= value)


def points(samples, name, scale=1.0):
    return [(sample["at"] / 60, sample[name] / scale) for sample in samples if name in sample]


def rates(samples, figures, smooth=3):
    """Returns the growth per second of a sum of counters, smoothed over some samples."""
    sums = [(sample["at"], sum(sample.get(name, 0) for name in figures)) for sample in samples]
    pairs = zip(sums, sums[smooth:])
    return [(to / 60, (after - before) / (to - since)) for (since, before), (to, after) in pairs]


def of_processes(title, unit, figure, scale=1.0):
    def draw(samples):
        lines = Lines(title, unit)
        for process, name in PROCESSES.items():
            lines.add(name, points(samples, f"{process}.{figure}", scale))
        return lines

    return draw


def ending(samples, figure):
    return [name for name in samples[-1] if name.endswith(f".{figure}")]


def state(samples):
    lines = Lines("State of the server under the soak", "number")
    for figure in ("znodes", "watches", "sessions", "ephemerals"):
        lines.add(figure, points(samples, f"server.{figure}"))
    return lines


def disk(samples):
    lines = Lines("Bytes on the disk under the soak", "MiB")
    lines.add("data folder of the server", points(samples, "server.disk", MIB))
    lines.add("backups, three kept", points(samples, "server.backup_bytes", MIB))
    lines.add("data folder of the store in a process", points(samples, "embedded.disk", MIB))
    return lines


def log(samples):
    lines = Lines("Log of the server, written since the start", "GB")
    lines.add("log", points(samples, "server.log_bytes", 1e9))
    return lines


def work(samples):
    lines = Lines("Work under the soak", "number per second")
    lines.add("grants at the server", rates(samples, [name for name in ending(samples, "grants") if ".served." in name]))
    lines.add("grants in a process", rates(samples, [name for name in ending(samples, "grants") if "embedded." in name]))
    lines.add("requests to the server", rates(samples, ["server.requests"]))
    return lines


PICTURES = {
    "memory": of_processes("Resident memory under the soak", "MiB", "rss", MIB),
    "descriptors": of_processes("Open descriptors under the soak", "number", "fds"),
    "state": state,
    "disk": disk,
    "log": log,
    "work": work,
}


def draw(text):
    """Returns the pictures of a soak, by name."""
    samples = [json.loads(line) for line in text.splitlines()]
    return {name: picture(samples).svg() for name, picture in PICTURES.items()}


def main(file):
    lines = pathlib.Path(file).with_suffix(".jsonl")
    for name, svg in draw(lines.read_text()).items():
        lines.with_name(f"{lines.stem}-{name}.svg").write_text(svg)


if __name__ == "__main__":
    main(sys.argv[1])

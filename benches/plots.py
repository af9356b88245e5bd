#!/usr/bin/env python3
"""Draws the saved benchmark runs: benches/plots.py FOLDER reads FOLDER/FAMILY.jsonl and writes FOLDER/FAMILY.svg."""

import json
import math
import pathlib
import sys
from html import escape

LEFT, TOP, HEIGHT, GROUP_GAP, BAR, WIDTH = 78, 62, 250, 34, 38, 720
TEXT = 'font:13px system-ui,sans-serif'
COLOURS = ["#0969da", "#54aeff", "#cf222e", "#ff8182", "#9a6700", "#8250df", "#59636e", "#1a7f37", "#bc4c00"]
DARK = ["#4493f8", "#79c0ff", "#f85149", "#ffa198", "#d29922", "#ab7df8", "#9198a1", "#3fb950", "#db6d28"]

NAMES = {
    "lockkeeper": "Lockkeeper, TCP",
    "lockkeeper+unix": "Lockkeeper, Unix socket",
    "redis": "Redis, TCP",
    "redis+unix": "Redis, Unix socket",
    "postgres": "Postgres",
    "wire": "Lockkeeper without a client library",
    "tokio": "tokio",
}
# Names in the race's pictures, which have a line for each system.
RACE_NAMES = {
    "memory": "Lockkeeper, `memory:`",
    "file": "Lockkeeper, `file:`",
    "tokio": "tokio's mutex",
    "async-lock": "async-lock's mutex",
    "lockkeeper": "Lockkeeper, TCP",
    "lockkeeper+unix": "Lockkeeper, Unix socket",
    "redis": "Redis",
    "redlock": "Redlock (rslock)",
    "postgres": "Postgres",
    "lockkeeper-durable": "Lockkeeper, TCP, synced",
    "redis-aof": "Redis, append-only file",
    "etcd": "etcd",
    "zookeeper": "Lockkeeper on ZooKeeper",
    "zookeeper-client": "zookeeper-client on ZooKeeper",
    "curator": "Curator on ZooKeeper",
    "kazoo": "kazoo on ZooKeeper",
}
IN_MEMORY = "Lockkeeper, in memory"
ECHO = "echo server, nothing written"

# Each has the same color in all pictures.
SERIES = ["Lockkeeper, TCP", "Lockkeeper, Unix socket", "Redis, TCP", "Redis, Unix socket", "Postgres"]
SERIES += ["Lockkeeper without a client library", ECHO, IN_MEMORY, "tokio"]


def name_of(line):
    """Returns the name of a line's system in the pictures, or None if it is not shown."""
    return IN_MEMORY if line.get("url") == "memory:" else NAMES.get(line["system"])


class Picture:
    """Bars in groups: a group for each case, a bar for each system."""

    def __init__(self, title, unit, is_log=False, floor=None):
        self.title, self.unit, self.is_log, self.floor = title, unit, is_log, floor
        self.groups = []  # (name, [(series, value, floor)])

    def add(self, group, series, value, floor=None):
        if value is None:
            return
        if not self.groups or self.groups[-1][0] != group:
            self.groups.append((group, []))
        self.groups[-1][1].append((series, value, floor))

    def series(self):
        names = []
        for _, bars in self.groups:
            names += [series for series, *_ in bars if series not in names]
        return names

    def svg(self):
        names = self.series()
        bars = sum(len(bars) for _, bars in self.groups)
        gaps = GROUP_GAP * (len(self.groups) + 1)
        bar = min(2.2 * BAR, (WIDTH - LEFT - 16 - gaps) / max(bars, 1))
        legend_lines = (len(names) + (self.floor is not None) + 1) // 2
        height = TOP + HEIGHT + 40 + 20 * legend_lines + 8
        values = [value for _, group in self.groups for _, value, _ in group]
        values += [floor for _, group in self.groups for *_, floor in group if floor]
        scale = Scale(values, self.is_log)
        svg = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img" aria-label="{escape(self.title)}">',
            "<style>",
            f"text{{{TEXT};fill:#1f2328}} .small{{font-size:11px;fill:#59636e}} .title{{font-weight:600}}",
            ".card{fill:#fff;stroke:#d1d9e0} .grid{stroke:#d1d9e0} .floor{stroke:#1f2328;stroke-width:2}",
            " ".join(f".s{at}{{fill:{colour}}}" for at, colour in enumerate(COLOURS)),
            "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .small{fill:#9198a1}",
            ".card{fill:#0d1117;stroke:#3d444d} .grid{stroke:#3d444d} .floor{stroke:#f0f6fc}",
            " ".join(f".s{at}{{fill:{colour}}}" for at, colour in enumerate(DARK)) + "}",
            "</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            f'<text class="title" x="16" y="26">{escape(self.title)}</text>',
            f'<text class="small" x="16" y="46">{escape(self.unit)}</text>',
        ]
        for tick in scale.ticks():
            y = scale.y(tick)
            svg.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
            svg.append(f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
        x = LEFT + GROUP_GAP
        for group, members in self.groups:
            start = x
            for series, value, floor in members:
                top = scale.y(value)
                box = f'x="{x + 2:.1f}" y="{top:.1f}" width="{bar - 4:.1f}" height="{max(TOP + HEIGHT - top, 1):.1f}"'
                what = escape(f"{series}, {group}: {short(value)}")
                svg.append(f'<rect class="bar s{SERIES.index(series)}" {box} rx="2"><title>{what}</title></rect>')
                svg.append(f'<text class="small" x="{x + bar / 2:.1f}" y="{top - 5:.1f}" text-anchor="middle">{short(value)}</text>')
                if floor:
                    y = scale.y(floor)
                    svg.append(f'<line class="floor" x1="{x:.1f}" x2="{x + bar:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
                x += bar
            middle = (start + x) / 2
            svg.append(f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 22}" text-anchor="middle">{escape(group)}</text>')
            x += GROUP_GAP
        entries = [
            (f'<rect class="s{SERIES.index(name)}" {{place}} width="12" height="12" rx="2"/>', name) for name in names
        ]
        if self.floor:
            entries.append(('<rect class="floor" {place} width="12" height="1"/>', self.floor))
        for at, (mark, name) in enumerate(entries):
            x, y = 16 + 345 * (at % 2), TOP + HEIGHT + 50 + 20 * (at // 2)
            svg.append(mark.format(place=f'x="{x}" y="{y - 11}"'))
            svg.append(f'<text class="legend" x="{x + 20}" y="{y}">{escape(name)}</text>')
        return "\n".join(svg + ["</svg>", ""])


class Race:
    """Horizontal bars on a logarithmic scale: a line for each system, with a bar for each case."""

    LEFT, TOP, BAR, GAP = 220, 62, 13, 9

    def __init__(self, title, unit):
        self.title, self.unit = title, unit
        self.systems = {}  # name -> [(case, value)]

    def add(self, system, case, value):
        if value:
            self.systems.setdefault(system, []).append((case, value))

    def svg(self):
        values = [value for bars in self.systems.values() for _, value in bars]
        low, high = math.floor(math.log10(min(values)) - 0.01), math.ceil(math.log10(max(values)))
        x = lambda value: self.LEFT + (WIDTH - 70 - self.LEFT) * (math.log10(value) - low) / (high - low)
        cases = []
        for bars in self.systems.values():
            cases += [case for case, _ in bars if case not in cases]
        shapes, y = [], self.TOP
        for name, bars in self.systems.items():
            tall = self.BAR * len(bars)
            shapes.append(f'<text x="{self.LEFT - 8}" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>')
            for case, value in bars:
                # Ours in blue, the others in gray, the second case lighter.
                style = 2 * (not name.startswith("Lockkeeper")) + cases.index(case)
                box = f'x="{self.LEFT}" y="{y}" width="{x(value) - self.LEFT:.1f}" height="{self.BAR - 2}"'
                shapes.append(f'<rect class="bar r{style}" {box} rx="2"><title>{escape(f"{name}, {case}: {short(value)}")}</title></rect>')
                shapes.append(f'<text class="small" x="{x(value) + 5:.1f}" y="{y + self.BAR - 3}">{short(value)}</text>')
                y += self.BAR
            y += self.GAP
        ticks = [10.0**power for power in range(low, high + 1)]
        grid = [f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{self.TOP - 6}" y2="{y}"/>' for tick in ticks]
        axis = [f'<text class="small" x="{x(tick):.1f}" y="{y + 14}" text-anchor="middle">{short(tick)}</text>' for tick in ticks]
        height = y + 24
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img" aria-label="{escape(self.title)}">',
            "<style>",
            f"text{{{TEXT};fill:#1f2328}} .small{{font-size:11px;fill:#59636e}} .title{{font-weight:600}}",
            ".card{fill:#fff;stroke:#d1d9e0} .grid{stroke:#d1d9e0}",
            ".r0{fill:#0969da} .r1{fill:#54aeff} .r2{fill:#59636e} .r3{fill:#afb8c1}",
            "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .small{fill:#9198a1}",
            ".card{fill:#0d1117;stroke:#3d444d} .grid{stroke:#3d444d}",
            ".r0{fill:#4493f8} .r1{fill:#1f5fb5} .r2{fill:#9198a1} .r3{fill:#59636e}}",
            "</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            f'<text class="title" x="16" y="26">{escape(self.title)}</text>',
        ]
        unit = self.unit if len(cases) == 1 else f"{self.unit}; {', below '.join(cases)}"
        head.append(f'<text class="small" x="16" y="46">{escape(unit)}, by powers of ten</text>')
        return "\n".join(head + grid + shapes + axis + ["</svg>", ""])


class Scale:
    """The vertical axis, from zero or logarithmic."""

    def __init__(self, values, is_log):
        self.is_log = is_log
        most = max(values, default=1)
        if is_log:
            self.low = math.floor(math.log10(min(values, default=1)) - 0.01)
            self.high = math.ceil(math.log10(most) + 0.01)
        else:
            step = 10 ** math.floor(math.log10(most))
            self.step = next(step * part for part in (0.2, 0.5, 1, 2) if most / (step * part) <= 6)
            self.high = self.step * math.ceil(most / self.step + 0.05)

    def ticks(self):
        if self.is_log:
            return [10.0**power for power in range(self.low, self.high + 1)]
        return [self.step * at for at in range(round(self.high / self.step) + 1)]

    def y(self, value):
        if self.is_log:
            share = (math.log10(value) - self.low) / (self.high - self.low)
        else:
            share = value / self.high
        return TOP + HEIGHT * (1 - share)


def short(value):
    """Returns a number with at most three digits, with k and M."""
    for limit, divisor, suffix in [(1e6, 1e6, "M"), (1e4, 1e3, "k")]:
        if value >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def figures(lines):
    return [line for line in lines if "ratio" not in line and "skipped" not in line]


def named(lines):
    """Returns the lines with figures of the shown systems, each with its name."""
    return [(name, line) for line in figures(lines) if (name := name_of(line))]


def latency(lines):
    picture = Picture("An uncontended lock, one client: p50", "time in µs", floor="echo round trip of the same rounds")
    for field, group in [("acquire_p50_us", "acquire"), ("release_p50_us", "release")]:
        for name, line in named(lines):
            picture.add(group, name, line.get(field), line.get("echo_p50_us"))
    return picture


def hand_overs(lines):
    picture = Picture("Hand-overs of one lock among contending clients", "hand-overs per second")
    for name, line in named(lines):
        picture.add(f"{line['clients']} clients", name, line.get("handovers_per_s"))
    return picture


def keys(lines):
    picture = Picture("10,000 keys, each locked and unlocked, over two connections", "locks per second")
    for name, line in named(lines):
        picture.add("256 tasks", name, line.get("cycles_per_s"))
    return picture


def durable(lines):
    picture = Picture("Durable writes: each is synced before it is answered", "writes per second, by powers of ten; connections × requests under way on each", is_log=True)
    for line in figures(lines):
        case = f"{line['connections']} × {line['in_flight']}"
        picture.add(case, "Lockkeeper, TCP", line.get("requests_per_s"))
        if line["in_flight"] == 1:
            echoes = line.get("echo_per_s") or 1e6 / line["echo_p50_us"]
            picture.add(case, ECHO, echoes)
    return picture


def process_end(lines):
    picture = Picture("From SIGKILL of a holder to the next grant: p50, timeout 4 s", "time in ms, by powers of ten", is_log=True)
    for name, line in named(lines):
        picture.add("from the signal to the grant", name, line["kill_to_grant_p50_us"] / 1e3)
    return picture


RECIPES = {"mutex": "mutex", "rwlock-read": "read lock", "semaphore": "semaphore of one permit"}


def memory_cycles(lines):
    picture = Picture("Uncontended locks in memory, one task", "cycles per second, by powers of ten", is_log=True)
    for name, line in named(lines):
        picture.add(RECIPES[line["recipe"]], name, line.get("cycles_per_s"))
    return picture


def memory_latency(lines):
    picture = Picture("From a release by a task to the next grant, in memory: p50", "time in µs, by powers of ten", is_log=True)
    for name, line in named(lines):
        if line["release_from"] == "task":
            case = "after 5 ms without work" if line["workload"] == "cold" else f"{line['n']:,} waiting"
            picture.add(case, name, line.get("handover_p50_us"))
    return picture


def memory_waiters(lines):
    picture = Picture("Memory of a waiter, with the task that waits", "bytes")
    for name, line in named(lines):
        picture.add("100,000 waiters", name, line["bytes_per_waiter_with_its_task"])
        picture.add("100,000 waiters", "tokio", line["bytes_per_tokio_waiter_with_its_task"])
    return picture


def race(title, unit, bars):
    """Returns a function that draws the race. `bars` returns the cases and values of a line."""

    def draw(lines):
        picture, lines = Race(title, unit), figures(lines)
        for system, name in RACE_NAMES.items():
            for line in lines:
                for case, value in bars(line) if line["system"] == system else []:
                    picture.add(name.replace("`", ""), case, value)
        return picture

    return draw


def race_w1(line):
    yield "acquire", line.get("acquire_p50_us")
    # The crate does not wait for the release.
    if line["system"] != "zookeeper-client":
        yield "release", line.get("release_p50_us")


PICTURES = {
    "race-w1": race("An uncontended lock, one client: p50", "time in µs", race_w1),
    "race-w2": race(
        "Hand-overs of one lock among contending clients",
        "hand-overs per second",
        lambda line: [(f"{line['clients']} clients", line["handovers_per_s"])],
    ),
    "race-w3": race(
        "From a release to the next grant: p50",
        "time in µs",
        lambda line: [(f"{line['n']} waiting", line["handover_p50_us"])],
    ),
    "race-w4": race(
        "10,000 keys, each locked and unlocked, over two connections",
        "locks per second",
        lambda line: [("256 tasks", line["cycles_per_s"])],
    ),
    "race-kill": race(
        "From SIGKILL of a holder to the next grant: p50, all timeouts 4 s",
        "time in ms",
        lambda line: [("from the signal to the grant", line["kill_to_grant_p50_us"] / 1e3)],
    ),
    "latency": latency,
    "hand-overs": hand_overs,
    "keys": keys,
    "durable": durable,
    "process-end": process_end,
    "memory-cycles": memory_cycles,
    "memory-hand-overs": hand_overs,
    "memory-latency": memory_latency,
    "memory-waiters": memory_waiters,
}


def draw(family, text):
    """Returns the picture of a family's lines."""
    return PICTURES[family]([json.loads(line) for line in text.splitlines()])


def main(folder):
    for family in PICTURES:
        file = folder / f"{family}.jsonl"
        if file.exists():
            (folder / f"{family}.svg").write_text(draw(family, file.read_text()).svg())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

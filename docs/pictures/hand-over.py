#!/usr/bin/env python3
"""Draws hand-over.svg from a run of the ledger example in which one worker dies while it holds the lock.

    docs/pictures/hand-over.py            runs the example, and writes docs/pictures/hand-over.svg
    docs/pictures/hand-over.py < OUTPUT   draws the output of an earlier run
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKERS = 3
STEP, LEFT, TOP, LANE, BAR = 84, 92, 44, 56, 26
# Between the holder's death and the next grant, seconds pass, and not milliseconds.
GAP = 2 * STEP


def run():
    transfers = (ROOT / "examples/data/transfers.csv").read_text().splitlines()[: WORKERS + 1]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as few:
        few.write("\n".join(transfers) + "\n")
        few.flush()
        command = ["cargo", "run", "--quiet", "--example", "ledger", "--"]
        options = [f"--workers={WORKERS}", "--crash=1", "--all-events", f"--transfers={few.name}"]
        return subprocess.run(command + options, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def events(output):
    """Yields (seconds, worker, text)."""
    for line in output.splitlines():
        if found := re.match(r" *([\d.]+) s  w(\d+) +(.*)", line):
            yield float(found[1]), int(found[2]), found[3]


def spans(story):
    """Returns (worker, kind, first, last, token) by the numbers of the events, and the marks (worker, event, text)."""
    done, marks, now = [], [], {}

    def end(worker, at):
        if worker in now:
            kind, first, token = now.pop(worker)
            done.append((worker, kind, first, at, token))

    for at, (_, worker, text) in enumerate(story):
        if text.startswith("queued"):
            now[worker] = ("waits", at, None)
        elif text.startswith("acquired"):
            for other in [other for other, (kind, _, _) in now.items() if kind == "dead"]:
                end(other, at)
                marks.append((other, at, "session expires"))
            end(worker, at)
            now[worker] = ("holds", at, re.search(r"token (\d+)", text)[1])
        elif text.startswith("DIES"):
            token = now[worker][2]
            end(worker, at)
            now[worker] = ("dead", at, token)
            marks.append((worker, at, "dies"))
        elif text.startswith("(dead)"):
            marks.append((worker, at, "late write refused"))
        elif text.startswith("released"):
            end(worker, at)
    return done, marks


def draw(story):
    done, marks = spans(story)
    tokens = [token for *_, token in done if token]
    [(dead, died, granted)] = [(worker, first, last) for worker, kind, first, last, _ in done if kind == "dead"]
    width, height = LEFT + STEP * len(story) + GAP + 24, TOP + LANE * WORKERS + 40
    x = lambda event: LEFT + STEP * event + (GAP if event >= granted else 0)
    y = lambda worker: TOP + LANE * (worker - 1)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-label="Three workers and one lock: one dies, the next is granted the lock">',
        "<style>",
        "text{font:13px system-ui,sans-serif;fill:#1f2328} .small{font-size:11px;fill:#59636e}",
        ".card{fill:#f6f8fa;stroke:#d1d9e0} .grid{stroke:#d1d9e0} .waits{fill:#d0d7de} .holds{fill:#1f883d}",
        ".dead{fill:none;stroke:#cf222e;stroke-width:2;stroke-dasharray:5 4} .mark{fill:#cf222e;font-size:11px}",
        ".on{fill:#ffffff} .gap{stroke:#cf222e;stroke-width:1.5}",
        "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .small{fill:#9198a1} .card{fill:#151b23;stroke:#3d444d}",
        ".grid{stroke:#3d444d} .waits{fill:#3d444d} .holds{fill:#238636} .dead{stroke:#f85149} .mark{fill:#ff7b72}",
        ".gap{stroke:#f85149}}",
        "</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
    ]
    for event, (seconds, *_) in enumerate(story):
        svg.append(f'<line class="grid" x1="{x(event)}" x2="{x(event)}" y1="{TOP - 10}" y2="{height - 34}"/>')
        svg.append(f'<text class="small" x="{x(event)}" y="{TOP - 18}" text-anchor="middle">{seconds:.3f} s</text>')
    gap = story[granted][0] - story[died][0]
    middle, level = (x(died) + x(granted)) / 2, y(dead) + BAR / 2
    for worker in range(1, WORKERS + 1):
        svg.append(f'<text x="16" y="{y(worker) + 18}">worker {worker}</text>')
    for worker, kind, first, last, token in done:
        inset = 1 if kind == "dead" else 0
        box = f'x="{x(first) + inset}" y="{y(worker) + inset}" width="{x(last) - x(first) - 2 * inset}"'
        svg.append(f'<rect class="{kind}" {box} height="{BAR - 2 * inset}" rx="4"/>')
        if kind == "waits":
            svg.append(f'<text x="{x(first) + 8}" y="{y(worker) + 18}">waits</text>')
        if kind == "holds":
            number = sorted(set(tokens), key=int).index(token) + 1
            svg.append(f'<text class="on" x="{x(first) + 8}" y="{y(worker) + 18}">token {number}</text>')
    for tip, back in ((x(died) + 8, 6), (x(granted) - 8, -6)):
        arrow = f"M{middle - 17 * back} {level}H{tip}m{back} -4l{-back} 4l{back} 4"
        svg.append(f'<path class="gap" fill="none" d="{arrow}"/>')
    svg.append(f'<text class="mark" x="{middle}" y="{level + 4}" text-anchor="middle">{gap:.1f} s until the next grant</text>')
    for worker, event, text in marks:
        anchor, offset = ("end", -3) if text == "session expires" else ("start", 3)
        place = f'x="{x(event) + offset}" y="{y(worker) + BAR + 15}" text-anchor="{anchor}"'
        svg.append(f'<text class="mark" {place}>{text}</text>')
    legend = "Grey: waits. Green: holds the lock. Dashed: dead, but its session (timeout 4 s) has not expired. Each column is an event."
    svg.append(f'<text class="small" x="16" y="{height - 14}">{legend}</text>')
    return "\n".join(svg + ["</svg>", ""])


if __name__ == "__main__":
    story = list(events(run() if sys.stdin.isatty() or not (text := sys.stdin.read()) else text))
    (ROOT / "docs/pictures/hand-over.svg").write_text(draw(story))

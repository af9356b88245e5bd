#!/usr/bin/env python3
"""Checks that the pictures and tables of the performance pages match the saved runs, docs/performance/*.jsonl, that
benches/plots.py draws well-formed pictures with every system, and that the pictures of the soak match its samples,
docs/proof/*.jsonl."""

import json
import pathlib
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benches"))
import goals
import plots
import race
import soak_plots

# Measured as well, but in no picture.
SINGLE_REQUESTS = ["create", "create, then list", "a sync"]
SVG = "{http://www.w3.org/2000/svg}"


def faults_of_picture(family, text, svg, units):
    """Yields the faults of a picture of these lines."""
    picture = xml.etree.ElementTree.fromstring(svg)
    bars = [bar for bar in picture.iter(f"{SVG}rect") if (bar.get("class") or "").startswith("bar")]
    titles = [bar.find(f"{SVG}title").text for bar in bars]
    texts = ["".join(item.itertext()) for item in picture.iter(f"{SVG}text")]
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        is_race = family in race.FAMILIES
        name = plots.RACE_NAMES.get(line["system"], "").replace("`", "") if is_race else plots.name_of(line)
        if "ratio" in line or "skipped" in line or line["system"] in SINGLE_REQUESTS:
            continue
        if name is None:
            yield f"{family}: {line['system']} has no name in the pictures"
            continue
        if not any(title.startswith(f"{name}, ") for title in titles):
            yield f"{family}: no bar of {name}"
        if name not in texts:
            yield f"{family}: {name} is not in the legend"
    if not bars:
        yield f"{family}: no bars"
    if not any(unit in text for unit in units for text in texts):
        yield f"{family}: the axis has no unit"
    width, height = float(picture.get("width")), float(picture.get("height"))
    for bar in bars:
        x, y, wide, high = (float(bar.get(side)) for side in ("x", "y", "width", "height"))
        if x < 0 or y < 0 or wide <= 0 or x + wide > width or y + high > height:
            yield f"{family}: a bar leaves the picture: {bar.find(f'{SVG}title').text}"
    if "prefers-color-scheme:dark" not in svg:
        yield f"{family}: no colours for a dark page"


def faults():
    units = {"race-w1": ["µs"], "race-w3": ["µs"], "race-kill": ["ms"], "latency": ["µs"], "process-end": ["ms"], "memory-latency": ["µs"], "memory-waiters": ["bytes"]}
    for family in plots.PICTURES:
        file = plots_folder / f"{family}.jsonl"
        if not file.exists():
            yield f"{file.relative_to(ROOT)} is missing"
            continue
        text = file.read_text()
        svg = plots.draw(family, text).svg()
        yield from faults_of_picture(family, text, svg, units.get(family, ["per second"]))
        if not file.with_suffix(".svg").exists() or file.with_suffix(".svg").read_text() != svg:
            yield f"{family}.svg is not that of {family}.jsonl: run benches/plots.py docs/performance"
    for page, mark, table in tables:
        text = (ROOT / page).read_text()
        if mark not in text:
            yield f"{page} has no place for a table: {mark}"
        if text != goals.between(text, mark, table):
            yield f"{page} has another table than that of the saved runs: run benches/goals.py --only ''"


def faults_of_soak(file):
    """Yields the faults of a soak's pictures."""
    for name, svg in soak_plots.draw(file.read_text()).items():
        picture = xml.etree.ElementTree.fromstring(svg)
        if not list(picture.iter(f"{SVG}polyline")):
            yield f"{file.stem}-{name}: no lines"
        drawn = file.with_name(f"{file.stem}-{name}.svg")
        if not drawn.exists() or drawn.read_text() != svg:
            yield f"{drawn.name} is not that of {file.name}: run benches/soak_plots.py {file.with_suffix('').relative_to(ROOT)}"


plots_folder = ROOT / "docs/performance"
soaks = sorted((ROOT / "docs/proof").glob("soak*.jsonl"))
tables = goals.tables(goals.load(plots_folder)) + race.tables(plots_folder)
found = list(faults()) + [fault for file in soaks for fault in faults_of_soak(file)]
if not soaks:
    found.append("docs/proof has no samples of a soak")
for fault in found:
    print(fault, file=sys.stderr)
if found:
    sys.exit(1)
print(f"docs/performance: {len(plots.PICTURES)} pictures and {len(tables)} tables are those of the saved runs")
print(f"docs/proof: the pictures of {len(soaks)} soaks are those of their samples")

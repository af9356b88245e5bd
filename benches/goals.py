#!/usr/bin/env python3
"""Checks the goals of the served store and of the store in memory, each against its peer in the same run.

    benches/goals.py                    runs everything (about eight minutes on an idle machine), saves the lines in
                                        docs/performance/, draws the pictures, and writes the tables into
                                        docs/performance.md and README.md
    benches/goals.py --only keys,bytes  runs only these families; the others keep their saved runs
    benches/goals.py --only memory      runs the families with this prefix, for the store in memory
    benches/goals.py --only ''          runs nothing, and writes pictures and tables again
    benches/goals.py --from FOLDER      runs nothing, and prints the tables of the runs saved in FOLDER
    benches/goals.py --to FOLDER        saves the lines there, and prints the tables without changing the pages
    benches/goals.py --seconds 1        measures each system in each case for so long (default: 3)

A row says so if its run or its peer is missing.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SAVED = ROOT / "docs/performance"

# A benchmark and its options for each family. {data} is a folder on a disk.
FAMILIES = {
    "latency": ("locks", "--url lockkeeper://,lockkeeper+unix:// --system redis,redis-unix,postgres --workload w1"),
    "hand-overs": ("locks", "--url lockkeeper://,lockkeeper+unix:// --system postgres,redis --workload w2"),
    "keys": ("locks", "--url lockkeeper://,lockkeeper+unix:// --system redis,redis-unix,postgres --workload w4"),
    "durable": ("wire", "--url lockkeeper:// --mix set --data {data}"),
    "process-end": ("locks", "--url lockkeeper://,lockkeeper+unix:// --system none --workload kill"),
    "bytes": ("locks", "--url lockkeeper:// --system none --workload bytes"),
    "zookeeper": ("locks", "--url zookeeper:// --system curator --workload w1,w2 --clients 64 --warm-up 10"),
    "etcd": ("locks", "--no-wire --url etcd:// --system etcd,etcd-go --workload w1,w2,w3,kill --clients 8,64 --n 1"),
    "memory-cycles": ("locks", "--url memory: --workload w1 --recipe mutex,rwlock-read,semaphore"),
    "memory-calls": ("locks", "--url memory: --workload w1 --recipe mutex,mutex-timeout,mutex-with,mutex-try,mutex-new-name"),
    "memory-hand-overs": ("locks", "--url memory: --workload w2"),
    "memory-timeouts": ("locks", "--url memory: --workload w2 --clients 8 --threads 1 --recipe mutex,mutex-timeout"),
    "memory-latency": ("locks", "--url memory: --workload w3,cold --n 1,100000"),
    "memory-waiters": ("memory", ""),
}


class Run:
    """The lines of a family's run."""

    def __init__(self, lines):
        self.lines = lines

    def figure(self, system, field, **conditions):
        """Returns a figure of a system, or None."""
        line = self.line(system, **conditions)
        return None if line is None else line.get(field)

    def line(self, system, **conditions):
        for line in self.lines:
            is_figure = line["system"] == system and "ratio" not in line and "skipped" not in line
            if is_figure and all(line.get(name) == value for name, value in conditions.items()):
                return line
        return None


def number(value):
    """Returns a number with three significant digits and thousands separators."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def floor(line):
    """Returns the floor of a line: the echo of its rounds, and how often the cores slept in them."""
    texts = []
    if (echo := line.get("echo_p50_us")) is not None:
        texts.append(f"echo {number(echo)} µs")
    if (echoes := line.get("echo_per_s")) is not None:
        texts.append(f"{number(echoes)} echoes/s")
    if (sync := line.get("sync_p50_us")) is not None:
        texts.append(f"a sync {number(sync)} µs")
    if (slept := line.get("cores_slept")) is not None:
        texts.append(f"{slept:.1f} sleeps")
    if (idle := line.get("cores_idle")) is not None:
        texts.append(f"{100 * idle:.0f} % idle")
    return ", ".join(texts)


class Row:
    """A row of the table: a figure, its peer's, and the bound of their ratio. A further peer has a name and a figure, and
    no bound."""

    def __init__(self, name, ours, theirs, bound, is_most, unit, of, further=("", None)):
        self.name, self.ours, self.theirs, self.bound, self.is_most = name, ours, theirs, bound, is_most
        self.unit, self.of, self.further = unit, of, further

    def goal(self):
        return f"{'≤' if self.is_most else '≥'} {self.bound:g} ×"

    def ratio(self):
        return None if not self.ours or not self.theirs else self.ours[1] / self.theirs[1]

    def is_met(self):
        return self.ratio() <= self.bound if self.is_most else self.ratio() >= self.bound

    def cells(self):
        """Returns the cells under HEAD."""
        if self.ratio() is None:
            return [self.name, self.goal(), "not measured", "", "", ""]
        verdict = "met" if self.is_met() else "**missed**"
        return [self.name, self.goal(), self.measured(), verdict, self.compared(), floor(self.ours[0])]

    def measured(self):
        return f"{self.ratio():.2f} ×"

    def compared(self):
        return f"{number(self.ours[1])} {self.unit}, {self.of} {number(self.theirs[1])}" + self.compared_further()

    def compared_further(self):
        name, figure = self.further
        return f", {name} {number(figure[1])}" if figure else ""


class Call(Row):
    """A row of a call that takes a mutex, compared with `lock` and with a map of tokio's mutexes, as a user would write it."""

    def __init__(self, name, ours, lock, bound, by_hand):
        of = "without" if "hand-over" in name else "`lock`"
        super().__init__(name, ours, lock, bound, True, "µs", of, ("by hand", by_hand))


class Limit(Row):
    """A row whose bound is a figure, not a ratio."""

    def goal(self):
        return f"≤ {self.bound:g} {self.unit}"

    def ratio(self):
        return self.ours[1] if self.ours else None

    def measured(self):
        return f"{number(self.ours[1])} {self.unit}"

    def compared(self):
        return f"{self.of} {number(self.theirs[1])} {self.unit}" + self.compared_further() if self.theirs else ""


def reader(runs):
    """Returns a function that finds a figure in the runs and returns its line and value."""

    def of(family, system, field, scale=1, **conditions):
        line = runs[family].line(system, **conditions)
        value = line and line.get(field)
        return None if value is None else (line, value * scale)

    return of


def served_rows(runs):
    """Returns the rows of the served store, in the order of the goals."""
    of = reader(runs)
    acquire = lambda system: of("latency", system, "acquire_p50_us")
    handovers = lambda system, clients: of("hand-overs", system, "handovers_per_s", clients=clients)
    keys = lambda system: of("keys", system, "cycles_per_s")
    durable = lambda field: of("durable", "lockkeeper", field, connections=64, in_flight=1)
    kill = lambda system: of("process-end", system, "kill_to_grant_p50_us", 1e-3)
    handover_bytes = lambda n: of("bytes", "lockkeeper", "handover_bytes", n=n)
    zookeeper = lambda system, field, **conditions: of("zookeeper", system, field, **conditions)

    def etcd(row, name, bound, is_most, unit, field, scale=1, **conditions):
        ours, rpc, go = (of("etcd", system, field, scale, **conditions) for system in ("lockkeeper", "etcd", "etcd-go"))
        return row(f"`etcd://` {name}", ours, rpc, bound, is_most, unit, "etcd's Lock RPC", ("its Go client", go))

    one = {"workload": "w1"}
    many = {"workload": "w2", "clients": 64}
    unix = "lockkeeper+unix"
    return [
        Row("acquire p50, TCP", acquire("lockkeeper"), acquire("redis"), 1.05, True, "µs", "Redis"),
        Row("acquire p50, Unix socket", acquire(unix), acquire("redis"), 0.8, True, "µs", "Redis by TCP"),
        Row("hand-overs, 64 clients", handovers("lockkeeper", 64), handovers("postgres", 64), 2, False, "/s", "Postgres"),
        Row("hand-overs, 512 clients", handovers("lockkeeper", 512), handovers("lockkeeper", 64), 1, False, "/s", "64 clients"),
        Row("10,000 keys, two connections", keys("lockkeeper"), keys("redis"), 2, False, "locks/s", "Redis"),
        Row("durable sets, 64 connections", durable("requests_per_s"), durable("echo_per_s"), 0.75, False, "/s", "echo server"),
        Limit("SIGKILL of a holder to the next grant, p50, Unix socket", kill(unix), kill("lockkeeper"), 1, True, "ms", "TCP, by its timeout of 4 s,"),
        Row("bytes of a hand-over with re-entry, n = 1,000", handover_bytes(1000), handover_bytes(1), 1.1, True, "B", "n = 1"),
        Row("`zookeeper://` acquire p50", zookeeper("lockkeeper", "acquire_p50_us", **one), zookeeper("curator", "acquire_p50_us", **one), 0.6, True, "µs", "Curator"),
        Row("`zookeeper://` release p50", zookeeper("lockkeeper", "release_p50_us", **one), zookeeper("curator", "release_p50_us", **one), 0.9, True, "µs", "Curator"),
        Row("`zookeeper://` hand-overs, 64 clients", zookeeper("lockkeeper", "handovers_per_s", **many), zookeeper("curator", "handovers_per_s", **many), 1.5, False, "/s", "Curator"),
        etcd(Row, "acquire p50", 1.1, True, "µs", "acquire_p50_us", **one),
        etcd(Row, "hand-overs, 8 clients", 3, False, "/s", "handovers_per_s", clients=8),
        etcd(Row, "hand-overs, 64 clients", 1, False, "/s", "handovers_per_s", clients=64),
        etcd(Limit, "grant of a fresh waiter, p50", 3, True, "ms", "handover_p50_us", 1e-3, workload="w3"),
        etcd(Limit, "SIGKILL of a holder to the next grant, p50, lease of 4 s", 5, True, "s", "kill_to_grant_p50_us", 1e-6, workload="kill"),
    ]


def memory_rows(runs):
    """Returns the rows of the store in memory, in the order of the goals."""
    of = reader(runs)

    def cycles(system, recipe):
        return of("memory-cycles", system, "cycles_per_s", recipe=recipe)

    def each(found):
        return found and (found[0], 1e6 / found[1])

    def cycle(recipe):
        return each(cycles("lockkeeper", recipe))

    def call(recipe, system="lockkeeper"):
        return each(of("memory-calls", system, "cycles_per_s", recipe=recipe))

    def turn(recipe, system="lockkeeper"):
        return each(of("memory-timeouts", system, "handovers_per_s", recipe=recipe))

    def handover(system, workload, n):
        conditions = {"workload": workload, "n": n, "release_from": "task"}
        return of("memory-latency", system, "handover_p50_us", **conditions)

    def growth(system):
        one, many = handover(system, "w3", 1), handover(system, "w3", 100_000)
        return one and many and (many[0], many[1] / one[1])

    waiter = of("memory-waiters", "lockkeeper", "bytes_per_waiter")
    tokio = lambda figure, *of: [figure("lockkeeper", *of), figure("tokio", *of)]
    return [
        Call("cycle by `lock_timeout`", call("mutex-timeout"), call("mutex"), 1.15, call("mutex-timeout", "tokio")),
        Call("cycle by `lock_with`", call("mutex-with"), call("mutex"), 1.15, None),
        Call("cycle by `try_lock`", call("mutex-try"), call("mutex"), 1.15, None),
        Call("hand-over among 8 tasks with a timeout", turn("mutex-timeout"), turn("mutex"), 1.3, turn("mutex-timeout", "tokio")),
        Limit("cycle of a name never used before", call("mutex-new-name"), call("mutex"), 3, True, "µs", "`lock`"),
        Row("hand-over p50 from a task, n = 1", *tokio(handover, "w3", 1), 2, True, "µs", "tokio"),
        Row("its growth to n = 100,000", *tokio(growth), 1, True, "×", "tokio's own"),
        Row("cold hand-over p50", *tokio(handover, "cold", 1), 3, True, "µs", "tokio"),
        Row("cycle of a semaphore of one permit", cycle("semaphore"), cycle("mutex"), 1.25, True, "µs", "of a mutex"),
        Row("cycle of a read lock", cycle("rwlock-read"), cycle("mutex"), 1.1, True, "µs", "of a mutex"),
        Limit("bytes of a waiter", waiter, None, 512, True, "B", ""),
    ]


HEAD = ["", "goal", "measured", "", "compared with", "floor of its rounds"]


def table(rows):
    """Returns the table of these rows, without the last column if it is empty."""
    cells = [row.cells() for row in rows]
    columns = len(HEAD) if any(row[-1] for row in cells) else len(HEAD) - 1
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row[:columns]) for row in [HEAD, *cells]]
    return "\n".join([lines[0], "|---" * columns + "|", *lines[1:]])


def missed(served, memory):
    """Returns the table of missed goals for README.md."""
    lines = ["| Missed goal | Measured | Compared with | Goal |", "|---|---|---|---|"]
    for prefix, rows in (("", served), ("`memory:` ", memory)):
        for row in rows:
            if row.ratio() is not None and not row.is_met():
                lines.append(f"| {prefix}{row.name} | {row.measured()} | {row.of} | {row.goal()} |")
    return "\n".join(lines) if len(lines) > 2 else "All goals are met."


def load(folder, families=FAMILIES):
    """Returns the saved runs. A family without one gets a run without lines."""
    runs = {}
    for family in families:
        file = folder / f"{family}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        runs[family] = Run([json.loads(line) for line in lines])
    return runs


def tables(runs):
    """Returns the page, mark and text of each table."""
    served, memory = served_rows(runs), memory_rows(runs)
    return [
        ("docs/performance.md", "<!-- goals -->", table(served)),
        ("docs/performance.md", "<!-- memory-goals -->", table(memory)),
        ("README.md", "<!-- missed -->", missed(served, memory)),
    ]


def between(text, mark, content):
    """Replaces the text between two marks."""
    return re.sub(f"({mark}\n).*?({mark})", lambda found: found[1] + content + "\n" + found[2], text, flags=re.DOTALL)


def show(runs):
    """Prints the tables with measured goals."""
    tables = [table(rows) for rows in (served_rows(runs), memory_rows(runs)) if any(row.ours for row in rows)]
    print("\n\n".join(tables))


def measure(family, benchmark, options, folder):
    """Runs a family and saves its lines without the ratios."""
    command = ["cargo", "bench", "--quiet", "-p", "lockkeeper-bench", "--bench", benchmark, "--", *options]
    print(f"{family}: {' '.join(command)}", file=sys.stderr, flush=True)
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line for line in output.splitlines() if line.startswith("{") and '"ratio":' not in line]
    folder.mkdir(exist_ok=True)
    (folder / f"{family}.jsonl").write_text("".join(line + "\n" for line in lines))


def read_arguments(parser, families, rounds):
    """Returns the command line, with `only` as the list of the families to run, given by name or by prefix."""
    parser.add_argument("--only", default=",".join(families))
    parser.add_argument("--from", dest="source", type=pathlib.Path)
    parser.add_argument("--to", dest="folder", type=pathlib.Path, default=SAVED)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=rounds)
    arguments = parser.parse_args()
    only = []
    for name in filter(None, arguments.only.split(",")):
        found = [family for family in families if family == name or family.startswith(f"{name}-")]
        if not found:
            parser.error(f"unknown: {name}; there are {', '.join(families)}")
        only += found
    arguments.only = [] if arguments.source else only
    return arguments


def publish(tables):
    """Writes the tables into their pages, and draws the pictures of the saved runs."""
    for page, mark, text in tables:
        file = ROOT / page
        file.write_text(between(file.read_text(), mark, text))
    subprocess.run([ROOT / "benches/plots.py", SAVED], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = read_arguments(parser, FAMILIES, rounds=7)
    for family in arguments.only:
        benchmark, options = FAMILIES[family]
        with tempfile.TemporaryDirectory(dir=ROOT / "target") as data:
            options = options.format(data=data).split()
            options += ["--seconds", str(arguments.seconds), "--rounds", str(arguments.rounds)]
            measure(family, benchmark, options, arguments.folder)
    runs = load(arguments.source or arguments.folder)
    show(runs)
    if not arguments.source and arguments.folder == SAVED:
        publish(tables(runs))


if __name__ == "__main__":
    main()

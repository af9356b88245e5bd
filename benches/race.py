#!/usr/bin/env python3
"""The race: all lock systems under the same workloads, in alternating rounds on loopback.

    benches/race.py                    installs what is missing, starts the servers, runs everything (about fifteen minutes
                                       on an idle machine), stops the servers, saves the lines in docs/performance/, draws
                                       the pictures, and writes the tables into docs/performance.md and README.md
    benches/race.py --only race-w1     runs only this workload; the others keep their saved runs
    benches/race.py --only ''          runs nothing, and writes table and pictures again
    benches/race.py --from FOLDER      runs nothing, and prints the table of the runs saved in FOLDER
    benches/race.py --to FOLDER        saves the lines there, and prints the table without changing the page
    benches/race.py --seconds 1        measures each system in each case for so long (default: 3, in 3 rounds)
    benches/race.py --smoke COMMAND    runs each workload briefly, with this `lockkeeper` and the installed servers

A missing system is reported with the reason. A run fails if two clients held a lock at the same time, or if one of our locks
was granted out of order.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

import goals
import plots

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", goals.ROOT / "target"))

# Where each system keeps the state of its locks, and the order of grants that it promises or is built for.
PROCESS, MEMORY, SYNCED = "one process", "server, memory", "server, synced"
ARRIVAL, NONE = "arrival", "none"
SYSTEMS = {
    "memory": (PROCESS, ARRIVAL),
    "file": (PROCESS, ARRIVAL),
    "tokio": (PROCESS, ARRIVAL),
    "async-lock": (PROCESS, NONE),
    "lockkeeper": (MEMORY, ARRIVAL),
    "lockkeeper+unix": (MEMORY, ARRIVAL),
    "redis": (MEMORY, NONE),
    "redlock": ("5 servers, memory", NONE),
    "postgres": (MEMORY, ARRIVAL),
    "lockkeeper-durable": (SYNCED, ARRIVAL),
    "redis-aof": (SYNCED, NONE),
    "etcd": (SYNCED, ARRIVAL),
    "zookeeper": (SYNCED, ARRIVAL),
    "zookeeper-client": (SYNCED, ARRIVAL),
    "curator": (SYNCED, ARRIVAL),
    "kazoo": (SYNCED, ARRIVAL),
}
OURS = ["memory", "file", "lockkeeper", "lockkeeper+unix", "lockkeeper-durable", "zookeeper"]
# The first one starts the ZooKeeper.
OF_ZOOKEEPER = ["zookeeper", "zookeeper-client", "curator", "kazoo"]

URLS = {"lockkeeper": "lockkeeper://", "lockkeeper+unix": "lockkeeper+unix://"}
RACERS = ["--no-wire", "--url", ",".join(URLS.values()), "--system", ",".join(system for system in SYSTEMS if system not in URLS)]

FAMILIES = {
    "race-w1": "--workload w1 --warm-up 0.5",
    "race-w2": "--workload w2 --clients 8,64",
    "race-w3": "--workload w3 --n 1,10",
    "race-w4": "--workload w4",
    "race-kill": "--workload kill",
}

# Debian packages whose versions are reported.
PACKAGES = ["redis-server", "etcd-server", "postgresql", "zookeeper", "libcurator-recipes-java"]

HEAD = [
    "",
    "state",
    "order of grants",
    "acquire / release, µs",
    "hand-overs/s, 8 / 64 clients",
    "release to grant, µs, 1 / 10 waiting",
    "10,000 keys, locks/s",
    "SIGKILL to grant, s",
]


def cells(system, runs):
    """Returns the cells of a system's row."""
    state, order = SYSTEMS[system]
    figure = lambda family, field, **conditions: runs[family].figure(system, field, **conditions)

    def text(value):
        return "–" if value is None else goals.number(value)

    checked = [line for line in runs["race-w3"].lines if line["system"] == system and line.get("order_checked")]
    if checked:
        overtakes, grants = (sum(line[field] for line in checked) for field in ("order_overtakes", "order_checked"))
        order += f": {overtakes:,.0f} of {grants:,.0f} overtook"
    # The crate does not wait for the release.
    release = None if system == "zookeeper-client" else figure("race-w1", "release_p50_us")
    killed = figure("race-kill", "kill_to_grant_p50_us")
    handovers = [text(figure("race-w2", "handovers_per_s", clients=clients)) for clients in (8, 64)]
    latencies = [text(figure("race-w3", "handover_p50_us", n=n)) for n in (1, 10)]
    return [
        plots.RACE_NAMES[system],
        state,
        order,
        f"{text(figure('race-w1', 'acquire_p50_us'))} / {text(release)}",
        " / ".join(handovers),
        " / ".join(latencies),
        text(figure("race-w4", "cycles_per_s")),
        text(killed and killed / 1e6),
    ]


def table(runs):
    """Returns the table of the measured systems, and why the others are missing."""
    measured = [system for system in SYSTEMS if any(run.line(system) for run in runs.values())]
    rows = [HEAD, *(cells(system, runs) for system in measured)]
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows]
    text = "\n".join([lines[0], "|---" * len(HEAD) + "|", *lines[1:]])
    for system, why in sorted(skipped(line for run in runs.values() for line in run.lines).items()):
        text += f"\n\nWithout {plots.RACE_NAMES[system]}: {why}."
    return text


# The systems in README.md by the promise of a grant, with their options. All systems are in docs/performance.md.
FRONT_PAGE = {
    "synced": {
        "lockkeeper-durable": "Lockkeeper, TCP (the default)",
        "redis-aof": "Redis, `appendfsync always`",
        "etcd": "etcd, lock API",
        "zookeeper": "Lockkeeper on ZooKeeper",
        "curator": "Curator on ZooKeeper",
    },
    "in memory": {
        "lockkeeper": "Lockkeeper, TCP, `--data memory`",
        "lockkeeper+unix": "the same, Unix socket",
        "redis": "Redis",
        "postgres": "Postgres, advisory lock",
    },
    "in process": {"memory": "Lockkeeper, `memory:`", "tokio": "tokio's `Mutex`"},
}


def time(us):
    """Returns a time with a suitable unit."""
    unit, scale = next((unit, scale) for unit, scale in (("s", 1e6), ("ms", 1e3), ("µs", 1)) if us >= scale or scale == 1)
    return f"{goals.number(us / scale)} {unit}"


# The columns of README.md: how to find the best figure, how to format one, and where the figures are.
FRONT_COLUMNS = {
    "Acquire, p50": (min, time, [("race-w1", "acquire_p50_us", {})]),
    "Hand-overs/s, 8 / 64 clients": (max, goals.number, [("race-w2", "handovers_per_s", {"clients": clients}) for clients in (8, 64)]),
    "10,000 keys, locks/s": (max, goals.number, [("race-w4", "cycles_per_s", {})]),
    "`kill -9` to next grant": (min, time, [("race-kill", "kill_to_grant_p50_us", {})]),
}


def front_page(runs):
    """Returns the table for README.md. The best figure of each group is bold."""
    head = ["A grant is", "System", *FRONT_COLUMNS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for promise, systems in FRONT_PAGE.items():
        for system, name in systems.items():
            line = f"| {promise} | {name} |" if system == next(iter(systems)) else f"| | {name} |"
            for best, text, sources in FRONT_COLUMNS.values():
                cells = []
                for family, field, conditions in sources:
                    figures = {it: runs[family].figure(it, field, **conditions) for it in systems}
                    top = best(filter(None, figures.values()), default=None)
                    cell = "–" if figures[system] is None else text(figures[system])
                    cells.append(f"**{cell}**" if top and figures[system] == top else cell)
                line += f" {' / '.join(cells)} |"
            lines.append(line)
    return "\n".join(lines)


def caption(about):
    """Returns the conditions of the saved runs."""
    versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    return (
        f"Measured in {about['month']} on {about['cores']} cores ({about['processor']}), {about['seconds']:g} s for each system in "
        f"each case in {about['rounds']} alternating rounds; the load of the machine was {about['load']:.1f} at the start. "
        f"Debian's {versions}; {about['kazoo'].replace('==', ' ')}."
    )


def tables(folder):
    """Returns the page, mark and text of each table."""
    about = json.loads((folder / "race.json").read_text())
    runs = goals.load(folder, FAMILIES)
    text = f"{caption(about)}\n\n{table(runs)}"
    return [("docs/performance.md", "<!-- race -->", text), ("README.md", "<!-- race -->", front_page(runs))]


def skipped(lines):
    """Returns the missing systems and why they are missing."""
    found = {line["system"]: line["skipped"] for line in lines if "skipped" in line}
    if "zookeeper" in found:
        found.update(dict.fromkeys(OF_ZOOKEEPER, found["zookeeper"]))
    return found


def faults(lines):
    """Yields violations of exclusion and of the order of grants."""
    for line in lines:
        case = f"{line['system']}, {line['workload']}"
        if line.get("exclusion_violations"):
            yield f"{case}: {line['exclusion_violations']:.0f} times two clients held the lock"
        if line.get("order_violations"):
            yield f"{case}: {line['order_violations']:.0f} tokens did not grow"
        if line["system"] in OURS and line.get("order_overtakes"):
            yield f"{case}: {line['order_overtakes']:.0f} of {line['order_checked']:.0f} grants out of order"


def end_with(found):
    """Exits, with an error if there are faults."""
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(1 if found else 0)


def kazoo_version():
    """Returns the kazoo package that the tests install."""
    return re.search(r"^kazoo=(\S+)$", (goals.ROOT / "tests/run").read_text(), re.MULTILINE)[1]


def install_kazoo():
    """Installs kazoo into the tests' virtual environment, and sets LOCKKEEPER_PYTHON for the benchmark."""
    folder, package = TARGET / "venv", kazoo_version()
    installed = folder / "installed"
    if not installed.exists() or installed.read_text().strip() != package:
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"without kazoo: {error}", file=sys.stderr)
            return
        installed.write_text(f"{package}\n")
    os.environ["LOCKKEEPER_PYTHON"] = str(folder / "bin/python")


def debian_version(package):
    """Returns the upstream version of a package, or None if it is not installed."""
    query = ["dpkg-query", "--show", "--showformat=${Version}", package]
    found = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return re.sub(r"^\d+:|[-+].*$", "", found.stdout) if found.returncode == 0 else None


def conditions(arguments, load):
    """Returns the conditions of a run."""
    processors = pathlib.Path("/proc/cpuinfo").read_text()
    processor = re.search(r"^model name\s*: (.+)$", processors, re.MULTILINE)
    versions = {package: debian_version(package) for package in PACKAGES}
    return {
        "month": datetime.date.today().strftime("%B %Y"),
        "cores": os.cpu_count(),
        "processor": processor[1] if processor else os.uname().machine,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "load": load,
        "kazoo": kazoo_version(),
        "versions": {package: version for package, version in versions.items() if version},
    }


def race(arguments):
    """Runs the chosen families, and saves their lines and conditions."""
    load = os.getloadavg()[0]
    install_kazoo()
    for family in arguments.only:
        options = [*RACERS, *FAMILIES[family].split()]
        options += ["--seconds", str(arguments.seconds), "--rounds", str(arguments.rounds)]
        goals.measure(family, "locks", options, arguments.folder)
    if arguments.only:
        about = json.dumps(conditions(arguments, load), indent=2, ensure_ascii=False)
        (arguments.folder / "race.json").write_text(about + "\n")


def smoke(command):
    """Runs each workload briefly with the installed servers. Each of these must have figures."""
    install_kazoo()
    run = ["cargo", "test", "--quiet", "--workspace", "--all-features", "--bench", "locks", "--", *RACERS]
    workloads = ["w1", "w2", "w3", "w4"]
    run += ["--workload", ",".join(workloads), "--clients", "2", "--n", "2", "--seconds", "0.1", "--rounds", "1"]
    run += ["--server", str(pathlib.Path(command).resolve())]
    environment = {**os.environ, "LOCKKEEPER_INSTALL": "no"}
    output = subprocess.run(run, cwd=goals.ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    without, measured = skipped(lines), goals.Run(lines)
    for system, why in without.items():
        print(f"{system}: skipped, {why}")
    there = [system for system in SYSTEMS if system not in without]
    missing = [
        f"{system} has no figures of {workload}"
        for system in there
        for workload in workloads
        if not measured.line(system, workload=workload)
    ]
    print(f"race: {len(there)} systems, each in {', '.join(workloads)}: {', '.join(there)}")
    end_with(missing + list(faults(lines)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", metavar="COMMAND")
    arguments = goals.read_arguments(parser, FAMILIES, rounds=3)
    if arguments.smoke:
        smoke(arguments.smoke)
    race(arguments)
    folder = arguments.source or arguments.folder
    runs = goals.load(folder, FAMILIES)
    print(table(runs))
    if folder == goals.SAVED:
        goals.publish(tables(folder))
    end_with(list(faults(line for run in runs.values() for line in run.lines)))


if __name__ == "__main__":
    main()

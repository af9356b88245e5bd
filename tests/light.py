#!/usr/bin/env python3
"""Measures how light the server is, compared with redis-server in the same run: its file size, the time from exec
until it is ready, and its memory at rest.

    cargo build --release -p lockkeeper-cli && tests/light.py [--starts N]

redis-server is Debian's package. Both listen only on 127.0.0.1, on a free port, and starts alternate. Fails unless
each of our servers is under 10 MB at rest.
"""

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Limit for each of our servers.
MOST_BYTES_AT_REST = 10_000_000


def lockkeeper(program, keeps, *options):
    def command(folder):
        data = os.path.join(folder, "data") if keeps else "memory"
        return [program, "serve", "--listen", "127.0.0.1:0", "--data", data, *options]

    return program, command, b"lockkeeper ready"


def redis(program, keeps):
    def command(folder):
        keep = "yes" if keeps else "no"
        return [
            program, "--port", str(free_port()), "--bind", "127.0.0.1", "--dir", folder,
            "--save", "", "--appendonly", keep, "--appendfsync", "always",
        ]

    return program, command, b"Ready to accept connections"


def measure(command, ready, folder):
    """Returns milliseconds until ready, and the resident memory in KiB a second later: total and private."""
    arguments = command(folder)
    begun = time.perf_counter()
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        for line in server.stdout:
            if ready in line:
                break
        else:
            sys.exit(f"{arguments[0]} ended before it was ready")
        start = (time.perf_counter() - begun) * 1000
        time.sleep(1)
        with open(f"/proc/{server.pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        size = [int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon")]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return start, *size


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--starts", type=int, default=11, help="of each")
    options.add_argument("--lockkeeper", default=os.path.join(ROOT, "target/release/lockkeeper"))
    options.add_argument("--redis", default=shutil.which("redis-server"))
    chosen = options.parse_args()
    subjects = {
        "lockkeeper serve, memory": lockkeeper(chosen.lockkeeper, False),
        "lockkeeper serve, a directory": lockkeeper(chosen.lockkeeper, True),
        "lockkeeper serve, a directory, with metrics": lockkeeper(
            chosen.lockkeeper, True, "--metrics-listen", "127.0.0.1:0"
        ),
    }
    ours = list(subjects)
    if chosen.redis:
        subjects["redis-server, memory"] = redis(chosen.redis, False)
        subjects["redis-server, append-only file"] = redis(chosen.redis, True)
    seen = {name: [] for name in subjects}
    again = {name: [] for name in subjects}
    for _ in range(chosen.starts):
        for name, (_, command, ready) in subjects.items():
            with tempfile.TemporaryDirectory() as folder:
                seen[name].append(measure(command, ready, folder))
                again[name].append(measure(command, ready, folder)[0])
    print("| | file | first start | started again | memory at rest | of it private |")
    print("|---|---|---|---|---|---|")
    for name, (program, _, _) in subjects.items():
        starts, resident, own = zip(*seen[name])
        size = os.stat(os.path.realpath(program)).st_size
        print(
            f"| {name} | {size / 2**20:.1f} MiB "
            f"| {statistics.median(starts):.0f} ms | {statistics.median(again[name]):.0f} ms "
            f"| {statistics.median(resident) / 1024:.1f} MiB | {statistics.median(own) / 1024:.1f} MiB |"
        )
    heavy = [name for name in ours if max(size for _, size, _ in seen[name]) * 1024 >= MOST_BYTES_AT_REST]
    if heavy:
        sys.exit(f"not under {MOST_BYTES_AT_REST / 1e6:.0f} MB at rest: {', '.join(heavy)}")


main()

#!/usr/bin/env python3
"""Runs the same scripts of real clients on a real ZooKeeper and on `lockkeeper serve`.

    run.py [--servers zookeeper,lockkeeper] [--target FOLDER] [--verbose] [SCRIPT…]

Each script has a separate server, whose connections it may cut and which it may kill (wire.py). It prints one line
per check and exits with 1 at the first difference. In the end both servers must have produced the same lines, except
for the known differences in differences.py. tests/run installs the dependencies.
"""

import argparse
import concurrent.futures
import difflib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from differences import expectations
from servers import Lockkeeper, ZooKeeper
from wire import Control, Proxy

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 240
CLASSPATH = ":".join(
    f"/usr/share/java/{jar}.jar"
    for jar in ("curator-recipes", "curator-x-discovery", "jackson-databind", "jackson-core",
                "jackson-annotations", "zookeeper", "commons-cli", "slf4j-nop"))


def scripts(built, target):
    """Returns names and commands, longest first."""
    python = lambda name: [sys.executable, "-u", str(HERE / f"{name}.py")]
    java = lambda name: ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
                         "-cp", f"{built}:{CLASSPATH}", name]
    return {
        "curator-recipes": java("CuratorRecipes"),
        "kazoo-sessions": python("kazoo_sessions"),
        "kazoo-recipes": python("kazoo_recipes"),
        "zkcli": python("zkcli"),
        "curator-sessions": java("CuratorSessions"),
        "curator-calls": java("CuratorCalls"),
        "kazoo-calls": python("kazoo_calls"),
        "kazoo-rights": python("kazoo_rights"),
        "rust-client": [str(target / "debug/examples/rust_client")],
        "c-client": [str(built / "c_client")],
    }


def build(built, names):
    """Compiles the clients that need it."""
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(parents=True)
    if any(name.startswith("curator") for name in names):
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:-deprecation", "-encoding", "UTF-8", "-cp", CLASSPATH, "-d", built,
             *sorted(HERE.glob("*.java"))], check=True)
    if "c-client" in names:
        subprocess.run(
            ["cc", "-Wall", "-Werror", "-O1", "-DTHREADED", "-o", built / "c_client",
             *sorted(HERE.glob("*.c")), "-lzookeeper_mt", "-lpthread"], check=True)


def attempt(name, command, kind, folder):
    """Runs a script on a fresh server. Returns whether it passed, its output and its seconds."""
    start = time.monotonic()
    folder = folder / f"{name}-{kind.name}"
    folder.mkdir()
    server = kind(folder)
    try:
        server.start()
    except Exception as error:
        if server.running():
            server.end(True)
        return False, f"{error}", time.monotonic() - start
    proxy = Proxy(server.port)
    control = Control(server, proxy)
    environment = {
        **os.environ, **expectations(kind.version), "SERVER": kind.name,
        "HOSTS": f"127.0.0.1:{server.port}", "WIRE": f"127.0.0.1:{proxy.port}",
        "CONTROL": str(control.port), "CLASSPATH": CLASSPATH, "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS)
        passed, said = done.returncode == 0, done.stdout
        if passed:
            server.end(False)
        else:
            said += f"\n-- the server's log:\n{server.log()}"
    except subprocess.TimeoutExpired as over:
        passed, said = False, f"{over.stdout or b''!s}\nnot done after {SECONDS} s".replace("\\n", "\n")
        said += f"\n-- the server's log:\n{server.log()}"
    except Exception as error:
        passed, said = False, f"{error}"
    finally:
        control.close()
        proxy.close()
        if server.running():
            server.end(True)
    return passed, said, time.monotonic() - start


def compared(said):
    return [line for line in said.splitlines() if not line.startswith("~")]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--servers", default="zookeeper,lockkeeper")
    options.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="cargo's folder")
    options.add_argument("--jobs", type=int, default=5)
    options.add_argument("--verbose", action="store_true", help="print what passed, too")
    options.add_argument("scripts", nargs="*")
    options = options.parse_args()
    Lockkeeper.binary = str(options.target / "debug/lockkeeper")
    built = options.target / "clients"
    kinds = [{"zookeeper": ZooKeeper, "lockkeeper": Lockkeeper}[name] for name in options.servers.split(",")]
    commands = scripts(built, options.target)
    names = options.scripts or list(commands)
    build(built, names)
    results, failed = {}, []
    with tempfile.TemporaryDirectory(prefix="clients-") as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {
            pool.submit(attempt, name, commands[name], kind, pathlib.Path(folder)): (name, kind.name)
            for name in names for kind in kinds
        }
        for future in concurrent.futures.as_completed(running):
            name, server = running[future]
            passed, said, seconds = future.result()
            results[name, server] = said
            print(f"{name} on {server}: {'passed' if passed else 'FAILED'}, "
                  f"{len(said.splitlines())} lines, {seconds:.0f} s", flush=True)
            if not passed:
                failed.append(f"{name} on {server}")
            if not passed or options.verbose:
                print(said, flush=True)
    for name in names:
        lines = [compared(results[name, kind.name]) for kind in kinds]
        if len(kinds) == 2 and not any(name == one.split(" on ")[0] for one in failed) and lines[0] != lines[1]:
            failed.append(f"{name}: the two servers lead to different lines")
            print("\n".join(difflib.unified_diff(*lines, kinds[0].name, kinds[1].name, lineterm="")))
    if failed:
        sys.exit("failed: " + "; ".join(failed))


main()

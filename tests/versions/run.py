#!/usr/bin/env python3
"""Runs the previous version together with today's: servers, clients, data directories, backups and a rolling upgrade.

    tests/versions/run.py [--target FOLDER] [--seconds N] [--keep-folder]
    tests/versions/run.py --commit

The previous version is the commit COMMIT of this repository, whose clients and servers speak version 3 of the extension
(docs/protocol.md). It is built in FOLDER/versions/COMMIT with the dependencies of FOLDER. Every scenario uses real
processes. Contenders check exclusion and tokens with files under the system's locks. Prints figures, and exits with 1
at
the first difference.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/clients"))
from servers import Failed, Lockkeeper, ZooKeeper

COMMIT = "4841b63f"
# The contender's files and their places. Both versions build the same ones. In the previous version they form the
# package `testkit`.
CONTENDER = {
    "tests/versions/contender.rs": "tests/versions/contender.rs",
    "src/runtime/splitmix.rs": "tests/testkit/src/random.rs",
} | {file: file for file in (f"tests/testkit/src/{name}.rs" for name in ("contender", "keys", "recipe", "resource"))}
LIBRARY = "pub mod contender;\npub mod keys;\nmod random;\npub mod recipe;\npub mod resource;\n\npub use random::Random;\n"
MANIFEST = """[package]
name = "testkit"
publish = false
version.workspace = true
edition.workspace = true

[dependencies]
lockkeeper = { workspace = true, features = ["client"] }
tokio = { workspace = true, features = ["macros", "rt-multi-thread", "time"] }

[[example]]
name = "version_contender"
path = "../versions/contender.rs"
"""
PATIENCE = 90
OLD, NEW = "before", "today"


def expect(condition, what):
    if not condition:
        raise Failed(what)


# The two versions.


def build(code, target, programs):
    """Builds one version's command and contender into `programs`, with the dependencies in `target`."""
    # Like today's manifest.
    same_macros = {"CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG": "false"}
    # Results go only to `programs`, because others use the programs in `target` at the same time.
    environment = os.environ | same_macros | {"CARGO_BUILD_BUILD_DIR": str(target), "CARGO_TARGET_DIR": str(programs)}
    what = ["--workspace", "--all-features", "--bin", "lockkeeper", "--example", "version_contender"]
    subprocess.run(["cargo", "build", "--quiet", *what], cwd=code, env=environment, check=True)
    for built in ("lockkeeper", "examples/version_contender"):
        shutil.copy2(programs / "debug" / built, programs)


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)


def unpack(code):
    """Writes the previous version's code, with today's contender and a separate version number.

    The number lets Cargo keep the builds apart, so it rebuilds nothing of today's.
    """
    found = git("cat-file", "-e", f"{COMMIT}^{{commit}}")
    if found.returncode:
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        reason = "this clone is shallow: git fetch --unshallow" if shallow else "this clone lacks it"
        sys.exit(f"the version before is the commit {COMMIT}, and {reason}")
    shutil.rmtree(code, ignore_errors=True)
    code.mkdir(parents=True)
    archive = git("archive", COMMIT)
    subprocess.run(["tar", "x", "-C", code], input=archive.stdout, check=True)
    for name, place in CONTENDER.items():
        (code / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, code / place)
    (code / "tests/testkit/src/lib.rs").write_text(LIBRARY)
    (code / "tests/testkit/Cargo.toml").write_text(MANIFEST)
    # In the previous version it was an example of the recipes.
    recipes = code / "recipes/Cargo.toml"
    recipes.write_text(recipes.read_text().replace(MANIFEST[MANIFEST.index("[[example]]"):].replace("../versions", "../tests/versions"), ""))
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (code / name).read_text().replace('members = [', 'members = ["tests/testkit", ')
        numbered = re.sub(r'(^version = |path = "[^"]*", version = )"0\.1\.0"', r'\1"0.0.9"', text, flags=re.MULTILINE)
        (code / name).write_text(numbered)


def stale(code):
    """Returns true if the previous version is not built, or with another contender."""
    is_same = lambda name, place: (code / place).exists() and (code / place).read_bytes() == (ROOT / name).read_bytes()
    return not (code / "target/version_contender").exists() or not all(is_same(*files) for files in CONTENDER.items())


def both_versions(target):
    """Builds both versions. Returns a folder of programs for each."""
    code = target / "versions" / COMMIT
    today = target / "versions/today"
    if stale(code):
        unpack(code)
        build(code, target, code / "target")
    build(ROOT, target, today)
    versions = {OLD: code / "target", NEW: today}
    same = [folder.joinpath("lockkeeper").read_bytes() for folder in versions.values()]
    expect(same[0] != same[1], "both versions are the same program")
    return versions


# Servers and clients.


# All started servers, so that none outlives this program.
SERVERS = []


class Server(Lockkeeper):
    """A server of one version, which another can replace on the same data and port."""

    def __init__(self, folder, programs, longest="60s"):
        super().__init__(folder)
        self.longest = longest
        self.version = programs
        SERVERS.append(self)

    @property
    def binary(self):
        return str(self.version / "lockkeeper")

    def command(self):
        return [
            self.binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(self.folder / "data"),
            "--tick", "200ms", "--max-session-timeout", self.longest, "--reaper-interval", "1s",
        ]

    def replace(self, programs, kill=False):
        """Ends the server, cleanly or by a kill, and starts another version in its place."""
        self.end(kill)
        self.version = programs
        self.start()

    @property
    def url(self):
        return f"lockkeeper://127.0.0.1:{self.port}"


def run(programs, url, *arguments, status=0):
    """Runs a version's command and returns its output."""
    command = [str(programs / "lockkeeper"), *arguments[:1], "--url", url, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    expect(done.returncode == status, f"{command} ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class Process:
    """A contender or a holder of one version."""

    def __init__(self, version, programs, *arguments):
        self.version = version
        command = [str(programs / "version_contender"), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("")

    def says(self):
        """Returns its next line. Fails if it waits forever, for example behind a lock without a holder."""
        try:
            line = self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"a client of {self.version} (pid {self.process.pid}) says nothing for {PATIENCE} s") from None
        expect(line and not line.startswith("violation"), f"a client of {self.version} says {line!r}")
        return line

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def ask(self, order):
        self.tell(order)
        return self.says()

    def ended(self):
        self.process.stdin.close()
        expect(self.process.wait(PATIENCE) == 0, f"a client of {self.version} fails")


class Contenders:
    """Two contenders of each version, for locks of all recipes on one store."""

    def __init__(self, versions, url, gates, count=2):
        self.all = [
            Process(version, programs, "contend", url, gates, 10 * number + place)
            for place, (version, programs) in enumerate(versions.items())
            for number in range(count)
        ]
        for contender in self.all:
            expect(contender.says() == "ready", "a contender does not start")

    def figures(self, order):
        """Returns the sums of all, and each version's grants."""
        for contender in self.all:
            contender.tell(order)
        sums, grants = {}, {}
        for contender in self.all:
            for name, value in re.findall(r"(\w+)=(\d+)", contender.says()):
                sums[name] = sums.get(name, 0) + int(value)
                if name == "grants":
                    grants[contender.version] = grants.get(contender.version, 0) + int(value)
        wrong = sums["conflicts"] + sums["refused"]
        expect(wrong <= sums["losses"], f"exclusion or tokens: {sums}")
        return sums, grants

    def progress(self, seconds):
        """Waits, and returns each version's grants in that time. None may be zero."""
        _, before = self.figures("count")
        time.sleep(seconds)
        _, after = self.figures("count")
        grants = {version: after[version] - before[version] for version in after}
        expect(all(grants.values()), f"a version is granted nothing: {grants}")
        return grants

    def finish(self):
        sums, grants = self.figures("finish")
        for contender in self.all:
            contender.ended()
        return sums, grants


# Scenarios. Each takes the versions and a folder, and yields lines of figures.


def assert_free(versions, url):
    """Checks with both versions' commands that the contenders' locks have no holders and no waiters."""
    for programs in versions.values():
        for lock in (["/mutex-0"], ["/mutex-1"], ["--exclusive", "/rwlock"], ["--permits", "3/3", "/semaphore"]):
            run(programs, url, "run", "--try", *lock, "--", "true")


def contention(versions, url, gates, seconds):
    contenders = Contenders(versions, url, gates)
    contenders.progress(seconds)
    sums, grants = contenders.finish()
    assert_free(versions, url)
    shares = ", ".join(f"{count} to {version}" for version, count in grants.items())
    return f"{sums['grants']} grants, {shares}; {sums['losses']} lost"


CHECK = """
exec 9>>"$0.lock"; flock -n 9 || { echo beside another; exit 90; }
read last <"$0" 2>/dev/null || last=0
[ "$LOCKKEEPER_TOKEN" -gt "$last" ] || { echo "token $LOCKKEEPER_TOKEN after $last"; exit 91; }
echo "$LOCKKEEPER_TOKEN" >"$0"
"""


def commands(versions, url, folder, is_ours):
    """Both versions' commands: run, elect, who, locks and bench."""
    token = folder / "token"
    token.write_text("0\n")
    turns = [programs for programs in versions.values() for _ in range(4)]
    contend = lambda programs: run(programs, url, "run", "/turns", "--", "bash", "-c", CHECK, str(token))
    with concurrent.futures.ThreadPoolExecutor(len(turns)) as pool:
        list(pool.map(contend, turns))
    for holding, looking in ((OLD, NEW), (NEW, OLD)):
        holder = Process(holding, versions[holding], "hold", url, "/shown")
        expect(holder.says().startswith("held "), "a holder holds")
        shown = run(versions[looking], url, "who", "/shown")
        expect("1 holding" in shown, f"{looking} shows a holder of {holding}: {shown}")
        expect("/shown" in run(versions[looking], url, "locks", "/"), f"{looking} lists a lock of {holding}")
        run(versions[looking], url, "run", "--try", "/shown", "--", "true", status=75)
        expect(holder.ask("release") == "released", "a holder releases")
        holder.ended()
    for programs in versions.values():
        run(programs, url, "elect", "/scheduler", "--", "true")
        if is_ours:
            run(programs, url, "bench", "--seconds", "0.2", "--keys", "20", "--clients", "2", "acquire", "hand-over", "semaphore", "rwlock")
    return f"{len(turns)} commands under one lock, elect, who, locks" + (", bench" if is_ours else "")


def on_servers(versions, folder, options):
    """Clients of both versions on each version's server and on a ZooKeeper."""
    seconds = options.seconds
    for version, programs in versions.items():
        place = folder / f"server-{version}"
        place.mkdir()
        server = Server(place, programs)
        server.start()
        yield f"server of {version}", contention(versions, server.url, place / "gates", seconds)
        yield f"server of {version}, commands", commands(versions, server.url, place, True)
        server.end(kill=False)
    place = folder / "zookeeper"
    place.mkdir()
    zookeeper = ZooKeeper(place)
    zookeeper.start()
    url = f"zookeeper://127.0.0.1:{zookeeper.port}"
    try:
        yield "ZooKeeper", contention(versions, url, place / "gates", seconds)
        yield "ZooKeeper, commands", commands(versions, url, place, False)
    finally:
        zookeeper.end(kill=True)


def token_of(programs, url, lock="/tokens"):
    return int(run(programs, url, "run", lock, "--", "printenv", "LOCKKEEPER_TOKEN"))


def record(programs, url):
    """Writes what must outlive the version: a number of permits, and the record of a run."""
    run(programs, url, "run", "--permits", "2/5", "/quota", "--", "true")
    run(programs, url, "run", "--once-per", "1h", "/job", "--", "true")


def assert_recorded(programs, url):
    run(programs, url, "run", "--permits", "2/5", "/quota", "--", "true")
    # Another number is refused, and this period's run is already done.
    command = [str(programs / "lockkeeper"), "run", "--url", url, "--permits", "2/4", "/quota", "--", "true"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    expect(refused.returncode != 0 and "5" in refused.stderr, f"the number of permits is kept: {refused}")
    run(programs, url, "run", "--once-per", "1h", "/job", "--", "false")


def folders(versions, folder, options):
    """Moves data directories between versions, each time with surviving holders and contenders of both."""
    server = Server(folder, versions[OLD])
    server.start()
    record(versions[OLD], server.url)
    holders = {version: Process(version, programs, "hold", server.url, f"/held-{version}") for version, programs in versions.items()}
    tokens = {version: int(holder.says().removeprefix("held ")) for version, holder in holders.items()}
    contenders = Contenders(versions, server.url, folder / "gates")
    contenders.progress(options.seconds)
    highest = token_of(versions[OLD], server.url)
    steps = [(NEW, True), (OLD, False), (NEW, False), (OLD, True), (NEW, True)]
    for version, kill in steps:
        server.replace(versions[version], kill)
        grants = contenders.progress(options.seconds)
        for holding, holder in holders.items():
            expect(holder.ask("check") == "is_held=true", f"a holder of {holding} holds on under {version}")
            for programs in versions.values():
                run(programs, server.url, "run", "--try", f"/held-{holding}", "--", "true", status=75)
        for client in versions.values():
            token = token_of(client, server.url)
            expect(token > highest, f"tokens grow under {version}: {token} after {highest}")
            highest = token
        assert_recorded(versions[version], server.url)
        how = "kill -9" if kill else "SIGTERM"
        yield f"{how}, then the server of {version}", ", ".join(f"{count} grants to {name}" for name, count in grants.items())
    for holding, holder in holders.items():
        expect(holder.ask("release") == "released", "a holder releases")
        holder.ended()
        token = token_of(versions[OLD], server.url, f"/held-{holding}")
        expect(token > tokens[holding], "the next holder has a greater token")
    sums, _ = contenders.finish()
    assert_free(versions, server.url)
    server.end(kill=False)
    yield "in all", f"{sums['grants']} grants, {sums['losses']} lost, {len(steps)} changes of the server"


def backups(versions, folder, _):
    """Restores each version's backup of a running server with the other version."""
    for made, restored in ((OLD, NEW), (NEW, OLD)):
        place = folder / f"of-{made}"
        place.mkdir()
        # A restored store admits no session before the longest session timeout of the original has passed.
        server = Server(place, versions[made], longest="4s")
        server.start()
        record(versions[made], server.url)
        highest = token_of(versions[made], server.url)
        file = place / "backup"
        subprocess.run([versions[made] / "lockkeeper", "backup", place / "data", file], check=True, capture_output=True)
        highest = max(highest, token_of(versions[made], server.url))
        server.end(kill=True)
        shutil.rmtree(place / "data")
        subprocess.run([versions[restored] / "lockkeeper", "restore", file, place / "data"], check=True, capture_output=True)
        server.version = versions[restored]
        server.start()
        token = token_of(versions[restored], server.url)
        expect(token > highest, f"tokens grow over a restore: {token} after {highest}")
        assert_recorded(versions[restored], server.url)
        server.end(kill=False)
        yield f"backup of {made}, restored by {restored}", "content is there, tokens grow"


SCENARIOS = {
    "clients and servers": on_servers,
    "a data folder from version to version, under living clients": folders,
    "backups": backups,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=os.environ.get("CARGO_TARGET_DIR", "target"))
    parser.add_argument("--seconds", type=float, default=3, help="of contention in each phase")
    parser.add_argument("--keep-folder", action="store_true")
    parser.add_argument("--commit", action="version", version=COMMIT, help="print the version before, and end")
    options = parser.parse_args()
    started = time.monotonic()
    versions = both_versions((ROOT / options.target).resolve())
    print(f"{COMMIT} beside today's: built in {time.monotonic() - started:.0f} s")
    started = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockkeeper-versions-"))
    try:
        for name, scenario in SCENARIOS.items():
            print(f"\n{name}\n\n| | |\n|---|---|")
            place = folder / scenario.__name__
            place.mkdir()
            for what, figures in scenario(versions, place, options):
                print(f"| {what} | {figures} |", flush=True)
    except (Failed, subprocess.SubprocessError) as failure:
        sys.exit(f"{failure}\nthe folder is {folder}")
    finally:
        for server in SERVERS:
            if server.running():
                server.end(kill=True)
    if not options.keep_folder:
        shutil.rmtree(folder)
    print(f"\nall passed: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

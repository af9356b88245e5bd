#!/usr/bin/env python3
"""Runs everything in README.md with the packages as they would be published.

    tests/readme.py FOLDER    works in FOLDER, with the dependencies in the target directory of cargo

The packages are packed and unpacked into FOLDER/lockkeeper, which replaces a clone. The command is installed from
there, and a project next to it uses README's dependencies and Rust code. Nothing needs the network. A block in an
unknown language is an error, and so is a message in docs/troubleshooting.md that no source contains.
"""

import os
import pathlib
import re
import sqlite3
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
# Each published package, and its folder in a clone.
PACKAGES = {"lockkeeper-store": "store", "lockkeeper": "recipes", "lockkeeper-cli": "cli"}
PRIVATE = re.compile(r"\b(tests?|fuzz\w*|sim|simnet|simulat\w+|benches)(/|\.rs$)")
# As in README, but offline, and reusing what the tests have built where features agree. Results go only to FOLDER,
# because other tests use the programs in `target` at the same time.
WORK = pathlib.Path(sys.argv[1]).resolve()
QUICK = {"CARGO_NET_OFFLINE": "true", "CARGO_BUILD_BUILD_DIR": str(TARGET), "CARGO_TARGET_DIR": str(WORK / "target")}
QUICK |= {"CARGO_PROFILE_DEV_DEBUG": "line-tables-only", "CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG": "false"}


def run(command, folder, **environment):
    """Runs a shell command. Returns its output, stdout first."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **QUICK, **environment}, text=True, capture_output=True, timeout=900
    )
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def pack(clone):
    """Packs the packages, checks their files and unpacks them."""
    names = " ".join(f"-p {name}" for name in PACKAGES)
    run(f"cargo package --quiet --no-verify --allow-dirty {names}", ROOT)
    for name, folder in PACKAGES.items():
        [crate] = (WORK / "target/package").glob(f"{name}-[0-9]*.crate")
        files = run(f"tar -xzvf {crate}", clone).splitlines()
        found = [file for file in files if PRIVATE.search(file)]
        if found or f"{crate.stem}/README.md" not in files and f"{crate.stem}/src/README.md" not in files:
            sys.exit(f"{crate.name} has {found}, or lacks its README")
        (clone / crate.stem).rename(clone / folder)
        print(f"{crate.name}: {len(files)} files, {crate.stat().st_size} bytes")
    # Until the packages are on the registry, their mutual dependencies are found here.
    patches = "".join(f'{name} = {{ path = "{clone / folder}" }}\n' for name, folder in PACKAGES.items())
    (clone.parent / ".cargo").mkdir()
    (clone.parent / ".cargo/config.toml").write_text(f"[patch.crates-io]\n{patches}")


def sh(text, clone):
    for line in text.splitlines():
        match line.split():
            case ["tests/run"]:  # This script is part of it.
                assert os.access(ROOT / "tests/run", os.X_OK)
            case ["cargo", "install", *_]:
                run(f"{line} --debug", clone, CARGO_INSTALL_ROOT=str(clone.parent))
            case _:
                output = run(line.replace(" --release", ""), ROOT)
                if "queued behind" not in output or "All is right" not in output:
                    sys.exit(f"{line} shows no hand-over:\n{output}")


def toml(text, clone):
    project = clone.parent / "project"
    (project / "src").mkdir(parents=True)
    (project / "Cargo.toml").write_text(f'[package]\nname = "project"\nedition = "2024"\n\n{text}')
    # The workspace's lock file, so that cargo looks for no newer version.
    (project / "Cargo.lock").write_text((ROOT / "Cargo.lock").read_text())


def rust(text, clone):
    project = clone.parent / "project"
    main = '\n#[tokio::main]\nasync fn main() -> lockkeeper::Result<()> {\n    bill("memory:").await\n}\n'
    (project / "src/main.rs").write_text(text + main)
    if "fencing token " not in run("cargo run --quiet", project):
        sys.exit("README's lock prints no token")


def sql(text, clone):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE accounts (id, balance, fencing_token)")
    database.execute("INSERT INTO accounts VALUES (1, 100, 0)")
    statement = re.sub(r"\$(\d)", r"?\1", text)
    writes = [(90, 7, 1), (80, 9, 1), (70, 9, 1), (60, 7, 1)]
    changed = [database.execute(statement, write).rowcount for write in writes]
    if changed != [1, 1, 1, 0]:
        sys.exit(f"README's UPDATE changes {changed}")


def console(text, clone):
    """Types the commands in one shell. After a background command it waits until its lock is held."""
    script, expected = ["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", "exec 2>&1"], []
    for line in text.splitlines():
        if line.startswith("$ "):
            script.append(line[2:])
            if line.endswith("&"):
                script.append("until lockkeeper locks | grep -q backup; do sleep 0.05; done")
        else:
            expected.append(line)
    typed = run("\n".join(script), clone.parent, **shell(clone))
    run("lockkeeper local --stop", clone.parent, **shell(clone))
    if [line for line in typed.splitlines() if line.strip()] != expected:
        sys.exit(f"README's session prints\n{typed}")


def crontab(text, clone):
    environment = shell(clone)
    report = clone.parent / "bin/report-usage"
    report.write_text("#!/bin/sh\necho reported >> reports\n")
    report.chmod(0o755)
    command = text.split(None, 5)[5].strip()
    serve = "exec 3< <(exec lockkeeper serve --listen 127.0.0.1:0 --data memory 2>/dev/null); server=$!; trap 'kill $server' EXIT; read _ _ address <&3"
    command = command.replace("host:2181", "$address")
    run(f"{serve}; {command}; {command}", clone.parent, **environment)
    if (clone.parent / "reports").read_text() != "reported\n":
        sys.exit("README's job does not run once a period")


def shell(clone):
    """Returns the environment of a user who has installed the command."""
    home = clone.parent / "home"
    home.mkdir(exist_ok=True)
    path = f"{clone.parent / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": "", "LOCKKEEPER_URL": ""}


def messages():
    """Checks that each message of the page is in the sources."""
    names = subprocess.run(["git", "ls-files", "src", "recipes/src", "cli/src"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
    sources = "".join((ROOT / name).read_text() for name in names.split())
    sources = re.sub(r"\\\n\s*", "", sources)
    page = (ROOT / "docs/troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    parts = [part.strip(" :,") for row in rows for message in re.findall(r"`(.*?)`", row) for part in re.split(r"…|: ", message)]
    # These two are from the system and from clap.
    missing = [part for part in parts if part not in sources and part not in ("Connection refused", "unexpected argument")]
    if missing:
        sys.exit(f"docs/troubleshooting.md: no source has {missing}")
    print(f"docs/troubleshooting.md: {len(rows)} rows of messages")


def main():
    clone = WORK / "lockkeeper"
    clone.mkdir(parents=True)
    messages()
    pack(clone)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    # The project needs its dependencies before its code, and the command must be installed before it is used.
    order = ["toml", "sh", "rust", "sql", "console", "crontab"]
    for language, text in sorted(blocks, key=lambda block: order.index(block[0])):
        globals()[language](text, clone)
    print(f"README.md: {len(blocks)} blocks run as printed")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks that no module imports one of a layer above it, tests aside, and that the repository's root has no entries but
those listed here: a download or an archive that lies there is easily committed."""

import pathlib
import re
import subprocess
import sys

# The entries of the repository's root.
ROOT = set(
    """
    .cargo .ci .git-blame-ignore-revs .github .gitignore ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md Cargo.lock Cargo.toml LICENSE-APACHE
    LICENSE-MIT README.md SECURITY.md about.toml benches cli contrib deny.toml docs examples fuzz proof proptest-regressions recipes
    src tests zookeeper-client
    """.split()
)

# The modules of each package from below to above: each may import those before it. Modules joined by `+` import each
# other, and are one layer.
LAYERS = {
    "src": """
        runtime tls model wire core log backend engine client server testing simulation
    """,
    "recipes/src": """
        error retry synced stream names path select token deadline events metrics meter
        queue+metadata+revocation+holders+observe+reporter list_locks
        options guard queue_lock
        mutex rwlock reentrant semaphore many election warden once_per
        lock_guard blocking testing guides
    """,
}


def without_tests(text):
    """Cuts off the module of tests at the end of a file, and comments."""
    text = re.split(r"#\[cfg\((?:all\()?test\b[^\n]*\]\n(?:pub(?:\(\w+\))? )?mod tests \{", text)[0]
    return re.sub(r"//[^\n]*", "", text)


def exported(root):
    """The names that the package's root exports, with the modules that they come from."""
    names = {}
    for module, items in re.findall(r"pub use (\w+)(?:::\w+)*?::(\{[^}]*\}|\w+);", without_tests((root / "lib.rs").read_text())):
        names.update((item, module) for item in re.findall(r"\w+", items))
    return names


def imported(text):
    """The first part of each path that begins with `crate::`."""
    for group in re.findall(r"\bcrate::(\w+|\{[^;]*\})", text):
        # Of a group what stands at its own level.
        while re.search(r"(?<!^)\{[^{}]*\}", group):
            group = re.sub(r"(?<!^)\{[^{}]*\}", "", group)
        yield from re.findall(r"(?:^|[{,])\s*(\w+)", group)


def in_root():
    """Returns the entries of the root that git tracks, or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    return {file.partition("/")[0] for file in files if file}


def main():
    entries = in_root()
    wrong = [f"{entry} stands in the root, and not in ROOT of {sys.argv[0]}" for entry in entries - ROOT]
    wrong += [f"{entry} is in ROOT of {sys.argv[0]}, and missing" for entry in ROOT - entries]
    for folder, layers in LAYERS.items():
        root = pathlib.Path(folder)
        rank = {module: at for at, layer in enumerate(layers.split()) for module in layer.split("+")}
        modules = set(re.findall(r"^(?:pub(?:\(crate\))? )?mod (\w+);", (root / "lib.rs").read_text(), re.MULTILINE))
        wrong += [f"{root}/lib.rs: {module} is there or in LAYERS, and not in both" for module in modules ^ rank.keys()]
        names = exported(root)
        for file in sorted(root.rglob("*.rs")):
            own = file.relative_to(root).with_suffix("").parts
            if own == ("lib",) or "tests" in own:
                continue
            for name in imported(without_tests(file.read_text())):
                other = name if name in rank else names.get(name, name)
                if rank.get(other, -1) > rank.get(own[0], -1):
                    wrong.append(f"{file}: {own[0]} must not import {other}, which is above it")
    passed = "no module imports one of a layer above it, and the root has no entries but the known"
    print("\n".join(sorted(set(wrong))) or passed, file=sys.stderr if wrong else None)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks that no module imports one of a higher layer, except in tests, and that the repository's root has only the
entries listed here, because stray downloads and archives are easily committed."""

import pathlib
import re
import subprocess
import sys

ROOT = set(
    """
    .cargo .ci .git-blame-ignore-revs .github .gitignore ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md Cargo.lock Cargo.toml LICENSE-APACHE
    LICENSE-MIT README.md SECURITY.md about.toml benches cli contrib deny.toml docs examples fuzz proof proptest-regressions recipes
    src tests zookeeper-client
    """.split()
)

# The modules of each package from low to high. Each may import the ones before it. Modules joined by `+` import each
# other and are one layer.
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
    """Removes comments and the tests module at the end of a file."""
    text = re.split(r"#\[cfg\((?:all\()?test\b[^\n]*\]\n(?:pub(?:\(\w+\))? )?mod tests \{", text)[0]
    return re.sub(r"//[^\n]*", "", text)


def exported(root):
    """Returns the names exported by the package's root, with their modules."""
    names = {}
    for module, items in re.findall(r"pub use (\w+)(?:::\w+)*?::(\{[^}]*\}|\w+);", without_tests((root / "lib.rs").read_text())):
        names.update((item, module) for item in re.findall(r"\w+", items))
    return names


def imported(text):
    """Yields the first segment of each path that starts with `crate::`."""
    for group in re.findall(r"\bcrate::(\w+|\{[^;]*\})", text):
        # Only the top level of a group.
        while re.search(r"(?<!^)\{[^{}]*\}", group):
            group = re.sub(r"(?<!^)\{[^{}]*\}", "", group)
        yield from re.findall(r"(?:^|[{,])\s*(\w+)", group)


def in_root():
    """Returns the entries of the root that git tracks or would add."""
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

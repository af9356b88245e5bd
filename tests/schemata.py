#!/usr/bin/env python3
"""Builds many mutants together, and shows which check notices each.

    tests/schemata.py simulation [NAME…]   the faults of proof/mutants under the simulation: which check finds each first,
                                           at which seed (up to 300, or --seeds N), or whether the changed function runs
                                           at all
    tests/schemata.py core|lease|queue     cargo-mutants' changes in a part of the code, with that part's tests
                                           (--shard 3/40: the third of forty parts of them; --re TEXT: only these;
                                           --again FILE: those missed in an earlier run, by its output)
    tests/schemata.py touched              those of the three parts in the lines that a change touches, in random order,
                                           until --seconds N are over, not counting the build. Fails for each that is
                                           missed unless docs/proof.md names it. The change is the difference to the
                                           commit LOCKKEEPER_BASE, or to where the branch left origin/main, or to the
                                           parent commit

A build per mutant takes longer than its tests. So all are woven into one copy of the code (mutant schemata: R. Untch,
J. Offutt, M. Harrold, 1993). A changed function has the body of each mutant in addition to its own, and
LOCKKEEPER_MUTANT selects one. Left out, and counted, are mutants that change more than function bodies, that change
functions which can't have several bodies, or that do not compile.

core    src/core, with its unit tests, and then those of the store's other modules except the log's longest ones
lease   src/backend/status.rs and lease.rs, with their unit tests
queue   recipes/src/queue, with the recipes' unit tests, a hundred seeds of the simulation, and tests of the recipes,
        finally those on a ZooKeeper
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
CARGO_MUTANTS = "27.1.0"

# Unit tests of the log that take some seconds each, with many writes and crashes.
LONG = [word for name in ["filling::", "large::", "crashes::", "recovery::bytes::"] for word in ("--skip", name)]

# Selects the mutant, or none without the variable. Part of the store, because all other crates use it.
SWITCH = """
/// The mutant that runs.
#[doc(hidden)]
pub mod schemata {
    /// Returns its number, or 0.
    #[must_use]
    pub fn active() -> u32 {
        static ACTIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        *ACTIVE.get_or_init(|| std::env::var("LOCKKEEPER_MUTANT").map_or(0, |number| number.parse().unwrap()))
    }

    /// Says that the function that it changes is run.
    pub fn reached() {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| eprintln!("the mutant is reached"));
    }
}
"""

# The tests without the feature `simulation` need these of the store and the recipes.
FEATURES = ["--no-default-features", "--features", "client,server,test-util"]


@dataclasses.dataclass(frozen=True)
class Edit:
    """Text that a mutant puts in the place of `start..end` of a file."""

    file: str
    start: int
    end: int
    text: str


@dataclasses.dataclass
class Mutant:
    name: str
    edits: list

    def is_simulated(self):
        """Returns true if the simulation contains its package."""
        return any(edit.file.startswith(("src/", "recipes/src/")) for edit in self.edits)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function whose body, including braces, is `start..end` of its file."""

    start: int
    end: int
    # Why it can't have several bodies, or nothing.
    obstacle: str


# Comments, strings and characters, where a brace or `fn` means nothing.
OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^u]|\\u\{\w+\}|\\x\w\w|[^'\\])'""",
    re.DOTALL | re.VERBOSE,
)


def masked(source):
    """Blanks comments and literals, keeping the length."""
    return OPAQUE.sub(lambda opaque: re.sub(r"[^\n]", " ", opaque[0]), source)


def closing(code, start):
    """Returns the position after the brace that closes the one at `start`."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError("a brace is not closed")


def functions(source):
    """Returns a file's outermost functions in order."""
    code = masked(source)
    found, end = [], 0
    for head in re.finditer(r"\bfn\s+\w+", code):
        if head.start() < end:
            continue
        depth = 0
        for mark in re.compile(r"[()\[\]{;]").finditer(code, head.end()):
            if mark[0] in "([":
                depth += 1
            elif mark[0] in ")]":
                depth -= 1
            elif depth == 0:
                break
        if mark[0] == ";":
            continue
        end = closing(code, mark.start())
        obstacle = ""
        if re.search(r"\bconst\s+(unsafe\s+)?$", code[: head.start()]):
            obstacle = "is in a const fn"
        elif re.search(r"->\s*impl\b", code[head.start() : mark.start()]):
            obstacle = "is in a function that returns a type without a name"
        found.append(Function(mark.start(), end, obstacle))
    return found


def line_starts(source):
    return [0] + [match.end() for match in re.finditer("\n", source)]


def trimmed(source, edit):
    """Removes unchanged text from both ends of the edit."""
    old, new = source[edit.start : edit.end], edit.text
    ahead = len(os.path.commonprefix([old, new]))
    behind = len(os.path.commonprefix([old[ahead:][::-1], new[ahead:][::-1]]))
    return Edit(edit.file, edit.start + ahead, edit.end - behind, new[ahead : len(new) - behind])


def edits_of_patch(root, patch):
    """Returns a patch's edits. Its hunks must match the code exactly."""
    edits = []
    for part in re.split(r"^diff --git .*\n", patch, flags=re.MULTILINE)[1:]:
        file = re.search(r"^\+\+\+ b/(\S+)", part, re.MULTILINE)[1]
        source = (root / file).read_text()
        lines = source.splitlines(keepends=True)
        starts = line_starts(source)
        for head, body in re.findall(r"^@@ (.*?) @@.*\n((?:[ +\\-].*\n?|\n)*)", part, re.MULTILINE):
            hunk = [line for line in body.splitlines(keepends=True) if not line.startswith("\\")]
            old = [line[1:] or "\n" for line in hunk if not line.startswith("+")]
            # Like `git apply`, which takes the matching place nearest to the stated one.
            stated = int(re.match(r"-(\d+)", head)[1]) - 1
            places = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
            at = min(places, key=lambda place: abs(place - stated))
            start, text = at, None
            for line in hunk + [" "]:
                if line.startswith(" ") or line == "\n":
                    if text is not None:
                        edits.append(trimmed(source, Edit(file, starts[start], starts[at], text)))
                    at, text = at + 1, None
                    continue
                if text is None:
                    start, text = at, ""
                if line.startswith("+"):
                    text += line[1:]
                else:
                    at += 1
    return edits


class Copy:
    """A copy of the code with all mutants in it."""

    def __init__(self, name, mutants):
        self.root = TARGET / "schemata" / name
        self.mutants = {number: mutant for number, mutant in enumerate(mutants, 1)}
        # Mutants that are not woven in, with the reason.
        self.left_out = {}
        self.arms = {}

    def leave_out(self, number, reason):
        self.left_out[self.mutants.pop(number).name] = reason

    def show_left_out(self):
        for name, reason in self.left_out.items():
            show_verdict("left out", f"{name}: {reason}")

    def functions_to_change(self):
        """Returns each file's functions that mutants change, with each mutant's edits."""
        found = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
        known = {}
        for number, mutant in list(self.mutants.items()):
            places = []
            for edit in mutant.edits:
                if edit.file not in known:
                    known[edit.file] = functions((ROOT / edit.file).read_text())
                inside = [f for f in known[edit.file] if f.start < edit.start and edit.end < f.end]
                places += [(edit, function) for function in inside]
            obstacles = [function.obstacle for _, function in places if function.obstacle]
            if len(places) < len(mutant.edits):
                obstacles.append("changes more than the bodies of functions")
            if obstacles:
                self.leave_out(number, obstacles[0])
                continue
            for edit, function in places:
                found[edit.file][function][number].append(edit)
        return found

    def write(self):
        files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
        changes = self.functions_to_change()
        for file in files:
            if not (ROOT / file).is_file():
                continue
            place = self.root / file
            place.parent.mkdir(parents=True, exist_ok=True)
            content = (ROOT / file).read_bytes()
            if file in changes:
                content = self.woven(file, changes[file]).encode()
            if file == "src/lib.rs":
                content += SWITCH.encode()
            # Changed files get a new time stamp, because cargo would take the old build for up to date.
            if not place.exists() or place.read_bytes() != content:
                place.write_bytes(content)

    def woven(self, file, changed):
        """Returns a file's text with its mutants' bodies, and records each one's lines."""
        source = (ROOT / file).read_text()
        crate = "crate" if file.startswith("src/") else "lockkeeper_store"
        self.arms[file] = []
        text, end = "", 0
        for function, mutants in sorted(changed.items(), key=lambda item: item[0].start):
            text += source[end : function.start] + f"{{ match {crate}::schemata::active() {{\n"
            for number, edits in mutants.items():
                first = text.count("\n") + 1
                text += f"{number} => {{ {crate}::schemata::reached();\n{changed_body(source, function, edits)} }}\n"
                self.arms[file].append((first, text.count("\n"), [number]))
            first = text.count("\n") + 1
            text += f"_ => {source[function.start : function.end]}\n}} }}"
            self.arms[file].append((first, text.count("\n"), list(mutants)))
            end = function.end
        return text + source[end:]

    def build(self, *command):
        """Builds with the arguments `command` and leaves out what does not compile. Returns each program's path by
        name."""
        environment = dict(
            os.environ,
            CARGO_TARGET_DIR=str(TARGET / "schemata/build"),
            CARGO_PROFILE_DEV_DEBUG="0",
            CARGO_PROFILE_TEST_DEBUG="0",
            CARGO_PROFILE_RELEASE_DEBUG="0",
            CARGO_PROFILE_RELEASE_LTO="off",
            RUSTFLAGS="--cap-lints=warn",
        )
        cargo = ["cargo", *command, "-q", "--message-format=json"]
        while True:
            self.write()
            run = subprocess.run(cargo, cwd=self.root, env=environment, stdout=subprocess.PIPE, text=True)
            messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
            if run.returncode == 0:
                programs = [message for message in messages if message.get("executable")]
                return {program["target"]["name"]: program["executable"] for program in programs}
            refused = {number for message in messages for number in self.refused(message.get("message") or {})}
            if not refused:
                sys.exit("the copy does not compile, whichever mutants it has")
            for number in refused:
                self.leave_out(number, "does not compile")

    def refused(self, message):
        """Returns the mutants in whose lines the compiler found this error."""
        if message.get("level") != "error":
            return []
        spans = [span for span in message["spans"] if span["is_primary"]]
        return [number for span in spans for number in self.at(span["file_name"], span["line_start"])]

    def at(self, file, line):
        """Returns the mutants of a line in the copy. A line of the original body belongs to all mutants of its
        function."""
        arms = self.arms.get(file, [])
        return next((numbers for first, last, numbers in arms if first <= line <= last), [])


def changed_body(source, function, edits):
    """Returns a function's body with these edits."""
    text, end = "", function.start
    for edit in sorted(edits, key=lambda edit: edit.start):
        text += source[end : edit.start] + edit.text
        end = edit.end
    return text + source[end : function.end]


def patches(names):
    """Returns the mutants of proof/mutants."""
    paths = [ROOT / f"proof/mutants/{name}.patch" for name in names] or sorted((ROOT / "proof/mutants").glob("*.patch"))
    return [Mutant(path.stem, edits_of_patch(ROOT, path.read_text())) for path in paths]


def changes_of_tool(files, *options):
    """Returns cargo-mutants' mutants in these files, with these options."""
    tools = TARGET / "tools/bin"
    environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
    environment.pop("CARGO_TARGET_DIR", None)
    if not shutil.which("cargo-mutants", path=environment["PATH"]):
        # Without optimizations, because building them takes longer than the lists.
        install = ["cargo", "install", "--debug", "--locked", f"cargo-mutants@{CARGO_MUTANTS}", "--root", str(TARGET / "tools")]
        subprocess.check_call(install)
    command = ["cargo", "mutants", "--workspace", "--list", "--json", *(option for file in files for option in ("--file", file)), *options]
    mutants = []
    for change in json.loads(subprocess.check_output(command, cwd=ROOT, env=environment) or "[]"):
        starts = line_starts((ROOT / change["file"]).read_text())
        start, end = (starts[at["line"] - 1] + at["column"] - 1 for at in (change["span"]["start"], change["span"]["end"]))
        mutants.append(Mutant(change["name"], [Edit(change["file"], start, end, change["replacement"])]))
    return mutants


SIMULATION = "lockkeeper-sim"
# The verdict of a mutant when time ran out.
UNDECIDED = "undecided"

# Tests of the recipes that wait more than they compute.
BRIEF_NAMES = "mutex untaken local known_bugs confirmed refusals foreign traced self_deadlock endings events metrics lease old_servers"
BRIEF = [f"{name}::" for name in BRIEF_NAMES.split()]
# Tests with other clients need more than the test program.
OTHERS = [word for name in ["kazoo::", "curator::"] for word in ("--skip", name)]
LOCAL = [*OTHERS, "--skip", "model", "--skip", "zookeeper"]
# Of these stores, only a simulated one lists its queues.
LISTED = ["::zookeeper", *OTHERS]


@dataclasses.dataclass
class Part:
    """A part of the code that cargo-mutants changes."""

    files: list
    # `cargo test` arguments that build its tests.
    build: list
    # The tests, each with its program and the seconds after which it counts as hanging. Each runs only if the ones
    # before have passed.
    tests: list


PARTS = {
    "core": Part(
        ["src/core.rs", "src/core/**"],
        ["-p", "lockkeeper-store", *FEATURES, "--lib"],
        [
            ("lockkeeper_store", ["core::"], 60),
            # The next module checks most of what the core's own tests do not.
            ("lockkeeper_store", ["engine::", *LONG], 60),
            ("lockkeeper_store", ["--skip", "core::", "--skip", "engine::", *LONG], 60),
            ("lockkeeper_store", ["engine::tests::large::"], 60),
        ],
    ),
    "lease": Part(
        ["src/backend/status.rs", "src/backend/lease.rs"],
        ["-p", "lockkeeper-store", *FEATURES, "--lib"],
        [("lockkeeper_store", ["backend::"], 20)],
    ),
    "queue": Part(
        ["recipes/src/queue.rs", "recipes/src/queue/**"],
        ["-p", "lockkeeper", *FEATURES[:-1], f"{FEATURES[-1]},metrics", "--lib", "--test", "recipes"],
        [
            ("lockkeeper", [], 20),
            (SIMULATION, ["--seeds", "100", "--threads", "1", "--first-failure"], 40),
            # The fast ones first.
            ("recipes", [*BRIEF, *LOCAL], 60),
            ("recipes", ["rwlock::", "wakes::", *LOCAL], 120),
            ("recipes", ["semaphore::", "cancel::", "faults::", *LOCAL], 120),
            ("recipes", ["many::", *LOCAL], 120),
            ("recipes", LISTED, 180),
        ],
    ),
}


def passes(program, arguments, seconds, number, directory):
    """Returns whether a test program passes in time."""
    environment = dict(os.environ, LOCKKEEPER_MUTANT=str(number), LOCKKEEPER_SECONDS="1", RUST_BACKTRACE="0")
    environment["RUST_TEST_THREADS"] = str(3 * os.cpu_count())
    command = [program, *arguments]
    if pathlib.Path(program).name != SIMULATION:
        # One failure is enough, but the option is not stable yet.
        environment["RUSTC_BOOTSTRAP"] = "1"
        command += ["-Z", "unstable-options", "--fail-fast"]
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return subprocess.run(command, env=environment, cwd=directory, timeout=seconds, **quiet).returncode == 0
    except subprocess.TimeoutExpired:
        return None


def judge_part(options):
    mutants = changes_of_tool(PARTS[options.what].files, *(["--re", options.re] if options.re else []))
    if options.again:
        missed = re.findall(r"^MISSED +(.*)", pathlib.Path(options.again).read_text(), re.MULTILINE)
        mutants = [mutant for mutant in mutants if mutant.name in missed]
    if options.shard:
        which, of = map(int, options.shard.split("/"))
        mutants = mutants[which - 1 :: of]
    if not mutants:
        sys.exit("there are no such mutants")
    verdicts, _ = judge(options.what, mutants, options.jobs)
    return list(verdicts.values()).count("MISSED")


def judge(what, mutants, jobs, seconds=float("inf")):
    """Returns the verdict of each mutant of a part within these seconds after the build, and the seconds taken."""
    part = PARTS[what]
    copy = Copy(what, mutants)
    programs = copy.build("test", "--no-run", *part.build)
    if any(program == SIMULATION for program, *_ in part.tests):
        programs |= copy.build("build", "--release", "-p", SIMULATION)
    directory = copy.root / ("recipes" if what == "queue" else "")
    started = time.monotonic()

    def run(program, tests, limit, number):
        left = started + seconds - time.monotonic()
        passed = passes(programs[program], tests, min(limit, left), number, directory) if left > 0 else None
        if passed is None and left < limit:
            return UNDECIDED
        return {True: "MISSED", False: "caught", None: "hangs"}[passed]

    # Each group of tests runs on all mutants that the groups before have missed, because the first ones catch most. A
    # group that catches some must pass without a mutant.
    verdicts = dict.fromkeys(copy.mutants, "MISSED")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for test in part.tests:
            numbers = [number for number, verdict in verdicts.items() if verdict == "MISSED"]
            if not numbers:
                break
            is_sure = False
            for number, verdict in zip(numbers, pool.map(functools.partial(run, *test), numbers)):
                verdicts[number] = verdict
                if verdict == "MISSED":
                    continue
                show_verdict(verdict, copy.mutants[number].name)
                if verdict != UNDECIDED and not is_sure:
                    if run(*test, 0) in ("caught", "hangs"):
                        pool.shutdown(cancel_futures=True)
                        sys.exit(f"the tests do not pass without a mutant: {test}")
                    is_sure = True
    verdicts = {copy.mutants[number].name: verdict for number, verdict in verdicts.items()}
    for name in [name for name, verdict in verdicts.items() if verdict == "MISSED"]:
        show_verdict("MISSED", name)
    copy.show_left_out()
    counts = collections.Counter(verdicts.values())
    reasons = collections.Counter(copy.left_out.values())
    print(f"{what}, {len(mutants)} mutants: {show(counts)}; left out: {show(reasons)}", flush=True)
    return verdicts, time.monotonic() - started


def commit(*revision):
    """Returns the commit that `git` prints for these arguments, or nothing."""
    run = subprocess.run(["git", *revision], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return run.stdout.strip() if run.returncode == 0 else ""


def base_of_change():
    """Returns the commit that the change is based on, or nothing if the clone lacks it."""
    parse = ["rev-parse", "--verify", "--quiet"]
    if given := os.environ.get("LOCKKEEPER_BASE"):
        return commit(*parse, f"{given}^{{commit}}")
    forked = commit("merge-base", "HEAD", "origin/main")
    if forked and forked != commit(*parse, "HEAD"):
        return forked
    return commit(*parse, "HEAD~1")


def touched(base):
    """Returns the mutants of each part whose lines differ from a commit."""
    found = {}
    for what, part in PARTS.items():
        # Tests and comments have no mutants, so changes in them need no build of the tool.
        command = ["git", "diff-index", "-p", base, "--", *part.files, ":!*/tests.rs", ":!*/tests/*"]
        diff = subprocess.check_output(command, cwd=ROOT)
        if re.search(rb"(?m)^[+-](?![+-]{2} )\s*(?!//)\S", diff):
            with tempfile.NamedTemporaryFile(suffix=".diff") as file:
                file.write(diff)
                file.flush()
                found[what] = changes_of_tool(part.files, "--in-diff", file.name)
    return {what: mutants for what, mutants in found.items() if mutants}


def is_known(name):
    """Returns true if docs/proof.md names a mutant (without its position) and says why no test notices it."""
    return f"`{name.split(': ', 1)[1]}`" in (ROOT / "docs/proof.md").read_text().replace("\\|", "|")


def judge_touched(options):
    base = base_of_change()
    if not base:
        print("this clone lacks the commit that the change is made on: no mutants are run")
        return 0
    parts = touched(base)
    if not parts:
        print(f"no mutants: the lines that differ from {base[:12]} have none in {', '.join(PARTS)}")
        return 0
    missed, left = [], options.seconds
    for others, (what, mutants) in zip(reversed(range(len(parts))), parts.items()):
        # If there is no time for all, take a random selection that is the same in each run.
        random.Random(0).shuffle(mutants)
        verdicts, spent = judge(what, mutants, options.jobs, left / (others + 1))
        left -= spent
        missed += [name for name, verdict in verdicts.items() if verdict == "MISSED" and not is_known(name)]
    for name in missed:
        print(f"no test notices this mutant, and docs/proof.md does not name it: {name}", file=sys.stderr)
    return len(missed)


def show(counts):
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def show_verdict(verdict, name):
    print(f"{verdict:34} {name}", flush=True)


def run_all(copy, verdict, jobs):
    """Returns the verdict of each mutant, printing each when it is known."""
    verdicts = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(verdict, number): mutant.name for number, mutant in copy.mutants.items()}
        for run in concurrent.futures.as_completed(runs):
            verdicts[runs[run]] = run.result()
            show_verdict(run.result(), runs[run])
    copy.show_left_out()
    return verdicts


def judge_simulation(options):
    copy = Copy("simulation", [mutant for mutant in patches(options.names) if mutant.is_simulated()])
    program = copy.build("build", "--release", "-p", SIMULATION)[SIMULATION]

    def verdict(number):
        environment = dict(os.environ, LOCKKEEPER_MUTANT=str(number), RUST_BACKTRACE="0")
        command = [program, "--seeds", str(options.seeds), "--threads", "1", "--first-failure"]
        try:
            run = subprocess.run(command, env=environment, timeout=600, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except subprocess.TimeoutExpired:
            return "it hangs"
        failure = re.search(r"^seed (\d+): ([a-z ]*):", run.stdout, re.MULTILINE)
        if failure:
            return f"{failure[2]}, seed {failure[1]}"
        if run.returncode != 0:
            return f"exit status {run.returncode}"
        return "- reached" if "the mutant is reached" in run.stdout else "- not reached"

    if verdict(0) != "- not reached":
        sys.exit("the simulation fails without a mutant")
    verdicts = run_all(copy, verdict, options.jobs)
    found = sum(not verdict.startswith("-") for verdict in verdicts.values())
    print(f"{len(verdicts)} mutants, {found} found; left out: {show(collections.Counter(copy.left_out.values()))}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["simulation", "touched", *PARTS])
    parser.add_argument("names", nargs="*", help="mutants of proof/mutants")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--shard")
    parser.add_argument("--re")
    parser.add_argument("--again")
    options = parser.parse_intermixed_args()
    judges = {"simulation": judge_simulation, "touched": judge_touched}
    sys.exit(1 if judges.get(options.what, judge_part)(options) else 0)


if __name__ == "__main__":
    main()

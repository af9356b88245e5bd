#!/usr/bin/env python3
"""Tests of schemata.py: how it reads code and patches, and weaves mutants into functions."""

import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import schemata
from schemata import ROOT, Edit, changed_body, edits_of_patch, functions, masked, trimmed


class Reading(unittest.TestCase):
    def test_braces_in_comments_and_literals_are_no_braces(self):
        for literal in ['"{"', r'"\"{"', 'b"{"', 'r"{"', 'r#"{"{"#', "'{'", r"'\''", r"'\u{7b}'", "b'{'", "// {\n", "/* {\n{ */"]:
            code = masked(f"a {literal} {{}}")
            self.assertEqual(len(code), len(f"a {literal} {{}}"), literal)
            self.assertEqual((code.count("{"), code.count("}")), (1, 1), literal)

    def test_a_lifetime_is_no_character(self):
        source = "fn one<'a>(text: &'a str) -> &'a str { text }"
        self.assertEqual(masked(source), source)

    def test_the_outermost_functions_are_found_with_their_obstacles(self):
        source = """
            fn first(a: [u8; 3]) -> bool { fn inner() {} true }
            const fn second() {}
            fn third() -> impl Fn() { || {} }
            trait Some { fn declared(&self); fn given(&self) where Self: Sized { } }
            /// fn not_one() {}
        """
        found = functions(source)
        bodies = [source[it.start : it.end] for it in found]
        self.assertEqual(bodies, ["{ fn inner() {} true }", "{}", "{ || {} }", "{ }"])
        self.assertEqual([bool(it.obstacle) for it in found], [False, True, True, False])

    def test_all_code_is_read(self):
        for folder in ("src", "recipes/src"):
            for path in (ROOT / folder).rglob("*.rs"):
                code = masked(path.read_text())
                self.assertEqual(code.count("{"), code.count("}"), path)
                functions(path.read_text())


class Weaving(unittest.TestCase):
    def test_an_edit_keeps_what_is_the_same_at_its_ends(self):
        self.assertEqual(trimmed("a < b", Edit("f", 0, 5, "a <= b")), Edit("f", 3, 3, "="))

    def test_a_body_has_the_edits_of_one_mutant(self):
        source = "fn f(a: u8) -> bool { a < 1 || a > 2 }"
        (function,) = functions(source)
        edits = [Edit("f", source.index(">", 20), source.index(">", 20) + 1, ">="), Edit("f", source.index("<"), source.index("<") + 1, "<=")]
        self.assertEqual(changed_body(source, function, edits), "{ a <= 1 || a >= 2 }")

    def test_every_patch_is_read(self):
        for path in sorted((ROOT / "proof/mutants").glob("*.patch")):
            self.assertTrue(edits_of_patch(ROOT, path.read_text()), path)


class Touched(unittest.TestCase):
    def test_the_change_is_what_differs_from_its_base(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(schemata, "ROOT", pathlib.Path(folder)):

            def git(*arguments):
                identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
                return subprocess.check_output(["git", *identity, *arguments], cwd=folder, text=True, stderr=subprocess.STDOUT).strip()

            def write(file, text):
                path = pathlib.Path(folder, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                git("add", ".")
                git("commit", "-q", "-m", file)
                return git("rev-parse", "HEAD")

            def base(given=""):
                with mock.patch.dict(os.environ, LOCKKEEPER_BASE=given):
                    return schemata.base_of_change()

            git("init", "-q")
            first = write("src/core.rs", "fn first() {}\n")
            self.assertEqual(base(), "", "a clone without history")
            second = write("src/core.rs", "fn second() {}\n")
            self.assertEqual(base(), first, "the parent")
            git("update-ref", "refs/remotes/origin/main", second)
            self.assertEqual(base(), first, "main itself")
            write("src/core/tests.rs", "fn test() {}\n")
            write("recipes/src/queue/list.rs", "fn third() {}\n")
            self.assertEqual(base(), second, "a branch")
            self.assertEqual(base(first[:12]), first)
            self.assertEqual(base("0" * 40), "", "a commit that the clone lacks")

            def lines(files, option, diff):
                return [line for line in pathlib.Path(diff).read_text().splitlines() if line.startswith("+fn")]

            with mock.patch.object(schemata, "changes_of_tool", lines):
                self.assertEqual(schemata.touched(second), {"queue": ["+fn third() {}"]})
                self.assertEqual(schemata.touched(first), {"core": ["+fn second() {}"], "queue": ["+fn third() {}"]})


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests of sqlite.sql, on files that several threads write."""

import json
import pathlib
import random
import re
import sqlite3
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python"))
from lockkeeper_fencing import InvalidToken, parse_token  # noqa: E402

VECTORS = json.loads((HERE.parent / "vectors.json").read_text())
PARTS = re.split(r"^-- name: (\w+)\n", (HERE / "sqlite.sql").read_text(), flags=re.M)[1:]
STATEMENTS = dict(zip(PARTS[::2], PARTS[1::2]))


class Store:
    def __init__(self, path):
        self.connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)

    def call(self, name, **values):
        """Whether the token was admitted."""
        return self.connection.execute(STATEMENTS[name], values).fetchone() is not None


class Sqlite(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "store"
        self.store = Store(self.path)
        self.addCleanup(self.store.connection.close)
        self.store.connection.executescript("PRAGMA synchronous = OFF;" + STATEMENTS["create"])

    def test_vectors(self):
        for case in VECTORS["gates"]:
            for step in case["steps"]:
                if step["call"] == "reset":
                    self.store.call("reset", lock=case["name"])
                    continue
                admitted = self.store.call(step["call"], lock=case["name"], token=parse_token(step["token"]))
                self.assertEqual(admitted, step["newest"] is None, (case["name"], step))
            query = "SELECT newest, newest_shared FROM fencing WHERE lock = ?"
            row = self.store.connection.execute(query, [case["name"]]).fetchone() or (0, 0)
            state = [int(case["state"].get(name) or 0) for name in ("newest", "newest_shared")]
            self.assertEqual(list(row), state, case["name"])

    def test_what_is_no_token_is_an_error_and_changes_nothing(self):
        self.store.call("admit", lock="a", token=9)
        for call in ("admit", "admit_shared"):
            # Texts as well: they are read by the program.
            texts = [case["text"] for case in VECTORS["texts"]]
            for value in [None, 10.0, 10.5, b"10", 0, -1, float("nan"), float("inf"), *texts]:
                for lock in ("a", "new"):
                    with self.assertRaises(sqlite3.IntegrityError, msg=repr(value)):
                        self.store.call(call, lock=lock, token=value)
            with self.assertRaises(OverflowError):
                self.store.call(call, lock="a", token=2**63)
            with self.assertRaises(sqlite3.IntegrityError):
                self.store.call(call, lock=None, token=10)
        rows = self.store.connection.execute("SELECT * FROM fencing").fetchall()
        self.assertEqual(rows, [("a", 9, 0)])
        self.assertRaises(InvalidToken, parse_token, "10.0")

    def test_a_rollback_takes_the_token_back(self):
        self.store.connection.execute("BEGIN IMMEDIATE")
        self.assertTrue(self.store.call("admit", lock="a", token=9))
        self.store.connection.execute("ROLLBACK")
        self.assertTrue(self.store.call("admit", lock="a", token=8))

    def test_the_check_and_the_write_are_one_step(self):
        self.store.connection.execute("CREATE TABLE written (number INTEGER PRIMARY KEY, token INTEGER)")

        def write(seed):
            choose, store = random.Random(seed), Store(self.path)
            for token in sorted(choose.randrange(1, 1_000) for _ in range(40)):
                store.connection.execute("BEGIN IMMEDIATE")
                if store.call("admit", lock="a", token=token):
                    store.connection.execute("INSERT INTO written (token) VALUES (?)", [token])
                    store.connection.execute("COMMIT")
                else:
                    store.connection.execute("ROLLBACK")
            store.connection.close()

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = [token for (token,) in self.store.connection.execute("SELECT token FROM written ORDER BY number")]
        self.assertTrue(written)
        self.assertEqual(written, sorted(written))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests of postgres.sql, on a real server that is started for them on a Unix socket."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).parent
VECTORS = json.loads((HERE.parent / "vectors.json").read_text())

STALE, INVALID = "LK001", "22023"


class Server:
    """A cluster in a folder of its own, whose user is `postgres` where this is root."""

    def __init__(self):
        programs = self.programs()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockkeeper-postgres-", dir="/tmp"))
        user = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        data, self.log = self.folder / "data", open(self.folder / "log", "wb")
        options = ["--auth=trust", "--username=test", "--no-sync", "--encoding=UTF8", "--locale=C", "--pgdata", data]
        subprocess.run([programs / "initdb", *options], check=True, stdout=self.log, stderr=self.log, cwd="/", **user)
        # No port: nothing but this folder's socket.
        options = ["-D", data, "-h", "", "-k", self.folder, "-F"]
        self.process = subprocess.Popen([programs / "postgres", *options], stdout=self.log, stderr=self.log, cwd="/", **user)
        status = data / "postmaster.pid"
        while not (status.exists() and "\nready" in status.read_text()):
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.02)

    @staticmethod
    def programs():
        """The folder of `initdb` and `postgres`, which Debian keeps out of the path."""
        folders = [path / "bin" for path in pathlib.Path("/usr/lib/postgresql").glob("*")]
        folders += map(pathlib.Path, os.environ["PATH"].split(":"))
        found = [path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()]
        if not found:
            raise RuntimeError("install the Debian package postgresql")
        return max(found)

    def stop(self):
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


class Session:
    """A connection, through psql."""

    def __init__(self, server):
        # `-q` without the command's tags; `-A -t` rows alone.
        command = ["psql", "-XqAt", "-h", str(server.folder), "-U", "test", "-d", "postgres"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self.pid = self.ask("SELECT pg_backend_pid()")[1]

    def send(self, statement):
        self.process.stdin.write(f"{statement};\n\\echo = :SQLSTATE\n")
        self.process.stdin.flush()

    def receive(self):
        """Returns the SQLSTATE, 00000 where all is well, and the rows."""
        rows = ""
        for line in self.process.stdout:
            if line.startswith("= "):
                return line[2:].strip(), rows.strip()
            rows += line
        raise RuntimeError("psql has ended")

    def ask(self, statement):
        self.send(statement)
        return self.receive()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


class Postgres(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.one = self.session()
        self.one.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        self.assertEqual(self.one.ask((HERE / "postgres.sql").read_text())[0], "00000")

    def session(self):
        session = Session(self.server)
        self.addCleanup(session.close)
        return session

    def call(self, session, function, token, lock="'a'"):
        return session.ask(f"SELECT fencing_{function}({lock}, {token})")[0]

    def until_it_waits(self, session):
        """Waits until the statement that a session has sent waits for a lock."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {session.pid} AND wait_event_type = 'Lock'"
        watcher = self.session()
        while watcher.ask(query)[1] != "1":
            time.sleep(0.01)

    def test_texts(self):
        for case in VECTORS["texts"]:
            state, value = self.one.ask(f"SELECT fencing_token({quoted(case['text'])})")
            expected = (INVALID, "") if case["token"] is None else ("00000", case["token"])
            self.assertEqual((state, value), expected, case)

    def test_vectors(self):
        for case in VECTORS["gates"]:
            lock = quoted(case["name"])
            for number, step in enumerate(case["steps"]):
                if step["call"] == "reset":
                    self.one.ask(f"SELECT fencing_reset({lock})")
                    continue
                # As a text and as a number in turns.
                token = quoted(step["token"]) if number % 2 else step["token"]
                state = self.call(self.one, step["call"], token, lock)
                self.assertEqual(state, "00000" if step["newest"] is None else STALE, (case["name"], step))
            row = self.one.ask(f"SELECT newest, newest_shared FROM fencing WHERE lock = {lock}")[1] or "0|0"
            state = [case["state"].get(name) or "0" for name in ("newest", "newest_shared")]
            self.assertEqual(row.split("|"), state, case["name"])

    def test_a_refusal_names_both_tokens(self):
        self.call(self.one, "admit", "19")
        block = """DO $$ BEGIN PERFORM fencing_admit('a', '17'); EXCEPTION WHEN SQLSTATE 'LK001' THEN
            CREATE TABLE said AS SELECT SQLERRM AS text; END $$"""
        self.one.ask(block)
        self.assertEqual(self.one.ask("SELECT text FROM said")[1], "token 17 is stale: 19 was seen")

    def test_what_is_no_token_is_an_error_and_changes_nothing(self):
        self.call(self.one, "admit", "9")
        for function in ("admit", "admit_shared"):
            for token in ("NULL", "NULL::text", "NULL::bigint", "0", "-1", "'-1'", "''", "' 10'", "'10.0'", "'1e3'"):
                self.assertEqual(self.call(self.one, function, token), INVALID, token)
            # There is no such function: no float is rounded to a token.
            for token in ("10.5", "10.0", "10::float8", "9223372036854775808", "true"):
                self.assertEqual(self.call(self.one, function, token), "42883", token)
            self.assertEqual(self.call(self.one, function, "10", "NULL"), "23502")
        self.assertEqual(self.one.ask("SELECT * FROM fencing")[1], "a|9|0")

    def test_a_late_writer_that_waits_for_a_newer_one_is_refused(self):
        for lock in ("new", "known"):
            other = self.session()
            self.one.ask("BEGIN")
            self.assertEqual(self.call(self.one, "admit", "8"), "00000")
            other.ask("BEGIN")
            other.send("SELECT fencing_admit('a', 7)")
            self.until_it_waits(other)
            self.one.ask("COMMIT")
            self.assertEqual(other.receive()[0], STALE, lock)
            other.ask("ROLLBACK")

    def test_a_new_writer_waits_for_the_end_of_the_old_ones_transaction(self):
        other = self.session()
        self.one.ask("BEGIN")
        self.assertEqual(self.call(self.one, "admit", "7"), "00000")
        other.send("SELECT fencing_admit('a', 8)")
        self.until_it_waits(other)
        self.one.ask("COMMIT")
        self.assertEqual(other.receive()[0], "00000")
        self.assertEqual(self.call(self.one, "admit", "7"), STALE)

    def test_a_rollback_takes_the_token_back(self):
        other = self.session()
        self.one.ask("BEGIN")
        self.call(self.one, "admit", "8")
        other.send("SELECT fencing_admit('a', 7)")
        self.until_it_waits(other)
        self.one.ask("ROLLBACK")
        self.assertEqual(other.receive()[0], "00000")

    def test_a_snapshot_of_the_past_admits_nothing_stale(self):
        self.call(self.one, "admit", "6")
        for level in ("REPEATABLE READ", "SERIALIZABLE"):
            other = self.session()
            other.ask(f"BEGIN ISOLATION LEVEL {level}")
            other.ask("SELECT * FROM fencing")
            self.assertEqual(self.call(self.one, "admit", "8"), "00000")
            self.assertEqual(self.call(other, "admit", "7"), "40001", level)
            other.ask("ROLLBACK")

    def test_the_check_and_the_write_are_one_step(self):
        self.one.ask("CREATE TABLE written (number bigserial, token bigint)")

        def write(session, seed):
            choose = random.Random(seed)
            for token in sorted(choose.randrange(1, 1_000) for _ in range(60)):
                session.ask("BEGIN")
                if self.call(session, "admit", str(token)) == "00000":
                    session.ask(f"INSERT INTO written (token) VALUES ({token})")
                    session.ask("COMMIT")
                else:
                    session.ask("ROLLBACK")

        threads = [threading.Thread(target=write, args=(self.session(), seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = [int(token) for token in self.one.ask("SELECT token FROM written ORDER BY number")[1].split()]
        self.assertTrue(written)
        self.assertEqual(written, sorted(written))


if __name__ == "__main__":
    unittest.main()

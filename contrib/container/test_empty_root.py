#!/usr/bin/env python3
"""Runs the static binary as the image does: in an empty root that is read-only, as a user with a number and no name, with
a volume for the data. Needs root, for the mounts.

Usage: test_empty_root.py LOCKKEEPER
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
USER = 65532

# In a mount namespace of its own, so that nothing is left behind.
MOUNTS = """
set -e
mount --bind "$1" "$1"
mount --bind "$2" "$1/data"
mount -o remount,bind,ro "$1"
shift 2
exec "$@"
"""


class EmptyRoot(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockkeeper-root-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.root, self.data = self.folder / "root", self.folder / "volume"
        (self.root / "data").mkdir(parents=True)
        self.data.mkdir(mode=0o700)
        os.chown(self.data, USER, USER)
        os.chmod(self.folder, 0o755)
        shutil.copy(BINARY, self.root / "lockkeeper")
        (self.root / "etc").mkdir()
        (self.root / "etc" / "hosts").write_text("127.0.0.1 a-name-of-hosts\n")

    def command(self, *arguments):
        chroot = ["chroot", f"--userspec={USER}:{USER}", self.root, "/lockkeeper", *arguments]
        return ["unshare", "--mount", "--propagation=private", "sh", "-c", MOUNTS, "sh", self.root, self.data, *chroot]

    def serve(self, *options):
        listen = ["--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--log-level=warn"]
        command = self.command("serve", *listen, *(options or ["--data=/data"]))
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={})
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        ready = server.stdout.readline().split()
        self.assertEqual(ready[:2], ["lockkeeper", "ready"])
        return server, ready[2], ready[4]

    def run_in_root(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, env={})

    def test_it_is_static(self):
        said = subprocess.run(["ldd", BINARY], capture_output=True, text=True)
        text = said.stdout + said.stderr
        self.assertTrue("statically linked" in text or "not a dynamic executable" in text, text)

    def test_it_serves_is_healthy_keeps_its_data_and_drains(self):
        server, address, metrics = self.serve()
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        self.assertIn(f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n", status)
        for options, answer in [((), "alive\n"), (("--ready",), "ready\n")]:
            health = self.run_in_root("health", f"--http={metrics}", *options)
            self.assertEqual((health.returncode, health.stdout), (0, answer), health.stderr)
        # A client of ours, in the same image; by a name, too, from the file that every container gets.
        port = address.rsplit(":")[-1]
        for host in ("127.0.0.1", "a-name-of-hosts"):
            locks = self.run_in_root("locks", f"--url=lockkeeper://{host}:{port}")
            self.assertEqual(locks.returncode, 0, (host, locks.stderr))
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        self.assertNotEqual(self.run_in_root("health", f"--http={metrics}").returncode, 0)
        self.assertIn("STORE", os.listdir(self.data))
        self.serve()

    def test_it_makes_backups_in_a_volume(self):
        backups = self.data / "backups"
        backups.mkdir()
        os.chown(backups, USER, USER)
        server, _, _ = self.serve("--data=/data/store", "--backup-every=1h", "--backup-dir=/data/backups")
        while not list(backups.glob("*.backup")):
            self.assertIsNone(server.poll())

    def test_nothing_but_the_volume_can_be_written(self):
        refused = self.run_in_root("serve", "--data=/elsewhere", "--listen=127.0.0.1:0")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("Read-only file system", refused.stderr)


if __name__ == "__main__":
    unittest.main()

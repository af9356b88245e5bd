"""The two servers under test: a real ZooKeeper and ours.

    servers.py LOCKKEEPER COMMAND [ARGUMENT…]    runs COMMAND on each, with the URL as its last argument
"""

import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
PATIENCE = 60
CONFIG = """dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=200
maxSessionTimeout=60000
maxClientCnxns=0
4lw.commands.whitelist=*
reconfigEnabled=true
"""


# Logged by a server whose port is taken.
IN_USE = re.compile("in use", re.IGNORECASE)


class Failed(Exception):
    """A server misbehaved."""


class Server:
    """A process that serves a directory on one port and can be restarted."""

    # Runs the server's command.
    launcher = []

    def __init__(self, folder):
        self.folder = folder
        # Chosen at the first start and then kept, because clients reconnect to it.
        self.port = None
        self.process = None

    def start(self):
        if self.port is not None:
            return self.launch()
        for self.port in ports():
            try:
                return self.launch()
            except Failed:
                # Another process may have taken a port that was free a moment ago.
                if not IN_USE.search(self.log()):
                    raise
        raise Failed(f"{self.name} finds no free port")

    def launch(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, *self.command()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        self.wait_until_ready()

    def end(self, kill):
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed(f"{self.name} does not end on SIGTERM\n{self.log()}") from None
        finally:
            self.process.stdout.close()

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        return (self.folder / "log").read_text(errors="replace")[-4000:]


class ZooKeeper(Server):
    """Debian's 3.8 or another version's jars, with our server's settings."""

    name = "zookeeper"
    version = "3.8"

    def __init__(self, folder, jars=JARS, settings=""):
        super().__init__(folder)
        self.jars = jars
        # After CONFIG, because the last value of a name counts.
        self.settings = settings

    def command(self):
        config = self.folder / "zoo.cfg"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port) + self.settings)
        return [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            "-Dzookeeper.extendedTypesEnabled=true", "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64",
            "-Dznode.container.checkIntervalMs=1000", "-cp", self.jars,
            "org.apache.zookeeper.server.ZooKeeperServerMain", str(config),
        ]

    def wait_until_ready(self):
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.running():
            if word(self.port, b"srvr").startswith("Zookeeper version"):
                return
            # ZooKeeper does not report that it is ready.
            time.sleep(0.05)
        raise Failed(f"ZooKeeper does not start\n{self.log()}")

    def end(self, kill):
        # SIGTERM ends it without a clean shutdown, with exit code 143.
        super().end(kill)


class Lockkeeper(Server):
    """The command under test."""

    name = "lockkeeper"
    version = "3.9"
    binary = None

    def command(self):
        return [
            self.binary, "serve", "--listen", f"127.0.0.1:{self.port}",
            "--data", str(self.folder / "data"), "--four-letter-words", "*", "--allow-ttl",
            "--tick", "200ms", "--max-session-timeout", "60s", "--reaper-interval", "1s",
        ]

    def wait_until_ready(self):
        line = self.process.stdout.readline().decode()
        if not re.fullmatch(rf"lockkeeper ready 127\.0\.0\.1:{self.port}\n", line):
            self.process.kill()
            raise Failed(f"lockkeeper does not start, it says {line!r}\n{self.log()}")

    def end(self, kill):
        super().end(kill)
        if not kill and self.process.returncode != 0:
            raise Failed(f"lockkeeper ends with {self.process.returncode} on SIGTERM\n{self.log()}")


def word(port, letters):
    """Returns the answer to a four-letter word, or nothing without a server."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(letters)
            return connection.makefile(errors="replace").read()
    except OSError:
        return ""


def ports():
    """Yields free ports below the system's range for clients.

    While a server is down, a reconnecting client could otherwise be assigned the server's port and keep it.
    """
    for port in random.sample(range(20000, 30000), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        yield port


def main():
    # The servers end with this process, even if it is killed.
    Server.launcher = ["setpriv", "--pdeathsig", "KILL"]
    Lockkeeper.binary, *command = sys.argv[1:]
    for kind in (Lockkeeper, ZooKeeper):
        with tempfile.TemporaryDirectory() as folder:
            server = kind(pathlib.Path(folder))
            try:
                server.start()
                subprocess.run([*command, f"{server.name}://127.0.0.1:{server.port}"], check=True)
            finally:
                if server.running():
                    server.end(kill=True)


if __name__ == "__main__":
    main()

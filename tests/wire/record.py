#!/usr/bin/env python3
"""Records what real clients and a real ZooKeeper say to each other, for tests/wire.

    record.py FOLDER [CLASSPATH]

Needs Debian's zookeeper, a JDK, and kazoo in this Python. CLASSPATH is that of another version of
ZooKeeper. Writes FOLDER/calls.txt and FOLDER/quirks.txt; see README.md.
"""

import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import quirks

HERE = pathlib.Path(__file__).parent
JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
CONFIG = """dataDir={folder}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=2000
maxClientCnxns=0
4lw.commands.whitelist=*
reconfigEnabled=true
"""


class Wire:
    """Carries frames between clients and a server, and writes them down."""

    def __init__(self, server):
        self.server = server
        self.lock = threading.Lock()
        self.connections = []
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.server))
            frames = []
            with self.lock:
                self.connections.append(frames)
                self.sockets += [client, server]
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((client, server, ">"), (server, client, "<")):
                threading.Thread(target=self.carry, args=(*pair, frames), daemon=True).start()

    def carry(self, source, sink, direction, frames):
        try:
            while length := exactly(source, 4):
                frame = length + exactly(source, struct.unpack(">i", length)[0])
                with self.lock:
                    frames.append((direction, frame))
                sink.sendall(frame)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            sockets, self.sockets = self.sockets, []
        for end in sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def exactly(source, count):
    got = b""
    while len(got) < count:
        more = source.recv(count - len(got))
        if not more:
            if got:
                raise OSError("it ends within a frame")
            return b""
        got += more
    return got


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def serve(folder, port, classpath):
    config = folder / "zoo.cfg"
    config.write_text(CONFIG.format(folder=folder / "data", port=port))
    command = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
        "-Dzookeeper.extendedTypesEnabled=true", "-Dzookeeper.admin.enableServer=false",
        "-Dzookeeper.preAllocSize=64", "-cp", classpath,
        "org.apache.zookeeper.server.ZooKeeperServerMain", str(config),
    ]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(600):
        answer = word(port, b"srvr")
        if answer.startswith("Zookeeper version"):
            return server, answer.split()[2].split("-")[0]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    server.kill()
    sys.exit("ZooKeeper does not start:\n" + (folder / "log").read_text())


def word(port, letters):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(letters)
            return connection.makefile().read()
    except OSError:
        return ""


def java(folder, classpath, wire):
    subprocess.run(["javac", "-nowarn", "-encoding", "UTF-8", "-cp", classpath, "-d", folder, HERE / "Calls.java"], check=True)
    client = subprocess.Popen(
        ["java", "-cp", f"{folder}:{classpath}", "Calls", f"127.0.0.1:{wire.port}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in client.stdout:
        if line.strip() == "cut":
            wire.cut()
    if client.wait() != 0:
        sys.exit("the Java client failed")


def kazoo(wire):
    subprocess.run([sys.executable, HERE / "calls.py", f"127.0.0.1:{wire.port}"], check=True)


def put(to, frames):
    for direction, frame in frames:
        to.write(f"{direction} {frame.hex()}\n")


def main():
    target = pathlib.Path(sys.argv[1])
    classpath = sys.argv[2] if len(sys.argv) > 2 else JARS
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder, port = pathlib.Path(folder), free_port()
        server, version = serve(folder, port, classpath)
        try:
            with open(target / "calls.txt", "w") as to:
                to.write(f"# ZooKeeper {version}, and its Java client; kazoo\n")
                for name, client in (("java", lambda wire: java(folder, classpath, wire)), ("kazoo", kazoo)):
                    wire = Wire(port)
                    client(wire)
                    for frames in wire.connections:
                        to.write(f"\n= {name}\n")
                        put(to, frames)
            with open(target / "quirks.txt", "w") as to:
                to.write(f"# ZooKeeper {version}\n")
                for name, connection in quirks.record(port):
                    to.write(f"\n= {name}\n")
                    put(to, connection.frames)
                    to.write("closed\n" if connection.closed else "open\n")
        finally:
            server.kill()
            server.wait()


main()

#!/usr/bin/env python3
"""Records what real clients and a real ZooKeeper send, for tests/wire.

    record.py FOLDER [CLASSPATH]

Needs Debian's zookeeper, a JDK, and kazoo in this Python. CLASSPATH selects another version of ZooKeeper. Writes
FOLDER/calls.txt and FOLDER/quirks.txt, which README.md describes.
"""

import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import quirks

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "clients"))
from servers import JARS, ZooKeeper, word


class Wire:
    """Carries frames between clients and a server, and records them."""

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
        folder = pathlib.Path(folder)
        server = ZooKeeper(folder, classpath, "tickTime=2000\nmaxSessionTimeout=40000\n")
        server.start()
        try:
            version = word(server.port, b"srvr").split()[2].split("-")[0]
            with open(target / "calls.txt", "w") as to:
                to.write(f"# ZooKeeper {version}, and its Java client; kazoo\n")
                for name, client in (("java", lambda wire: java(folder, classpath, wire)), ("kazoo", kazoo)):
                    wire = Wire(server.port)
                    client(wire)
                    for frames in wire.connections:
                        to.write(f"\n= {name}\n")
                        put(to, frames)
            with open(target / "quirks.txt", "w") as to:
                to.write(f"# ZooKeeper {version}\n")
                for name, connection in quirks.record(server.port):
                    to.write(f"\n= {name}\n")
                    put(to, connection.frames)
                    to.write("closed\n" if connection.closed else "open\n")
        finally:
            server.end(kill=True)


main()

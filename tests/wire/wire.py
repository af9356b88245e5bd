"""ZooKeeper frames made by hand, which no client sends. See record.py."""

import socket
import struct

OPEN = [(31, "world", "anyone")]


def i32(number):
    return struct.pack(">i", number)


def i64(number):
    return struct.pack(">q", number)


def flag(value):
    return b"\1" if value else b"\0"


def data(value):
    """Bytes, text or a null."""
    if value is None:
        return i32(-1)
    if isinstance(value, str):
        value = value.encode()
    return i32(len(value)) + value


def texts(values):
    if values is None:
        return i32(-1)
    return i32(len(values)) + b"".join(data(value) for value in values)


def acl(entries):
    if entries is None:
        return i32(-1)
    parts = [i32(perms) + data(scheme) + data(id) for perms, scheme, id in entries]
    return i32(len(entries)) + b"".join(parts)


def create(path, value=b"data", list=OPEN, flags=0):
    return data(path) + data(value) + acl(list) + i32(flags)


def head(kind, end=False, err=-1):
    return i32(kind) + flag(end) + i32(err)


def multi(*operations):
    parts = [head(kind) + record for kind, record in operations]
    return b"".join(parts) + head(-1, True)


def handshake(session=0, password=b"\0" * 16, seen=0, read_only=False, timeout=10_000):
    frame = i32(0) + i64(seen) + i32(timeout) + i64(session) + data(password)
    return frame if read_only is None else frame + flag(read_only)


class Connection:
    """A connection and its traffic: pairs of a direction and a frame with its length."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.frames = []
        self.closed = False

    def send(self, body):
        self.send_raw(i32(len(body)) + body)

    def send_raw(self, raw):
        self.frames.append((">", raw))
        self.socket.sendall(raw)

    def receive(self, seconds=10):
        """Returns the next frame's body, or None if the server closes the connection or stays silent."""
        self.socket.settimeout(seconds)
        try:
            length = self.exactly(4)
            body = self.exactly(struct.unpack(">i", length)[0]) if length else None
        except socket.timeout:
            return None
        if body is None:
            self.closed = True
        else:
            self.frames.append(("<", length + body))
        return body

    def exactly(self, count):
        got = b""
        while len(got) < count:
            try:
                more = self.socket.recv(count - len(got))
            except ConnectionResetError:
                return None
            if not more:
                return None
            got += more
        return got

    def connect(self, **options):
        self.send(handshake(**options))
        return self.receive()

    def call(self, xid, kind, record=b""):
        self.send(i32(xid) + i32(kind) + record)
        return self.receive()

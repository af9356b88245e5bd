"""Sends frames that no client sends. See record.py."""

from wire import (
    Connection, OPEN, acl, create, data, flag, handshake, head, i32, i64, multi, texts,
)

# Sent after the handshake, each on a new connection: a name, and a frame without its length.
REQUESTS = [
    ("an empty frame", b""),
    ("half a header", i32(1)),
    ("an unknown operation", i32(1) + i32(99) + b"whatever"),
    ("operation 0", i32(1) + i32(0)),
    ("operation 10", i32(1) + i32(10)),
    ("a check by itself", i32(1) + i32(13) + data("/q") + i32(0)),
    ("a reconfig", i32(1) + i32(16) + data(None) + data(None) + data("server.1=a:1:2;3") + i64(-1)),
    ("create, cut", i32(1) + i32(1) + data("/q/x")),
    ("create without flags", i32(1) + i32(1) + create("/q/x")[:-4]),
    ("create2, nothing", i32(1) + i32(15)),
    ("delete, cut", i32(1) + i32(2) + data("/q/x")),
    ("exists, cut", i32(1) + i32(3) + data("/q")),
    ("getData, nothing", i32(1) + i32(4)),
    ("setData, cut", i32(1) + i32(5) + data("/q") + data(b"x")),
    ("setACL, cut", i32(1) + i32(7) + data("/q") + i32(1)),
    ("multi, nothing", i32(1) + i32(14)),
    ("multi without an end", i32(1) + i32(14) + head(13) + data("/q") + i32(-1)),
    ("setWatches, cut", i32(-8) + i32(101) + i64(0) + texts(["/q"])),
    ("auth, cut", i32(-4) + i32(100) + i32(0) + data("digest")),
    ("sasl, cut", i32(1) + i32(102)),
    ("ping with a body", i32(-2) + i32(11) + b"more"),
    ("exists with more behind it", i32(1) + i32(3) + data("/q") + flag(False) + b"more"),
    ("a length below -1", i32(1) + i32(4) + i32(-2) + flag(False)),
    ("a length beyond the end", i32(1) + i32(4) + i32(1000) + b"/q" + flag(False)),
    ("a huge length", i32(1) + i32(4) + i32(0x7FFFFFFF) + b"/q" + flag(False)),
    ("exists of null", i32(1) + i32(3) + data(None) + flag(False)),
    ("getData of null", i32(1) + i32(4) + data(None) + flag(False)),
    ("getChildren of null", i32(1) + i32(8) + data(None) + flag(False)),
    ("getChildren2 of null", i32(1) + i32(12) + data(None) + flag(False)),
    ("getACL of null", i32(1) + i32(6) + data(None)),
    ("create of null", i32(1) + i32(1) + create(None)),
    ("delete of null", i32(1) + i32(2) + data(None) + i32(-1)),
    ("setData of null", i32(1) + i32(5) + data(None) + data(b"") + i32(-1)),
    ("setACL of null", i32(1) + i32(7) + data(None) + acl(OPEN) + i32(-1)),
    ("sync of null", i32(1) + i32(9) + data(None)),
    ("sync of what is no path", i32(1) + i32(9) + data("what")),
    ("getEphemerals of null", i32(1) + i32(103) + data(None)),
    ("getEphemerals of what is no path", i32(1) + i32(103) + data("what")),
    ("getAllChildrenNumber of null", i32(1) + i32(104) + data(None)),
    ("checkWatches of null", i32(1) + i32(17) + data(None) + i32(3)),
    ("removeWatches of null", i32(1) + i32(18) + data(None) + i32(3)),
    ("removeWatches of nothing", i32(1) + i32(18) + data("/q") + i32(3)),
    ("removeWatches of a kind that is none", i32(1) + i32(18) + data("/q") + i32(9)),
    ("addWatch of null", i32(1) + i32(106) + data(None) + i32(0)),
    ("addWatch in a mode that is none", i32(1) + i32(106) + data("/q") + i32(7)),
    ("addWatch of what is no path", i32(1) + i32(106) + data("what") + i32(0)),
    ("setWatches of null", i32(-8) + i32(101) + i64(0) + texts(None) + texts([]) + texts([])),
    ("setWatches of -2", i32(-8) + i32(101) + i64(0) + i32(-2) + texts([]) + texts([])),
    ("exists of an empty path", i32(1) + i32(3) + data("") + flag(False)),
    ("getChildren of an empty path", i32(1) + i32(8) + data("") + flag(False)),
    ("exists of what is no path", i32(1) + i32(3) + data("what") + flag(False)),
    ("exists of a NUL", i32(1) + i32(3) + data("/q\0") + flag(False)),
    ("getData of a NUL", i32(1) + i32(4) + data("/q\0") + flag(False)),
    ("getData of bad UTF-8", i32(1) + i32(4) + data(b"/q\xff") + flag(False)),
    ("create of bad UTF-8", i32(1) + i32(1) + create(b"/q\xff")),
    ("create of what is no path", i32(1) + i32(1) + create("what")),
    ("create of a double slash", i32(1) + i32(1) + create("/q//x")),
    ("create of a slash at the end", i32(1) + i32(1) + create("/q/")),
    ("create of a slash at the end, numbered", i32(1) + i32(15) + create("/q/", flags=2)),
    ("create beyond U+FFFF", i32(1) + i32(1) + create("/q/\U0001f512")),
    ("create of the root", i32(1) + i32(1) + create("/")),
    ("delete of the root", i32(1) + i32(2) + data("/") + i32(-1)),
    ("delete of what is no path", i32(1) + i32(2) + data("what") + i32(-1)),
    ("delete of a double slash", i32(1) + i32(2) + data("/q//x") + i32(-1)),
    ("setData of what is no path", i32(1) + i32(5) + data("what") + data(b"") + i32(-1)),
    ("setData of a double slash", i32(1) + i32(5) + data("/q//x") + data(b"") + i32(-1)),
    ("create with flags 4", i32(1) + i32(15) + create("/q/f4", flags=4)),
    ("create with flags 5", i32(1) + i32(15) + create("/q/f5", flags=5)),
    ("create with flags 7", i32(1) + i32(15) + create("/q/f7", flags=7)),
    ("create with flags -1", i32(1) + i32(1) + create("/q/fn", flags=-1)),
    ("createContainer with flags 0", i32(1) + i32(19) + create("/q/c0", flags=0)),
    ("createTTL with flags 0", i32(1) + i32(21) + create("/q/t0", flags=0) + i64(1000)),
    ("createTTL with a TTL of 0", i32(1) + i32(21) + create("/q/tz", flags=5) + i64(0)),
    ("createTTL with a TTL of -1", i32(1) + i32(21) + create("/q/tn", flags=5) + i64(-1)),
    ("createTTL with a TTL of 2^40", i32(1) + i32(21) + create("/q/th", flags=5) + i64(1 << 40)),
    ("create with a null list", i32(1) + i32(1) + create("/q/an", list=None)),
    ("create with an empty list", i32(1) + i32(1) + create("/q/ae", list=[])),
    ("create with a list of -2", i32(1) + i32(1) + data("/q/a2") + data(b"") + i32(-2) + i32(0)),
    ("create with a null scheme", i32(1) + i32(1) + create("/q/as", list=[(31, None, "x")])),
    ("create with a null id", i32(1) + i32(1) + create("/q/ai", list=[(31, "digest", None)])),
    ("create with more rights", i32(1) + i32(1) + create("/q/ap", list=[(-1, "world", "anyone")])),
    ("multi of nothing", i32(1) + i32(14) + multi()),
    ("multiRead of nothing", i32(1) + i32(22) + multi()),
    ("multi with an operation that is none", i32(1) + i32(14) + multi((99, b""))),
    ("multi with an operation of reading", i32(1) + i32(14) + multi((4, data("/q") + flag(False)))),
    ("multi that mixes", i32(1) + i32(14)
        + multi((13, data("/q") + i32(-1)), (4, data("/q") + flag(False)))),
    ("multiRead of a check", i32(1) + i32(22) + multi((13, data("/q") + i32(-1)))),
    ("multiRead of exists", i32(1) + i32(22) + multi((3, data("/q") + flag(False)))),
    ("multiRead of what is no path", i32(1) + i32(22)
        + multi((4, data("what") + flag(False)), (8, data("/q") + flag(False)))),
    ("multi with flags 7", i32(1) + i32(14)
        + multi((13, data("/no") + i32(-1)), (1, create("/q/m7", flags=7)))),
    ("multi with flags 5", i32(1) + i32(14) + multi((15, create("/q/m5", flags=5)))),
    ("multi with a bad TTL", i32(1) + i32(14)
        + multi((13, data("/q") + i32(-1)), (21, create("/q/mt", flags=5) + i64(0)))),
    ("multi with a bad path", i32(1) + i32(14)
        + multi((13, data("/q") + i32(-1)), (1, create("what")), (13, data("/q") + i32(-1)))),
    ("multi with a bad path behind a failure", i32(1) + i32(14)
        + multi((13, data("/q") + i32(77)), (1, create("what")))),
    ("multi with an empty list", i32(1) + i32(14) + multi((1, create("/q/me", list=[])))),
    ("multi with a check of what is no path", i32(1) + i32(14)
        + multi((13, data("what") + i32(-1)))),
    ("multi with create2", i32(1) + i32(14) + multi((15, create("/q/m2-", flags=2)))),
    ("auth of a scheme that is none", i32(-4) + i32(100) + i32(0) + data("what") + data(b"x")),
    ("auth of digest without a colon", i32(-4) + i32(100) + i32(0) + data("digest") + data(b"x")),
    ("auth of null", i32(-4) + i32(100) + i32(0) + data(None) + data(None)),
    ("auth of world", i32(-4) + i32(100) + i32(0) + data("world") + data(b"anyone")),
    ("auth of ip", i32(-4) + i32(100) + i32(0) + data("ip") + data(b"")),
    ("auth of digest", i32(-4) + i32(100) + i32(0) + data("digest") + data(b"user:secret")),
    ("sasl of a server that has none", i32(1) + i32(102) + data(b"")),
    ("closeSession", i32(1) + i32(-11)),
    ("whoAmI", i32(1) + i32(107)),
]


def record(port):
    """Yields names and connections."""
    setup = Connection(port)
    setup.connect()
    setup.call(1, 1, create("/q"))
    setup.call(2, 1, create("/q/null", value=None))
    yield from handshakes(port)
    for name, body in REQUESTS:
        connection = Connection(port)
        connection.connect()
        connection.frames.clear()
        connection.send(body)
        connection.receive(2)
        said = list(connection.frames)
        after(connection)
        connection.frames = said
        yield name, connection
    connection = Connection(port)
    connection.connect()
    connection.frames.clear()
    connection.call(1, 4, data("/q/null") + flag(False))
    connection.call(2, 3, data("/q/null") + flag(False))
    yield "getData of null data", connection
    yield "a negative length", raw(port, i32(-1))
    yield "a length above the limit", raw(port, i32(1 << 20))
    yield "a pipeline that ends with closeSession and goes on", pipeline(port)


def after(connection):
    """Returns true if the connection still answers a ping."""
    if not connection.closed:
        try:
            connection.call(-2, 11)
        except OSError:
            connection.closed = True


def raw(port, sent):
    connection = Connection(port)
    connection.connect()
    connection.frames.clear()
    connection.send_raw(sent)
    connection.receive(2)
    return connection


def pipeline(port):
    connection = Connection(port)
    connection.connect()
    connection.frames.clear()
    frames = [
        i32(1) + i32(3) + data("/q") + flag(False),
        i32(2) + i32(1) + create("/q/pipe", flags=1),
        i32(3) + i32(4) + data("/q/pipe") + flag(True),
        i32(4) + i32(-11),
        i32(5) + i32(3) + data("/q") + flag(False),
    ]
    for frame in frames:
        connection.frames.append((">", i32(len(frame)) + frame))
    connection.socket.sendall(b"".join(i32(len(frame)) + frame for frame in frames))
    while connection.receive(2) is not None:
        continue
    return connection


def session_of(answer):
    """Returns the session and password of a handshake's answer."""
    return int.from_bytes(answer[8:16], "big", signed=True), answer[20:36]


def handshakes(port):
    connection = Connection(port)
    connection.connect(read_only=None)
    after(connection)
    yield "handshake without the byte of read-only", connection
    connection = Connection(port)
    connection.connect(read_only=True)
    after(connection)
    yield "handshake of a client that only reads", connection
    connection = Connection(port)
    connection.connect(password=b"")
    after(connection)
    yield "handshake without a password", connection
    connection = Connection(port)
    connection.connect(password=None)
    after(connection)
    yield "handshake with a null password", connection
    connection = Connection(port)
    connection.connect(timeout=1)
    yield "handshake with a timeout that is too short", connection
    connection = Connection(port)
    connection.connect(timeout=10_000_000)
    yield "handshake with a timeout that is too long", connection
    connection = Connection(port)
    connection.connect(seen=1 << 40)
    yield "handshake of a client that has seen more", connection
    connection = Connection(port)
    connection.connect(session=12345, password=b"x" * 16)
    connection.receive(2)
    yield "handshake with a session that is none", connection
    connection = Connection(port)
    connection.send(handshake()[:20])
    connection.receive(2)
    yield "handshake, cut", connection
    connection = Connection(port)
    connection.send(i32(1) + i32(3) + data("/q") + flag(False))
    connection.receive(2)
    yield "a request before the handshake", connection
    yield from again(port)


def again(port):
    """Returns to a session. The first connection is closed, whatever the password."""
    first = Connection(port)
    session, password = session_of(first.connect())
    first.call(1, 1, create("/q/mine", flags=1))
    second = Connection(port)
    second.connect(session=session, password=password, timeout=20_000)
    second.call(1, 3, data("/q/mine") + flag(False))
    first.receive(2)
    yield "a session that another connection takes over", first
    yield "handshake that takes a session over", second
    third = Connection(port)
    third.connect(session=session, password=b"wrong password!!")
    third.receive(2)
    yield "handshake with a wrong password", third
    second.receive(2)
    yield "a session whose password another got wrong", second
    fourth = Connection(port)
    fourth.connect(session=session, password=password)
    fourth.call(1, 3, data("/q/mine") + flag(False))
    # Changed and unchanged znodes.
    watches = texts(["/q", "/q/null", "/q/gone"]) + texts(["/q", "/q/never"])
    fourth.call(-8, 101, i64(1) + watches + texts(["/q", "/q/gone"]))
    while fourth.receive(1) is not None:
        continue
    fourth.call(2, -11)
    fourth.receive(2)
    yield "handshake that comes back, setWatches, and the end", fourth
    fifth = Connection(port)
    fifth.connect(session=session, password=password)
    fifth.receive(2)
    yield "handshake with a session that is closed", fifth

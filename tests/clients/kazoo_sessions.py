"""Sessions of kazoo: taken over, expired and stopped, over broken connections and server restarts."""

import os
import signal
import subprocess
import sys
import threading

import kazoo.exceptions as errors
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from checks import Events, PATIENCE, WIRE, check, close, connect, order, raises, run, say, until

# A timeout that does not expire, however slow the machine is.
LONG = 50


class States(Events):
    """The states reported to a listener."""

    def __init__(self, client):
        super().__init__()
        client.add_listener(self)


def taking_over():
    """A second client takes over the session of the first, whose connection is closed."""
    first, watcher = connect(timeout=LONG), connect(timeout=LONG)
    states = States(first)
    first.create("/over", b"", ephemeral=True)
    session = first.client_id
    second = connect(timeout=LONG, client_id=session)
    until("the first is dropped", lambda: KazooState.SUSPENDED in states.seen, True)
    # Now each would throw out the other, so one must leave and let go of the session.
    first._session_passwd = b"wrong password!!"
    until("a wrong password is no way back", lambda: KazooState.LOST in states.seen, True)
    until("the first gets a session of its own",
          lambda: first.connected and first.client_id not in (None, session), True)
    until("the second comes back to the session", lambda: second.client_id == session, True)
    check("the session has survived", second.retry(second.exists, "/over").ephemeralOwner == session[0], True)
    gone = Events()
    watcher.exists("/over", watch=gone)
    close(second)
    gone.wait("closed, it takes its ephemerals along", "DELETED /over")
    third = connect(timeout=LONG, client_id=session)
    check("a session that is closed is not opened again", third.client_id[0] != session[0], True)
    check("its ephemerals stay away", third.exists("/over"), None)
    close(first, watcher, third)


def unknown_sessions():
    owner = connect(timeout=LONG)
    owner.create("/unknown", ephemeral=True)
    session, password = owner.client_id
    states = Events()
    stranger = connect_with((session, b"0123456789abcdef"), states)
    check("a wrong password: another session", stranger.client_id[0] != session, True)
    # `start` returns when kazoo is connected, before its listeners are called.
    states.wait("it is told of no other", KazooState.CONNECTED)
    other = connect_with((0x123456789, password), Events())
    check("a session that is none: another session", other.client_id[0] not in (session, 0x123456789), True)
    until("the owner has come back", lambda: owner.connected, True)
    check("with its session", (owner.client_id == (session, password), owner.retry(owner.exists, "/unknown") is not None),
          (True, True))
    close(owner, stranger, other)


def connect_with(client_id, states):
    from kazoo.client import KazooClient
    client = KazooClient(WIRE, timeout=LONG, client_id=client_id, connection_retry=KazooRetry(max_tries=-1, delay=0.05))
    client.add_listener(states)
    client.start(PATIENCE)
    return client


def expiry():
    """A stopped process loses its session, and learns this when it continues."""
    watcher = connect(timeout=LONG)
    gone, parent, states = Events(), Events(), []
    process = subprocess.Popen([sys.executable, "-u", __file__, "sleeper"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        check("the other process", process.stdout.readline(), "ready\n")
        watcher.exists("/sleeper", watch=gone)
        watcher.exists("/sleeper-2", watch=gone)
        process.send_signal(signal.SIGSTOP)
        with gone.changed:
            gone.changed.wait_for(lambda: len(gone.seen) == 2, PATIENCE)
            check("its ephemerals go", sorted(gone.seen), ["DELETED /sleeper", "DELETED /sleeper-2"])
        process.send_signal(signal.SIGCONT)
        while (line := process.stdout.readline()) not in ("", "CONNECTED\n"):
            if line not in states:
                states.append(line)
        check("it learns that its session is lost", states[-1:], ["LOST\n"])
        check("and gets another one", process.stdout.readline(), "another session: True\n")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    close(watcher)


def sleeper():
    # Short, but long enough that a busy machine does not lose it by accident.
    client = connect(timeout=4)
    session = client.client_id[0]
    for path in ("/sleeper", "/sleeper-2"):
        try:
            client.retry(client.create, path, ephemeral=True)
        except errors.NodeExistsError:
            # It was created before the connection broke.
            pass
    lost = threading.Event()

    def told(state):
        say(state)
        if state == KazooState.LOST:
            lost.set()
        elif state == KazooState.CONNECTED and lost.is_set():
            say(f"another session: {client.client_id[0] != session}")

    client.add_listener(told)
    say("ready")
    sys.stdin.read()


def recipes_over_a_cut():
    """kazoo does not re-arm watches, but its DataWatch and ChildrenWatch do."""
    client, other = connect(WIRE, timeout=LONG), connect(timeout=LONG)
    session = client.client_id
    states, data, children = States(client), Events(), Events()
    client.create("/cut", b"0")
    client.create("/cut/e", ephemeral=True)
    client.DataWatch("/cut", lambda value, stat: data(f"{value.decode()}") if value is not None else data("gone"))
    client.ChildrenWatch("/cut", lambda names: children(" ".join(sorted(names))))
    data.wait("data at first", "0")
    children.wait("children at first", "e")
    order("cut")
    states.wait("the connection breaks", KazooState.SUSPENDED)
    other.set("/cut", b"1")
    other.create("/cut/while-away")
    order("heal")
    states.wait("and is there again", KazooState.SUSPENDED, KazooState.CONNECTED)
    check("the session is the same", client.client_id == session, True)
    data.wait("data that changed meanwhile", "0", "1")
    children.wait("children that changed meanwhile", "e", "e while-away")
    order("drop")
    states.wait("it breaks again", *[KazooState.SUSPENDED, KazooState.CONNECTED] * 2)
    # Waits until the recipes have looked again, because their reads are queued before this one.
    client.sync("/cut")
    other.set("/cut", b"2")
    other.delete("/cut/while-away")
    data.wait_last("data that changes after it", "2")
    children.wait_last("children that change after it", "e")
    check("the ephemeral was there all the time", other.exists("/cut/e").ephemeralOwner == session[0], True)
    close(client, other)


def lost_requests():
    """Requests in flight fail when the connection breaks, and may be retried."""
    client = connect(WIRE, timeout=LONG)
    client.create("/lost")
    for number in range(300):
        results = [client.create_async(f"/lost/{number}-{name}") for name in "abcd"]
        if number % 100 == 50:
            order("drop")
        for name, result in zip("abcd", results):
            try:
                result.get()
            except (errors.ConnectionLoss, errors.SessionExpiredError):
                client.retry(client.ensure_path, f"/lost/{number}-{name}")
    check("all is made, once", client.retry(client.exists, "/lost").numChildren, 1200)
    close(client)


def restarts():
    """The server stops, cleanly or not, and restarts. Sessions and their ephemerals survive."""
    client, other = connect(WIRE, timeout=LONG), connect(WIRE, timeout=LONG)
    sessions = client.client_id, other.client_id
    for end in ("stop", "kill"):
        states, more = States(client), States(other)
        client.create(f"/{end}", b"before")
        client.create(f"/{end}-null", None)
        client.create(f"/{end}/e", ephemeral=True)
        other.create(f"/{end}/n-", ephemeral=True, sequence=True)
        value = Events()
        other.DataWatch(f"/{end}", lambda data, stat: value(data.decode()))
        before = client.last_zxid
        order(end)
        states.wait_last(f"{end}: suspended", KazooState.SUSPENDED)
        more.wait_last(f"{end}: the other too", KazooState.SUSPENDED)
        order("start")
        states.wait_last(f"{end}: connected", KazooState.CONNECTED)
        more.wait_last(f"{end}: the other too", KazooState.CONNECTED)
        check("no session was lost", KazooState.LOST in states.seen + more.seen, False)
        check("they are the same", (client.client_id, other.client_id) == sessions, True)
        stat = client.retry(client.exists, f"/{end}/e")
        check("null data, too", client.retry(client.get, f"/{end}-null")[0], None)
        check("what was acknowledged is there", client.retry(client.get, f"/{end}")[0], b"before")
        check("an ephemeral keeps its owner", stat.ephemeralOwner == client.client_id[0], True)
        check("numbers go on", client.create(f"/{end}/n-", sequence=True), f"/{end}/n-0000000002")
        check("zxids grow", client.exists(f"/{end}/n-0000000002").czxid > before, True)
        client.set(f"/{end}", b"after")
        value.wait_last("a watch fires", "after")
        for one in (client, other):
            one.state_listeners.clear()
    gone = Events()
    other.exists("/kill/e", watch=gone)
    close(client)
    gone.wait("closing takes ephemerals of before along", "DELETED /kill/e")
    close(other)


def never_back():
    """A session whose client is gone for good is recovered too, and then expires."""
    watcher = connect(WIRE, timeout=LONG)
    process = subprocess.Popen([sys.executable, "-u", __file__, "sleeper"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    check("the other process", process.stdout.readline(), "ready\n")
    gone = Events()
    client = connect(WIRE, timeout=LONG)
    client.create("/stays", ephemeral=True)
    process.kill()
    process.wait()
    order("kill")
    order("start")
    if watcher.retry(watcher.exists, "/sleeper", watch=gone) is not None:
        gone.wait_last("its ephemeral goes", "DELETED /sleeper")
    else:
        say("its ephemeral goes: ['DELETED /sleeper']")
    check("the other one's does not", client.retry(client.exists, "/stays").ephemeralOwner == client.client_id[0], True)
    close(watcher, client)


def closing():
    """After close, nothing is left and the session is over."""
    watcher = connect(timeout=LONG)
    watcher.create("/closing")
    client = connect(timeout=LONG)
    for number in range(50):
        client.create(f"/closing/{number}", ephemeral=True)
    events = Events()
    for number in range(50):
        watcher.exists(f"/closing/{number}", watch=events)
    close(client)
    with events.changed:
        events.changed.wait_for(lambda: len(events.seen) == 50, PATIENCE)
    check("all ephemerals go", sorted(events.seen) == sorted(f"DELETED /closing/{n}" for n in range(50)), True)
    check("at once", watcher.get_children("/closing"), [])
    client.start(PATIENCE)
    check("started again it has a new session", client.exists("/closing").numChildren, 0)
    client.restart()
    check("restart", client.exists("/closing") is not None, True)
    client.stop()
    raises("stopped", errors.ConnectionClosedError, client.exists, "/closing")
    close(watcher)


if sys.argv[1:] == ["sleeper"]:
    sleeper()
    os._exit(0)
run(taking_over, unknown_sessions, expiry, recipes_over_a_cut, lost_requests, restarts, never_back, closing)

"""Shared by the Python scripts: checks that print what they saw, and commands to the proxy.

Each script prints one line per check and ends at the first difference. The output is the same on every server and in
every run, so run.py compares the lines of both servers. It skips lines that start with `~`, which are known to differ
(differences.py). With GO_ON in the environment, a script continues after a difference.
"""

import logging
import os
import socket
import sys
import threading
import time
import traceback

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

HOSTS = os.environ["HOSTS"]
WIRE = os.environ["WIRE"]
PATIENCE = 30

logging.disable(logging.CRITICAL)
printing = threading.Lock()


def say(*words):
    with printing:
        print(*words, flush=True)


def check(name, got, expected):
    if got != expected:
        fail(f"{name}: got {got!r}, expected {expected!r}")
    say(f"{name}: {got!r}")


def fail(words):
    say(f"DIFFERENT {words}")
    if "GO_ON" in os.environ:
        return
    traceback.print_stack(file=sys.stdout)
    sys.stdout.flush()
    os._exit(1)


def raises(name, kind, call, *args, **options):
    """Checks that the call raises exactly this kind, not a subclass."""
    try:
        got = call(*args, **options)
    except Exception as error:
        if type(error) is not kind:
            fail(f"{name}: {error!r}, expected {kind.__name__}")
        say(f"{name}: {kind.__name__}")
    else:
        fail(f"{name}: got {got!r}, expected {kind.__name__}")


def until(name, get, expected):
    """Polls, because no event reports the change."""
    end = time.monotonic() + PATIENCE
    while (got := get()) != expected:
        if time.monotonic() > end:
            fail(f"{name}: still {got!r} after {PATIENCE} s, expected {expected!r}")
        time.sleep(0.02)
    say(f"{name}: {expected!r}")


class Events:
    """A watcher that records its events."""

    def __init__(self):
        self.seen = []
        self.changed = threading.Condition()

    def __call__(self, event):
        with self.changed:
            self.seen.append(event if isinstance(event, str) else f"{event.type} {event.path}")
            self.changed.notify_all()

    def wait(self, name, *expected):
        """Checks that exactly these events arrive, in this order."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.seen) >= len(expected), PATIENCE)
            check(name, self.seen, list(expected))

    def wait_last(self, name, expected):
        with self.changed:
            self.changed.wait_for(lambda: self.seen and self.seen[-1] == expected, PATIENCE)
            check(name, self.seen[-1:], [expected])


def connect(hosts=HOSTS, timeout=20, **options):
    client = KazooClient(
        hosts, timeout=timeout, connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1, max_delay=0.2),
        command_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1, max_delay=0.2), **options)
    client.start(PATIENCE)
    return client


def close(*clients):
    for client in clients:
        client.stop()
        client.close()


def shape(stat):
    """The parts of a Stat that are the same on every server and in every run."""
    return (stat.version, stat.cversion, stat.aversion, stat.dataLength, stat.numChildren)


def order(word):
    with socket.create_connection(("127.0.0.1", int(os.environ["CONTROL"]))) as wire:
        wire.sendall(word.encode() + b"\n")
        answer = wire.makefile().readline().strip()
    if answer != "ok":
        fail(answer)


def known(name):
    """Returns what the server under test does, where servers are known to differ."""
    return os.environ[f"EXPECT_{name}"]


def run(*parts):
    for part in parts:
        say(f"= {part.__name__}")
        try:
            part()
        except Exception:
            say("DIFFERENT an exception that nobody expected")
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
    os._exit(0)

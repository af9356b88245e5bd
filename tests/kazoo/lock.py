"""A contender for a lock that uses kazoo, Python's client of ZooKeeper.

    lock.py HOST:PORT[/CHROOT] LOCK INSIDE NAME

It obeys the words on its stdin, and says on its stdout what came of them:

    lock       "queued ZNODE" when it waits behind that one, and "held" when it holds
    queue      "queue [[ZNODE, DATA], ...]": all contenders in order, their data read as JSON
    release    "released"

Whoever holds the lock makes the znode INSIDE, and removes it before he releases: making it fails
when there are two holders. What fails ends the program with a traceback. So does the end of its
stdin, without one.
"""

import json
import os
import sys
import threading
import traceback

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


def say(*words):
    print(*words, flush=True)


class Contender(Lock):
    """The lock of kazoo as it is, but for what it says."""

    def _get_predecessor(self, node):
        predecessor = super()._get_predecessor(node)
        if predecessor is not None:
            say("queued", predecessor)
        return predecessor


def fail(failure):
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def metadata(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


def main(hosts, path, inside, name):
    client = KazooClient(hosts, timeout=60)
    client.start()
    lock = Contender(client, path, name, extra_lock_patterns=["-lock-"])

    def acquire():
        lock.acquire()
        client.create(inside, ephemeral=True)
        say("held")

    for line in sys.stdin:
        command = line.strip()
        if command == "lock":
            # In a thread of its own, so that the end of stdin ends the wait.
            threading.Thread(target=acquire, daemon=True).start()
        elif command == "queue":
            names = sorted(client.get_children(path), key=lambda name: name[-10:])
            read = [(name, client.get(f"{path}/{name}")[0]) for name in names]
            say("queue", json.dumps([[name, metadata(data)] for name, data in read]))
        elif command == "release":
            client.delete(inside)
            lock.release()
            say("released")
        else:
            raise ValueError(f"unknown command {command!r}")
    os._exit(0)


threading.excepthook = fail
main(*sys.argv[1:])

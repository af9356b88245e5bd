"""Contenders that use kazoo, Python's ZooKeeper client.

    contenders.py HOST:PORT[/CHROOT] INSIDE GRANTS

tests/recipes/peer.rs describes the protocol on stdin and stdout, and the gate. There is one more command:

    queue      "queue [[ZNODE, DATA], ...]": all contenders in order, their data read as JSON
"""

import json
import os
import sys
import threading
import traceback

from kazoo.client import KazooClient
from kazoo.recipe.election import Election
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

printing = threading.Lock()


class Spoken:
    """kazoo's lock, with reports."""

    say = None

    def _get_predecessor(self, node):
        predecessor = super()._get_predecessor(node)
        if predecessor is not None:
            self.say("queued", predecessor)
        return predecessor


class SpokenLock(Spoken, Lock):
    pass


class SpokenReadLock(Spoken, ReadLock):
    pass


class SpokenWriteLock(Spoken, WriteLock):
    pass


# The same under Curator's names. docs/interop.md shows these classes.


class CuratorLock(Spoken, Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class CuratorReadLock(Spoken, ReadLock):
    _NODE_NAME = "__READ__"
    _EXCLUDE_NAMES = ["__WRIT__"]


class CuratorWriteLock(Spoken, WriteLock):
    _NODE_NAME = "__WRIT__"
    _EXCLUDE_NAMES = ["__WRIT__", "__READ__"]


class CuratorCandidate(Spoken, Lock):
    _NODE_NAME = "-latch-"
    _EXCLUDE_NAMES = ["-latch-"]


# Each recipe's class, the names it must be configured with, and how it passes the gate.
RECIPES = {
    "bare": (SpokenLock, (), "x"),
    "lock": (SpokenLock, ("-lock-",), "x"),
    "read": (SpokenReadLock, ("__WRIT__",), "s"),
    "write": (SpokenWriteLock, ("__WRIT__", "__READ__"), "x"),
    "election": (SpokenLock, ("-latch-",), "x"),
    "curator-lock": (CuratorLock, (), "x"),
    "curator-read": (CuratorReadLock, (), "s"),
    "curator-write": (CuratorWriteLock, (), "x"),
    "curator-election": (CuratorCandidate, (), "x"),
}


class Contender:
    """Takes a lock and releases it."""

    def __init__(self, name, recipe, path, hosts, inside, grants):
        self.name, self.path, self.inside, self.grants = name, path, inside, grants
        self.client = KazooClient(hosts, timeout=60)
        self.client.start()
        kind, extra, self.mark = RECIPES[recipe]
        self.lock = kind(self.client, path, name, extra_lock_patterns=extra)
        self.lock.say = self.say
        self.place = None

    def say(self, *words):
        with printing:
            print(self.name, *words, flush=True)

    def obey(self, command):
        # In a thread, so that a wait does not block the others.
        threading.Thread(target=self.attempt, args=(command,), daemon=True).start()

    def attempt(self, command):
        try:
            getattr(self, command)()
        except Exception:
            self.say("failed", traceback.format_exc().strip().replace("\n", " | "))

    def acquire(self):
        self.lock.acquire()
        self.enter(self.lock.node)
        self.say("held", self.lock.node)

    def release(self):
        self.client.delete(self.place)
        self.lock.release()
        self.say("released")

    def queue(self):
        names = sorted(self.client.get_children(self.path), key=lambda name: name[-10:])
        read = [(name, self.client.get(f"{self.path}/{name}")[0]) for name in names]
        self.say("queue", json.dumps([[name, metadata(data)] for name, data in read]))

    def enter(self, node):
        self.place = self.client.create(
            f"{self.inside}/{self.mark}-", ephemeral=True, sequence=True
        )
        there = self.client.get_children(self.inside)
        if self.mark == "x":
            fits = len(there) == 1
        else:
            fits = not any(name.startswith("x-") for name in there)
        if not fits:
            raise RuntimeError(f"{node} holds as {self.place} beside others: {there}")
        czxid = self.client.exists(f"{self.path}/{node}").czxid
        note = f"{node} {czxid}".encode()
        self.client.create(f"{self.grants}/g-", note, sequence=True)


class Candidate(Contender):
    """Is elected and resigns. This is kazoo's election with another lock inside."""

    def __init__(self, name, recipe, path, *where):
        super().__init__(name, recipe, path, *where)
        self.election = Election(self.client, path)
        self.election.lock = self.lock
        self.resigns = threading.Event()

    def acquire(self):
        self.resigns.clear()
        self.election.run(self.lead)
        self.say("released")

    def lead(self):
        self.enter(self.lock.node)
        self.say("held", self.lock.node)
        self.resigns.wait()
        self.client.delete(self.place)

    def release(self):
        self.resigns.set()


def metadata(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


def main(*where):
    contenders = {}
    for line in sys.stdin:
        name, command, *more = line.split()
        if command == "new":
            kind = Candidate if more[0].endswith("election") else Contender
            contenders[name] = kind(name, *more[:2], *where)
            contenders[name].say("ready")
        else:
            contenders[name].obey(command)
    os._exit(0)


main(*sys.argv[1:])

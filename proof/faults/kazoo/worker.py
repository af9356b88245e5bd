"""Contenders by kazoo, which share mutexes with the workers of this package.

    worker.py HOST:PORT,… SEED TIMEOUT_MS

Reports and answers are those of proof/faults/src/report.rs. A holder believes until its connection is suspended.
"""

import itertools
import json
import logging
import os
import queue
import random
import sys
import threading
import time

from kazoo.client import KazooClient, KazooState
from kazoo.recipe.lock import Lock

KEYS = ["mutex-0", "mutex-1"]

# That connections break is intended here.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


class CuratorLock(Lock):
    """kazoo's lock under Curator's names: docs/interop.md says why."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Worker:
    def __init__(self, hosts, timeout_ms):
        self.numbers = itertools.count(1)
        # How often the connection was suspended or lost.
        self.suspensions = 0
        self.uses = {}
        self.finishing = False
        patience = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": 0.2}
        self.client = KazooClient(
            hosts, timeout=timeout_ms / 1000, connection_retry=patience, command_retry=patience
        )
        self.client.add_listener(self.listen)
        self.client.start(timeout=120)

    def listen(self, state):
        if state != KazooState.CONNECTED:
            self.suspensions += 1

    def say(self, report, **fields):
        # One write: a line of a process that is killed is whole, or is not there.
        os.write(1, (json.dumps({"report": report, **fields}) + "\n").encode())

    def compete(self, key, dice):
        while True:
            is_last = self.finishing
            time.sleep(dice.uniform(0, 0.06))
            lock = CuratorLock(self.client, f"/{key}")
            try:
                if self.turn(lock, key, dice) and is_last:
                    self.say("Done")
                    return
            except Exception as failure:
                self.say("NoGrant", reason=f"kazoo: {type(failure).__name__}")

    def turn(self, lock, key, dice):
        """Takes the lock, uses the resource, and releases. Returns false if the lock was lost."""
        lock.acquire()
        try:
            before, at = self.suspensions, time.monotonic_ns()
            stat = self.client.exists(f"/{key}/{lock.node}")
            # The session may have ended meanwhile, and the znode with it.
            if stat is None:
                self.say("NoGrant", reason="kazoo: lost at once")
                return False
            grant = next(self.numbers)
            self.say("Granted", grant=grant, key=key, share="Exclusive", token=str(stat.czxid), at=at)
            return self.stay(grant, before, dice)
        finally:
            lock.release()

    def stay(self, grant, before, dice):
        for _ in range(dice.randint(1, 4)):
            time.sleep(dice.uniform(0, 0.015))
            if not self.confirm(grant, before):
                self.say("Lost", grant=grant, at=time.monotonic_ns(), reason="kazoo: suspended")
                return False
            self.uses[grant] = answer = queue.SimpleQueue()
            self.say("Use", grant=grant)
            if not answer.get(timeout=60):
                self.say("Refused", grant=grant, is_held=self.confirm(grant, before))
                return False
        self.confirm(grant, before)
        self.say("Released", grant=grant)
        return True

    def confirm(self, grant, before):
        """Returns whether the holder believes, and reports that it does."""
        at, is_held = time.monotonic_ns(), self.suspensions == before
        if is_held:
            self.say("Held", grant=grant, at=at)
        return is_held


def main(hosts, seed, timeout_ms):
    worker = Worker(hosts, int(timeout_ms))
    worker.say("Ready")
    for number, key in enumerate(KEYS):
        dice = random.Random(int(seed) * 31 + number)
        threading.Thread(target=worker.compete, args=(key, dice), daemon=True).start()
    for line in sys.stdin:
        words = line.split()
        if words[0] == "finish":
            worker.finishing = True
        else:
            worker.uses.pop(int(words[1])).put(words[2] == "admitted")
    os._exit(0)


main(*sys.argv[1:])

"""A client that uses kazoo, of a server that is killed again and again.

    survivor.py NAME HOST:PORT TIMEOUT_MS WRITERS

What it does and says is told in tests/recipes/kill/line.rs. It ends when its stdin ends.
"""

import logging
import os
import queue
import sys
import threading
import time
import traceback

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.recipe.lock import Lock

# After these nobody knows whether the request was carried out.
UNKNOWN = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionExpiredError)

# That connections break is what is wanted here.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


class CuratorLock(Lock):
    """kazoo's lock under Curator's names: docs/interop.md says why."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


# How many numbers after a znode was made it is deleted.
LIFETIME = 19


def patience():
    return {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": 0.2}


class Survivor:
    def __init__(self, name, hosts, timeout_ms):
        self.name = name
        self.session = None
        # The session whose ephemeral znode was made, and the last request that proves it.
        self.at_home_in, self.proved = None, time.monotonic()
        self.saying, self.has_ended = threading.Lock(), False
        self.connected = threading.Event()
        self.over = threading.Event()
        self.calls = queue.SimpleQueue()
        self.client = KazooClient(
            hosts,
            timeout=timeout_ms / 1000,
            connection_retry=patience(),
            command_retry=patience(),
        )
        self.client.add_listener(self.listen)
        self.client.start(timeout=120)

    def say(self, *words):
        # One write: it is whole, and in order with what other processes write.
        line = " ".join(str(word) for word in (self.name, *words)) + "\n"
        with self.saying:
            if not self.has_ended:
                os.write(1, line.encode())
                self.has_ended = words[0] == "ended"

    def listen(self, state):
        silent = int((time.monotonic() - self.proved) * 1000)
        if state == KazooState.CONNECTED:
            session, _ = self.client.client_id
            if session == self.session:
                self.say("back", session, silent)
            self.session = session
            self.connected.set()
            self.calls.put(None)
        else:
            self.connected.clear()
            if self.session is None or self.over.is_set():
                return
            if state == KazooState.SUSPENDED:
                self.say("away", self.session)
            else:
                self.say("lost", self.session, silent)
                self.session, self.proved = None, time.monotonic()

    def run(self, task, *arguments):
        def body():
            try:
                while not self.over.is_set():
                    self.connected.wait()
                    try:
                        task(*arguments)
                        return
                    except KazooException as error:
                        if not isinstance(error, UNKNOWN):
                            raise
            except BaseException:
                if not self.over.is_set():
                    traceback.print_exc()
                    self.say("failed", traceback.format_exc().strip().splitlines()[-1])

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    # Writing.

    def write(self, number):
        home = f"/work/{self.name}/{number}"
        for znode in ("counter", "pair"):
            self.make(f"{home}/{znode}")
        step = 0
        while not self.over.is_set():
            self.connected.wait()
            sent = time.monotonic()
            try:
                zxid, version = self.step(home, step)
                self.say("done", number, step, zxid, version)
                self.proved = max(self.proved, sent)
            except NoNodeError:
                self.say("refused", number, step)
            except UNKNOWN:
                self.say("unknown", number, step)
            step += 1

    def step(self, home, step):
        data = str(step).encode()
        kind = step % 4
        if kind == 0:
            _, stat = self.client.create(f"{home}/n-{step}", data, include_data=True)
            return stat.czxid, -1
        if kind == 2:
            both = self.client.transaction()
            both.set_data(f"{home}/pair", data)
            both.create(f"{home}/m-{step}", data)
            results = both.commit()
            for result in results:
                if isinstance(result, Exception):
                    raise result
            return results[0].mzxid, results[0].version
        if kind == 3 and step >= LIFETIME:
            self.client.delete(f"{home}/n-{step - LIFETIME}")
            return -1, -1
        stat = self.client.set(f"{home}/counter", data)
        return stat.mzxid, stat.version

    def make(self, path):
        try:
            self.client.retry(self.client.create, path, b"-1", makepath=True)
        except NodeExistsError:
            pass

    # The lock.

    def contend(self):
        while not self.over.is_set():
            lock = CuratorLock(self.client, "/lock", self.name)
            lock.acquire()
            try:
                self.hold(lock)
            finally:
                lock.release()

    def hold(self, lock):
        stat = self.client.retry(self.client.exists, f"/lock/{lock.node}")
        if stat is None or stat.owner_session_id != self.session:
            return
        self.say("held", stat.owner_session_id, stat.czxid)
        try:
            self.pass_gate(stat.owner_session_id, stat.czxid)
        finally:
            self.say("left", stat.owner_session_id, stat.czxid)

    def pass_gate(self, session, token):
        """Does what the lock protects: shows the token."""
        while True:
            data, stat = self.client.retry(self.client.get, "/gate")
            if int(data) >= token:
                return
            try:
                self.client.retry(self.client.set, "/gate", str(token).encode(), stat.version)
                self.say("shown", session, token)
                return
            except BadVersionError:
                pass  # its own, whose answer was lost; or it holds no more

    # The bell, and what must live as long as the session.

    def watch(self):
        # It arms a watch, and reads again after each reconnection.
        self.client.DataWatch("/bell")(self.hear)

    def hear(self, _data, stat, event):
        # A watch that the client gives up with its connection is no event of the server's.
        if event is not None and event.type != "NONE":
            self.say("fired", self.session or 0)
        self.say("saw", self.session or 0, stat.version)
        # Not in the thread that hands out events.
        self.calls.put(None)

    def answer(self):
        while True:
            self.calls.get()
            self.client.retry(self.look_home)

    def look_home(self):
        session = self.session
        if session is None:
            return
        if self.at_home_in != session:
            try:
                self.client.create(f"/alive/{self.name}", ephemeral=True)
            except NodeExistsError:
                pass  # its own, whose answer was lost; or of the session before
        stat = self.client.exists(f"/alive/{self.name}")
        if session != self.session:
            return
        if self.at_home_in != session and (stat is None or stat.owner_session_id != session):
            raise ConnectionLoss
        self.at_home_in = session
        self.say("alive", session, stat.czxid if stat else 0)


def main(name, hosts, timeout_ms, writers):
    survivor = Survivor(name, hosts, int(timeout_ms))
    writing = [survivor.run(survivor.write, number) for number in range(int(writers))]
    survivor.run(survivor.contend)
    survivor.run(survivor.watch)
    survivor.run(survivor.answer)
    sys.stdin.read()
    survivor.over.set()
    for thread in writing:
        thread.join()
    survivor.say("ended")
    survivor.client.stop()
    os._exit(0)


main(*sys.argv[1:])

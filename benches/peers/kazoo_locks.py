"""kazoo's lock under the workloads of benches/locks.rs, like peers/Curator.java: reads one workload per line, and answers
each with one line of JSON."""

import itertools
import json
import os
import queue
import sys
import threading
import time

from kazoo.client import KazooClient

# Number of tasks over many keys, the same as in the other systems.
IN_FLIGHT = 256
# Time in which a contender finds its predecessor, in seconds.
PAUSE = 0.005


def percentiles(name, times):
    times.sort()
    at = lambda part: times[int((len(times) - 1) * part)] * 1e6
    return {f"{name}_p50_us": at(0.5), f"{name}_p99_us": at(0.99)}


def in_threads(count, run):
    """Starts `count` threads, each with its number."""
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


class Kazoo:
    def __init__(self, hosts):
        self.hosts, self.clients, self.paths = hosts, [], itertools.count()

    def connect(self, timeout=10):
        client = KazooClient(self.hosts, timeout=timeout)
        client.start()
        return client

    def client(self, number):
        while len(self.clients) <= number:
            self.clients.append(self.connect())
        return self.clients[number]

    def path(self):
        return f"/bench/kazoo-{os.getpid()}-{next(self.paths)}"

    def w1(self, seconds):
        lock = self.client(0).Lock(self.path())
        acquires, releases = [], []
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            asked = time.perf_counter()
            lock.acquire()
            granted = time.perf_counter()
            lock.release()
            acquires.append(granted - asked)
            releases.append(time.perf_counter() - granted)
        per_s = len(acquires) / (time.perf_counter() - start)
        return {"cycles_per_s": per_s, **percentiles("acquire", acquires), **percentiles("release", releases)}

    def w2(self, clients, seconds):
        path, stop, arena = self.path(), threading.Event(), threading.Lock()
        locks = [self.client(number).Lock(path) for number in range(clients)]
        waits, grants = [], [0] * clients
        state = {"held": False, "last": None, "handovers": 0, "violations": 0}

        def contend(number):
            while not stop.is_set():
                asked = time.perf_counter()
                locks[number].acquire()
                waited = time.perf_counter() - asked
                with arena:
                    state["violations"] += state["held"]
                    state["held"] = True
                    state["handovers"] += state["last"] != number
                    state["last"] = number
                    waits.append(waited)
                    grants[number] += 1
                with arena:
                    state["held"] = False
                locks[number].release()

        start = time.perf_counter()
        threads = in_threads(clients, contend)
        time.sleep(seconds)
        per_s = state["handovers"] / (time.perf_counter() - start)
        stop.set()
        for thread in threads:
            thread.join()
        return {
            "handovers_per_s": per_s,
            "grants_max": max(grants),
            "grants_min": min(grants),
            "exclusion_violations": state["violations"],
            **percentiles("wait", waits),
        }

    def w3(self, waiting, seconds):
        # A kazoo lock belongs to its holder, so the holder itself queues again, behind the others.
        path, stop = self.path(), threading.Event()
        clients = waiting + 1
        locks = [self.client(number).Lock(path) for number in range(clients)]
        granted = queue.Queue()
        goes = [threading.Semaphore(0) for _ in range(clients)]
        released = [0.0]

        def wait(number):
            while not stop.is_set():
                locks[number].acquire()
                granted.put((number, time.perf_counter()))
                goes[number].acquire()
                released[0] = time.perf_counter()
                locks[number].release()

        threads = in_threads(clients, wait)
        holder, _ = granted.get()
        time.sleep(100 * PAUSE)
        handovers, order, violations = [], [holder], 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            violations += not granted.empty()
            goes[holder].release()
            holder, at = granted.get()
            handovers.append(at - released[0])
            order.append(holder)
            time.sleep(PAUSE)
        stop.set()
        for go in goes:
            go.release()
        for thread in threads:
            thread.join()
        row = {"handovers": len(handovers), "exclusion_violations": violations, **percentiles("handover", handovers)}
        if waiting > 1 and len(order) > clients:
            row["order_overtakes"] = sum(a != b for a, b in zip(order, order[clients:]))
            row["order_checked"] = len(order) - clients
        return row

    def w4(self, keys, sessions, _seconds):
        path = self.path()
        clients = [self.client(number) for number in range(sessions)]
        numbers, acquires = iter(range(keys)), []
        next_one = threading.Lock()

        def work(_):
            while True:
                with next_one:
                    key = next(numbers, None)
                if key is None:
                    return
                lock = clients[key % sessions].Lock(f"{path}/{key}")
                asked = time.perf_counter()
                lock.acquire()
                acquires.append(time.perf_counter() - asked)
                lock.release()

        start = time.perf_counter()
        for thread in in_threads(min(IN_FLIGHT, keys), work):
            thread.join()
        per_s = keys / (time.perf_counter() - start)
        return {"cycles_per_s": per_s, **percentiles("acquire", acquires)}

    def hold(self, path, timeout_ms):
        client = self.connect(timeout=float(timeout_ms) / 1e3)
        self.clients.append(client)
        client.Lock(path).acquire()
        return {}

    def wait(self, path):
        lock, asked = self.client(0).Lock(path), time.perf_counter()
        lock.acquire()
        waited = time.perf_counter() - asked
        lock.release()
        return {"wait_s": waited}


def main():
    kazoo = Kazoo(sys.argv[1])
    for line in sys.stdin:
        name, *words = line.split()
        if name == "hold":
            row = kazoo.hold(*words)
        elif name == "wait":
            row = kazoo.wait(*words)
        else:
            *counts, seconds = words
            row = getattr(kazoo, name)(*map(int, counts), float(seconds))
        print(json.dumps(row), flush=True)
    # Otherwise its threads would keep the process alive.
    os._exit(0)


main()

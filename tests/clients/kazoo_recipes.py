"""Each recipe of kazoo, used by several clients."""

import datetime
import threading

from kazoo.exceptions import LockTimeout
from kazoo.recipe.barrier import DoubleBarrier
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.lease import MultiNonBlockingLease, NonBlockingLease
from kazoo.recipe.watchers import PatientChildrenWatch

from checks import Events, PATIENCE, WIRE, check, close, connect, order, raises, run, until


def background(call):
    """Runs it in a thread. The caller must wait for it with `done`."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def done(name, *threads):
    for thread in threads:
        thread.join(PATIENCE)
    check(name, [thread.is_alive() for thread in threads], [False] * len(threads))


def queue_up(order_of, path, calls, watcher):
    """Starts the calls one after another, each once the one before is queued."""
    threads = []
    for number, call in enumerate(calls):
        threads.append(background(call))
        until(f"{number + 1} more in the queue", lambda: watcher.exists(path).numChildren, order_of + number + 1)
    return threads


def locks():
    clients = [connect() for _ in range(4)]
    watcher = clients[0]
    watcher.ensure_path("/lock")
    order_of_grants = Events()

    def contend(client, name):
        with client.Lock("/lock", name):
            order_of_grants(name)

    holder = clients[0].Lock("/lock", "holder")
    check("acquire", holder.acquire(), True)
    threads = queue_up(1, "/lock", [lambda c=c, n=n: contend(c, f"waiter {n}") for n, c in enumerate(clients[1:])], watcher)
    check("contenders", holder.contenders(), ["holder", "waiter 0", "waiter 1", "waiter 2"])
    check("not blocking", clients[1].Lock("/lock", "no").acquire(blocking=False), False)
    raises("a timeout", LockTimeout, clients[1].Lock("/lock", "late").acquire, timeout=0.1)
    check("release", holder.release(), True)
    done("all had it", *threads)
    order_of_grants.wait("in order", "waiter 0", "waiter 1", "waiter 2")
    check("nothing is left", watcher.get_children("/lock"), [])
    foreign = watcher.create("/lock/x-lock-", ephemeral=True, sequence=True)
    check("extra_lock_patterns", clients[1].Lock("/lock", "me", extra_lock_patterns=["-lock-"]).acquire(blocking=False), False)
    check("without them", clients[1].Lock("/lock", "me").acquire(blocking=False), True)
    watcher.delete(foreign)
    dies = connect()
    dies.ensure_path("/lock2")
    dies.Lock("/lock2", "dies").acquire()
    thread = background(lambda: clients[1].Lock("/lock2", "heir").acquire())
    until("one waits", lambda: watcher.exists("/lock2").numChildren, 2)
    close(dies)
    done("a lock of a session that ends is free", thread)
    check("not ephemeral", clients[2].Lock("/lock3", "stays").acquire(ephemeral=False), True)
    check("its owner", [watcher.exists("/lock3/" + name).ephemeralOwner for name in watcher.get_children("/lock3")], [0])
    close(*clients)


def reads_and_writes():
    clients = [connect() for _ in range(4)]
    watcher = clients[0]
    watcher.ensure_path("/rw")
    readers = [client.ReadLock("/rw", "r") for client in clients[:2]]
    check("readers share", [reader.acquire(blocking=False) for reader in readers], [True, True])
    check("a writer waits", clients[2].WriteLock("/rw", "w").acquire(blocking=False), False)
    said = Events()
    writer = clients[2].WriteLock("/rw", "w")
    threads = queue_up(2, "/rw", [lambda: (writer.acquire(), said("writer")),
                                  lambda: (clients[3].ReadLock("/rw", "r").acquire(), said("reader"))], watcher)
    check("nobody more yet", said.seen, [])
    for reader in readers:
        reader.release()
    said.wait("the writer is first", "writer")
    writer.release()
    said.wait("then the reader", "writer", "reader")
    done("all had it", *threads)
    close(*clients)


def semaphores():
    clients = [connect() for _ in range(4)]
    permits = [client.Semaphore("/sem", f"c{number}", max_leases=2) for number, client in enumerate(clients)]
    check("two may", [permit.acquire(blocking=False) for permit in permits[:3]], [True, True, False])
    check("holders", sorted(permits[0].lease_holders()), ["c0", "c1"])
    thread = background(permits[3].acquire)
    permits[0].release()
    done("a permit given back is taken", thread)
    check("holders then", sorted(permits[0].lease_holders()), ["c1", "c3"])
    raises("another number is refused", ValueError, connect().Semaphore("/sem", "x", max_leases=3).acquire)
    close(*clients)


def elections():
    clients = [connect() for _ in range(3)]
    clients[0].ensure_path("/election")
    said, resign = Events(), [threading.Event() for _ in clients]

    def lead(number):
        said(f"leader {number}")
        resign[number].wait(PATIENCE)

    elections = [client.Election("/election", f"c{number}") for number, client in enumerate(clients)]
    threads = queue_up(0, "/election", [lambda n=n: elections[n].run(lead, n) for n in range(3)], clients[0])
    check("contenders", elections[0].contenders(), ["c0", "c1", "c2"])
    for number in range(3):
        said.wait("leaders so far", *[f"leader {n}" for n in range(number + 1)])
        resign[number].set()
    done("all have led", *threads)
    close(*clients)


def barriers():
    one, two = connect(), connect()
    barrier = one.Barrier("/barrier")
    barrier.create()
    check("it stands", two.Barrier("/barrier").wait(0), False)
    thread = background(lambda: two.Barrier("/barrier").wait())
    check("remove", barrier.remove(), True)
    done("the other passes", thread)
    check("remove again", barrier.remove(), False)
    said = Events()

    def both(client, name):
        double = DoubleBarrier(client, "/double", 2, name)
        double.enter()
        said("in")
        double.leave()
        said("out")

    done("both pass", background(lambda: both(one, "one")), background(lambda: both(two, "two")))
    check("a double barrier", sorted(said.seen), ["in", "in", "out", "out"])
    close(one, two)


def counters():
    clients = [connect() for _ in range(4)]

    def count(client):
        counter = client.Counter("/counter")
        for _ in range(10):
            counter += 1

    done("all have counted", *[background(lambda c=c: count(c)) for c in clients])
    counter = clients[0].Counter("/counter")
    check("none is lost", counter.value, 40)
    counter -= 15
    check("before and after", (counter.pre_value, counter.post_value), (40, 25))
    floating = clients[0].Counter("/float", default=0.5)
    floating += 2.0
    check("of another type", floating.value, 2.5)
    shared = clients[0].Counter("/shared", default=7, support_curator=True)
    shared += 1
    check("as Curator's SharedCount", clients[0].get("/shared")[0], b"\0\0\0\x08")
    close(*clients)


def queues():
    one, two = connect(), connect()
    queue = one.Queue("/queue")
    queue.put(b"second", priority=200)
    queue.put(b"first", priority=10)
    queue.put(b"third", priority=200)
    check("length", len(two.Queue("/queue")), 3)
    check("by priority", [two.Queue("/queue").get() for _ in range(4)], [b"first", b"second", b"third", None])
    locking, other = one.LockingQueue("/locking"), two.LockingQueue("/locking")
    locking.put(b"a")
    locking.put_all([b"b", b"c"])
    check("get", (locking.get(), other.get()), (b"a", b"b"))
    check("it holds", (locking.holds_lock(), other.holds_lock()), (True, True))
    check("consume", (locking.consume(), locking.consume()), (True, False))
    check("release", other.release(), True)
    check("given back it comes again", (other.get(1), locking.get(1)), (b"b", b"c"))
    check("all", (other.consume(), locking.consume(), len(locking)), (True, True, 0))
    check("nothing comes", locking.get(0.1), None)
    got = []
    thread = background(lambda: got.append(other.get(PATIENCE)))
    locking.put(b"late")
    done("who waits is told", thread)
    check("of what came", got, [b"late"])
    close(one, two)


def parties():
    one, two = connect(), connect()
    for kind in ("Party", "ShallowParty"):
        first, second = getattr(one, kind)(f"/{kind}", "one"), getattr(two, kind)(f"/{kind}", "two")
        first.join()
        second.join()
        check(kind, (len(first), sorted(second)), (2, ["one", "two"]))
        first.leave()
        check("one leaves", list(second), ["two"])
    close(two)
    check("a session's end leaves, too", len(one.Party("/Party", "one")), 0)
    close(one)


def leases():
    one, two = connect(), connect()
    hour, clock = datetime.timedelta(hours=1), lambda: datetime.datetime(2030, 1, 1)
    later = lambda: datetime.datetime(2030, 1, 1, 2)
    check("a lease", bool(NonBlockingLease(one, "/lease", hour, "one", clock)), True)
    check("of one", bool(NonBlockingLease(two, "/lease", hour, "two", clock)), False)
    check("who may renew it", bool(NonBlockingLease(one, "/lease", hour, "one", clock)), True)
    check("until it is over", bool(NonBlockingLease(two, "/lease", hour, "two", later)), True)
    several = [bool(MultiNonBlockingLease(one, 2, "/leases", hour, name, clock)) for name in "abc"]
    check("two of three", several, [True, True, False])
    close(one, two)


def partitions():
    clients = [connect() for _ in range(2)]
    make = lambda number: clients[number].SetPartitioner(
        "/parts", set=("a", "b", "c", "d"), identifier=f"c{number}", time_boundary=0.2, max_reaction_time=0.2)
    first = make(0)
    first.wait_for_acquire(PATIENCE)
    check("alone it has all", list(first), ["a", "b", "c", "d"])
    second = make(1)
    until("another comes", lambda: first.release, True)
    first.release_set()
    first.wait_for_acquire(PATIENCE)
    second.wait_for_acquire(PATIENCE)
    check("they share", (list(first), list(second)), (["a", "c"], ["b", "d"]))
    second.finish()
    until("it goes", lambda: first.release, True)
    first.release_set()
    first.wait_for_acquire(PATIENCE)
    check("all again", list(first), ["a", "b", "c", "d"])
    first.finish()
    close(*clients)


def caches_and_watchers():
    client, other = connect(WIRE, timeout=50), connect()
    other.create("/cache/a/b", b"1", makepath=True)
    names = {value: name for name, value in vars(TreeEvent).items() if isinstance(value, int)}
    events, cache = Events(), TreeCache(client, "/cache")
    cache.listen(lambda event: events(f"{names[event.event_type]} {event.event_data.path if event.event_data else ''}"))
    cache.start()
    until("the cache is filled", lambda: events.seen[-1:], ["INITIALIZED "])
    check("it has seen", sorted(events.seen), ["INITIALIZED ", "NODE_ADDED /cache", "NODE_ADDED /cache/a", "NODE_ADDED /cache/a/b"])
    other.set("/cache/a/b", b"2")
    events.wait_last("a change", "NODE_UPDATED /cache/a/b")
    check("it knows", (cache.get_data("/cache/a/b").data, cache.get_children("/cache")), (b"2", frozenset({"a"})))
    order("cut")
    events.wait_last("a break", "CONNECTION_SUSPENDED ")
    other.create("/cache/new", b"while away")
    other.delete("/cache/a/b")
    order("heal")
    until("it learns what came", lambda: cache.get_data("/cache/new") is not None, True)
    until("and what went", lambda: cache.get_data("/cache/a/b"), None)
    cache.close()
    settled = PatientChildrenWatch(client, "/cache", time_boundary=0.2).start()
    children, changed = settled.get(timeout=PATIENCE)
    check("children that have settled", sorted(children), ["a", "new"])
    other.create("/cache/more")
    changed.get(timeout=PATIENCE)
    check("and change again", changed.ready(), True)
    data, both, missing = Events(), Events(), Events()
    client.DataWatch("/cache/a", lambda value, stat, event: data(f"{value} {event and event.type}"))
    client.DataWatch("/cache/later", lambda value, stat: missing(str(value)))
    client.ChildrenWatch("/cache", lambda names, event: both(f"{sorted(names)} {event and event.type}"), send_event=True)
    data.wait("at first", "b'' None")
    missing.wait("of what is not there", "None")
    other.set("/cache/a", b"x")
    data.wait("then", "b'' None", "b'x' CHANGED")
    other.create("/cache/later", b"y")
    missing.wait("made later", "None", "b'y'")
    both.wait("children", "['a', 'more', 'new'] None", "['a', 'later', 'more', 'new'] CHILD")
    other.delete("/cache/a")
    data.wait("gone", "b'' None", "b'x' CHANGED", "None DELETED")
    close(client, other)


run(locks, reads_and_writes, semaphores, elections, barriers, counters, queues, parties, leases, partitions,
    caches_and_watchers)

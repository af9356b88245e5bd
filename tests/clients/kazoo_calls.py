"""Every kind of call in kazoo, except for rights (kazoo_rights.py) and sessions."""

import time

import kazoo.exceptions as errors
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from checks import Events, HOSTS, check, close, connect, known, raises, run, say, shape, until

LIMIT = 1_048_575


def creating():
    client = connect()
    check("create", client.create("/c", b"data"), "/c")
    raises("create again", errors.NodeExistsError, client.create, "/c")
    raises("without a parent", errors.NoNodeError, client.create, "/c/no/child")
    check("makepath", client.create("/c/a/b/c", b"", makepath=True), "/c/a/b/c")
    check("numbered", client.create("/c/n-", b"", sequence=True), "/c/n-0000000001")
    check("numbered again", client.create("/c/n-", b"", sequence=True), "/c/n-0000000002")
    check("name of the number alone", client.create("/c/a/", sequence=True), "/c/a/0000000001")
    check("makepath and number", client.create("/c/new/n", sequence=True, makepath=True), "/c/new/n0000000000")
    path, stat = client.create("/c/stat", b"12345", include_data=True)
    check("create tells the stat", (path, shape(stat)), ("/c/stat", (0, 0, 0, 5, 0)))
    path, stat = client.create("/c/e-", ephemeral=True, sequence=True, include_data=True)
    check("ephemeral and numbered", path, "/c/e-0000000005")
    check("its owner is the session", stat.ephemeralOwner == client.client_id[0], True)
    check("no version yet", (stat.czxid == stat.mzxid == stat.pzxid, stat.ctime == stat.mtime), (True, True))
    raises("child of an ephemeral", errors.NoChildrenForEphemeralsError, client.create, path + "/x")
    raises("child of an ephemeral, with makepath", errors.NoChildrenForEphemeralsError,
           client.create, path + "/x/y", makepath=True)
    check("null data", client.create("/c/null", None), "/c/null")
    check("null data has no length", client.exists("/c/null").dataLength, 0)
    check("and comes back as null", client.get("/c/null")[0], None)
    client.set("/c/null", b"")
    check("which empty data are not", client.get("/c/null")[0], b"")
    client.set("/c/null", None)
    check("set to null", client.get("/c/null")[0], None)
    check("ensure_path", client.ensure_path("/c/e/n/s"), "/c/e/n/s")
    check("ensure_path again", client.ensure_path("/c/e/n/s"), True)
    names = ["größe", "锁", "замок", "with space", "dots...", "a:b", "%7f", "\u00e9\u0301"]
    for name in names:
        check("name", client.create(f"/c/uni-{name}", name.encode()), f"/c/uni-{name}")
    for bad in ("/c/\x01", "/c/x\x7f", "/c/\ufff0"):
        raises("bad character", errors.BadArgumentsError, client.create, bad)
    there = [name[4:] for name in client.get_children("/c") if name.startswith("uni-")]
    check("the names are listed", sorted(there), sorted(names))
    close(client)


def reading_and_writing():
    client = connect()
    client.create("/r", b"one")
    data, stat = client.get("/r")
    check("get", (data, shape(stat)), (b"one", (0, 0, 0, 3, 0)))
    check("set", shape(client.set("/r", b"second")), (1, 0, 0, 6, 0))
    check("set of a version", shape(client.set("/r", b"3", version=1)), (2, 0, 0, 1, 0))
    raises("set of a wrong version", errors.BadVersionError, client.set, "/r", b"", version=1)
    raises("set of what is not there", errors.NoNodeError, client.set, "/none", b"")
    raises("get of what is not there", errors.NoNodeError, client.get, "/none")
    raises("children of what is not there", errors.NoNodeError, client.get_children, "/none")
    check("exists", client.exists("/none"), None)
    for name in ("x", "y", "z"):
        client.create(f"/r/{name}")
    children, stat = client.get_children("/r", include_data=True)
    check("children and stat", (sorted(children), shape(stat)), (["x", "y", "z"], (2, 3, 0, 1, 3)))
    check("stat and exists are one", client.exists("/r") == stat, True)
    raises("delete with children", errors.NotEmptyError, client.delete, "/r")
    raises("delete of a wrong version", errors.BadVersionError, client.delete, "/r/x", version=7)
    check("delete of a version", client.delete("/r/x", version=0), True)
    check("the parent counts", shape(client.exists("/r")), (2, 4, 0, 1, 2))
    raises("delete of what is not there", errors.NoNodeError, client.delete, "/none")
    client.create("/r/y/deep/deeper", makepath=True)
    check("delete recursive", client.delete("/r", recursive=True), None)
    check("all is gone", client.exists("/r"), None)
    check("sync", client.sync("/"), "/")
    check("sync of what is not there", client.sync("/none"), "/none")
    check("the root has zookeeper", "zookeeper" in client.get_children("/"), True)
    check("what is in there", sorted(client.get_children("/zookeeper")), ["config", "quota"])
    raises("delete of the root", errors.BadArgumentsError, client.delete, "/")
    before = client.last_zxid
    client.create("/r2")
    check("zxids grow", client.last_zxid > before, True)
    check("times are now", abs(client.exists("/r2").created - time.time()) < 60, True)
    close(client)


def transactions():
    client = connect()
    client.create("/t", b"")
    client.create("/t/old", b"old")
    multi = client.transaction()
    multi.check("/t/old", 0)
    multi.create("/t/new", b"data")
    multi.create("/t/new/n-", sequence=True)
    multi.create("/t/e", ephemeral=True)
    multi.set_data("/t/old", b"changed", version=0)
    multi.set_data("/t/new", b"more")
    multi.delete("/t/e")
    results = multi.commit()
    check("results", [shape(result) if isinstance(result, tuple) else result for result in results],
          [True, "/t/new", "/t/new/n-0000000000", "/t/e", (1, 0, 0, 7, 0), (1, 1, 0, 4, 1), True])
    stats = [client.exists(path) for path in ("/t/new", "/t/old", "/t/new/n-0000000000")]
    check("all under one zxid", len({stat.mzxid for stat in stats}), 1)
    failures = {
        "a create of what is there": (lambda to: to.create("/t/new"), errors.NodeExistsError),
        "a create without a parent": (lambda to: to.create("/t/no/x"), errors.NoNodeError),
        "a create of a bad name": (lambda to: to.create("/t/\x01"), errors.BadArgumentsError),
        "a delete of what is not there": (lambda to: to.delete("/t/none"), errors.NoNodeError),
        "a delete with children": (lambda to: to.delete("/t/new"), errors.NotEmptyError),
        "a delete of a wrong version": (lambda to: to.delete("/t/old", 9), errors.BadVersionError),
        "a set of a wrong version": (lambda to: to.set_data("/t/old", b"", 9), errors.BadVersionError),
        "a set of what is not there": (lambda to: to.set_data("/t/none", b""), errors.NoNodeError),
        "a check of a wrong version": (lambda to: to.check("/t/old", 9), errors.BadVersionError),
        "a check of what is not there": (lambda to: to.check("/t/none", -1), errors.NoNodeError),
        "a list of rights that is empty": (lambda to: to.create("/t/acl", acl=[]), errors.InvalidACLError),
    }
    for name, (fail, kind) in failures.items():
        multi = client.transaction()
        multi.create("/t/first")
        multi.set_data("/t/old", b"never")
        fail(multi)
        multi.delete("/t/old")
        results = [type(result).__name__ for result in multi.commit()]
        check(name, results, ["RolledBackError"] * 2 + [kind.__name__, "RuntimeInconsistency"])
    check("nothing came of them", (client.exists("/t/first"), client.get("/t/old")[0]), (None, b"changed"))
    multi = client.transaction()
    multi.create("/t/p")
    multi.create("/t/p/q")
    multi.delete("/t/p/q")
    multi.delete("/t/p")
    check("each sees those before", multi.commit(), ["/t/p", "/t/p/q", True, True])
    check("an empty one", client.transaction().commit(), [])
    big = client.transaction()
    for number in range(500):
        big.create(f"/t/big-{number:03}", b"x" * 100)
    check("one of 500", len(big.commit()), 500)
    check("all are there", client.exists("/t").numChildren, 502)
    close(client)


def watching():
    client, other = connect(), connect()
    client.create("/w", b"")
    data, exists, child, absent = Events(), Events(), Events(), Events()
    client.get("/w", watch=data)
    client.exists("/w", watch=exists)
    client.get_children("/w", watch=child)
    client.exists("/w/c", watch=absent)
    other.set("/w", b"1")
    data.wait("data", "CHANGED /w")
    exists.wait("exists", "CHANGED /w")
    other.create("/w/c")
    child.wait("child", "CHILD /w")
    absent.wait("absent", "CREATED /w/c")
    other.set("/w", b"2")
    other.create("/w/d")
    client.sync("/w")
    check("each fires once", (len(data.seen), len(exists.seen), len(child.seen)), (1, 1, 1))
    gone, parent, unlisted = Events(), Events(), Events()
    client.get("/w/c", watch=gone)
    client.get_children("/w/c", watch=unlisted)
    client.get_children("/w", watch=parent, include_data=True)
    other.delete("/w/c")
    gone.wait("data of what is deleted", "DELETED /w/c")
    unlisted.wait("children of what is deleted", "DELETED /w/c")
    parent.wait("its parent", "CHILD /w")
    nothing = Events()
    raises("get where nothing is", errors.NoNodeError, client.get, "/w/c", watch=nothing)
    own = Events()
    client.get("/w", watch=own)
    client.set("/w", b"mine")
    own.wait("a change of one's own", "CHANGED /w")
    multi = Events()
    client.get("/w", watch=multi)
    transaction = other.transaction()
    transaction.set_data("/w", b"3")
    transaction.set_data("/w", b"4")
    transaction.create("/w/c")
    transaction.commit()
    multi.wait("a transaction", "CHANGED /w")
    client.sync("/w")
    check("it armed nothing", nothing.seen, [])
    dies = connect()
    dies.create("/w/e", ephemeral=True)
    end = Events()
    client.exists("/w/e", watch=end)
    close(dies)
    end.wait("an ephemeral whose session closes", "DELETED /w/e")
    for number in range(200):
        many = Events()
        client.exists(f"/w/many-{number}", watch=many)
    last = other.create("/w/many-199")
    many.wait("one of many", f"CREATED {last}")
    close(client, other)


def pipelining():
    client = connect()
    client.create("/p")
    made = [client.create_async(f"/p/{number:04}", str(number).encode()) for number in range(1000)]
    read = [client.get_async(f"/p/{number:04}") for number in range(1000)]
    check("created", [result.get() for result in made] == [f"/p/{number:04}" for number in range(1000)], True)
    check("each is read behind its create", [int(result.get()[0]) for result in read] == list(range(1000)), True)
    mixed = []
    for number in range(200):
        mixed += [client.set_async("/p/0000", str(number).encode()), client.get_async("/p/0000"),
                  client.exists_async("/p/none"), client.get_async("/p/none"), client.get_children_async("/p/0000"),
                  client.get_acls_async("/p"), client.sync_async("/p"), client.delete_async(f"/p/{number + 500:04}")]
    for result in mixed:
        result.wait()
    check("each sees the write before it", [int(result.get()[0]) for result in mixed[1::8]] == list(range(200)), True)
    check("failures come in turn", {type(result.exception).__name__ for result in mixed[3::8]}, {"NoNodeError"})
    check("and stop nothing", all(result.get() for result in mixed[7::8]), True)
    check("what is left", client.exists("/p").numChildren, 800)
    check("set_acls_async", client.set_acls_async("/p", OPEN_ACL_UNSAFE).get().aversion, 1)
    check("ensure_path_async", client.ensure_path_async("/p/x/y").get(), "/p/x/y")
    clients = [connect() for _ in range(20)]
    results = [one.create_async("/p/n-", sequence=True) for one in clients for _ in range(20)]
    names = [result.get() for result in results]
    check("numbers of twenty clients", len(set(names)), 400)
    close(client, *clients)


def large():
    """A frame may have 1,048,575 bytes."""
    client = connect()
    rest = 4 + 4 + 4 + len("/large") + 4 + (4 + 4 + 4 + 5 + 4 + 6) + 4
    largest = (bytes(range(256)) * 4096)[: LIMIT - rest]
    check("the largest", client.create("/large", largest), "/large")
    data, stat = client.get("/large")
    check("comes back whole", (data == largest, stat.dataLength), (True, LIMIT - rest))
    client.delete("/large")
    session = client.client_id
    raises("one byte more", errors.ConnectionLoss, client.create, "/large", largest + b"x")
    until("the client comes back", lambda: client.connected, True)
    check("to the same session", client.client_id == session, True)
    check("nothing was made", client.retry(client.exists, "/large"), None)
    client.retry(client.create, "/list")
    names = [f"{'n' * 100}-{number:04}" for number in range(2000)]
    for result in [client.create_async(f"/list/{name}") for name in names]:
        result.get()
    check("a long list", sorted(client.get_children("/list")) == names, True)
    close(client)


def chroot():
    client = connect()
    client.create("/root/inner", makepath=True)
    inner = connect(HOSTS + "/root/inner")
    check("create", inner.create("/x", b"1"), "/x")
    check("numbered", inner.create("/n-", sequence=True), "/n-0000000001")
    check("outside it is below", client.get("/root/inner/x")[0], b"1")
    events = Events()
    inner.get("/x", watch=events)
    client.set("/root/inner/x", b"2")
    events.wait("an event's path", "CHANGED /x")
    check("the root of the chroot", sorted(inner.get_children("/")), ["n-0000000001", "x"])
    check("sync", inner.sync("/x"), "/x")
    multi = inner.transaction()
    multi.create("/m")
    multi.check("/x", 1)
    multi.delete("/m")
    check("transaction", multi.commit(), ["/m", True, True])
    missing = connect(HOSTS + "/not/yet")
    raises("a chroot that is not there", errors.NoNodeError, missing.create, "/x")
    client.ensure_path("/not/yet")
    check("and now is", missing.create("/x"), "/x")
    close(client, inner, missing)


def asking_the_server():
    client = connect()
    client.create("/asked", ephemeral=True)
    client.exists("/asked", watch=Events())
    check("ruok", client.command(b"ruok"), "imok")
    check("isro", client.command(b"isro"), "rw")
    say("~", "version", client.server_version())
    if ".".join(map(str, client.server_version()[:2])) != known("VERSION"):
        raise AssertionError(f"server_version is {client.server_version()}")
    srvr = dict(line.split(": ", 1) for line in client.command(b"srvr").splitlines())
    check("srvr has", sorted(srvr), ["Connections", "Latency min/avg/max", "Mode", "Node count", "Outstanding",
                                     "Received", "Sent", "Zookeeper version", "Zxid"])
    check("mode", srvr["Mode"], "standalone")
    session = f"{client.client_id[0]:#x}"
    for letters in (b"cons", b"dump", b"wchc", b"wchp"):
        check(f"{letters.decode()} names the session", session in client.command(letters), True)
    check("stat lists connections", "Clients:" in client.command(b"stat"), True)
    check("wchs counts", client.command(b"wchs").splitlines()[-1], "Total watches:1")
    check("conf", "maxSessionTimeout=60000" in client.command(b"conf"), True)
    check("mntr", "zk_server_state\tstandalone" in client.command(b"mntr"), True)
    check("a word that is none", client.command(b"none"), "")
    longest = connect(timeout=1000)
    line = [line for line in client.command(b"cons").splitlines() if f"{longest.client_id[0]:#x}," in line]
    check("a timeout that is too long is cut", "to=60000," in line[0], True)
    reader = KazooClient(HOSTS, read_only=True)
    reader.start()
    check("a client that would only read may write", reader.create("/asked-ro"), "/asked-ro")
    raises("reconfig", errors.UnimplementedError, client.reconfig, None, None, "server.1=localhost:1:2:3;4")
    check("the session stays", client.exists("/asked") is not None, True)
    close(client, longest, reader)


run(creating, reading_and_writing, transactions, watching, pipelining, large, chroot, asking_the_server)

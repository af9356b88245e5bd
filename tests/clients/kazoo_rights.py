"""Rights and identities, as kazoo sets and proves them."""

import kazoo.exceptions as errors
from kazoo.protocol.states import KeeperState
from kazoo.security import (
    ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id, Permissions, make_acl,
    make_digest_acl, make_digest_acl_credential,
)

from checks import Events, check, close, connect, known, raises, run, say, shape, until

FRED = make_digest_acl("fred", "secret", all=True)


def proven():
    client = connect()
    client.add_auth("digest", "fred:secret")
    return client


def lists():
    client = connect()
    client.create("/a")
    check("the default", client.get_acls("/a")[0], OPEN_ACL_UNSAFE)
    raises("auth without having proved anything", errors.InvalidACLError, client.create, "/a/x", acl=CREATOR_ALL_ACL)
    check("add_auth", client.add_auth("digest", "fred:secret"), True)
    client.create("/a/auth", acl=CREATOR_ALL_ACL)
    check("auth becomes who one is", client.get_acls("/a/auth")[0], [FRED])
    client.create("/a/versions")
    raises("set_acls of a wrong version", errors.BadVersionError, client.set_acls, "/a/versions", [FRED], version=5)
    raises("set_acls of nothing", errors.InvalidACLError, client.set_acls, "/a/versions", [])
    for scheme, who in (("none", "x"), ("digest", "x"), ("world", "me"), ("ip", "x"), ("ip", "1.2.3.4/99")):
        raises(f"{scheme}:{who}", errors.InvalidACLError, client.set_acls, "/a/versions",
               [ACL(Permissions.ALL, Id(scheme, who))])
    raises("set_acls of what is not there", errors.NoNodeError, client.set_acls, "/none", OPEN_ACL_UNSAFE)
    raises("get_acls of what is not there", errors.NoNodeError, client.get_acls, "/none")
    several = [*READ_ACL_UNSAFE, FRED, ACL(Permissions.ALL, Id("ip", "127.0.0.0/8"))]
    check("set_acls", shape(client.set_acls("/a/versions", several, version=0)), (0, 0, 1, 0, 0))
    got, stat = client.get_acls("/a/versions")
    check("a list in its order", (got, stat.aversion), (several, 1))
    default = connect(default_acl=[FRED], auth_data=[("digest", "fred:secret")])
    default.create("/a/default", b"d")
    check("default_acl", default.get_acls("/a/default")[0], [FRED])
    check("auth_data is who one is", default.get("/a/default")[0], b"d")
    close(client, default)


def strangers():
    client, other = proven(), connect()
    client.create("/s")
    client.create("/s/mine", b"secret", acl=[FRED])
    for name, call in {
        "get": lambda: other.get("/s/mine"), "set": lambda: other.set("/s/mine", b""),
        "get_children": lambda: other.get_children("/s/mine"), "get_acls": lambda: other.get_acls("/s/mine"),
        "set_acls": lambda: other.set_acls("/s/mine", OPEN_ACL_UNSAFE),
        "create below": lambda: other.create("/s/mine/x"),
    }.items():
        raises(f"a stranger's {name}", errors.NoAuthError, call)
    try:
        seen = str(other.exists("/s/mine").dataLength)
    except errors.NoAuthError:
        seen = "NoAuthError"
    say("~ a stranger's exists:", seen)
    if seen != {"yes": "NoAuthError", "no": "6"}[known("EXISTS_NEEDS_READ")]:
        raise AssertionError("that is not what this version does")
    check("one's own", client.get("/s/mine")[0], b"secret")
    client.create("/s/mine/x", acl=OPEN_ACL_UNSAFE)
    raises("deleting asks the parent", errors.NoAuthError, other.delete, "/s/mine/x")
    multi = other.transaction()
    multi.create("/s/other")
    multi.delete("/s/mine/x")
    check("so in a transaction", [type(one).__name__ for one in multi.commit()], ["RolledBackError", "NoAuthError"])
    watcher = Events()
    raises("a stranger's watch", errors.NoAuthError, other.get, "/s/mine", watch=watcher)
    client.set("/s/mine", b"e")
    other.sync("/")
    check("tells nothing", watcher.seen, [])
    near, far = ACL(Permissions.ALL, Id("ip", "127.0.0.0/8")), ACL(Permissions.ALL, Id("ip", "10.1.2.3"))
    client.create("/s/near", acl=[near])
    client.create("/s/far", acl=[far])
    check("an address that fits", other.get("/s/near")[0], b"")
    raises("an address that does not", errors.NoAuthError, other.get, "/s/far")
    close(client, other)


def each_right():
    client, other = proven(), connect()
    client.create("/e")
    for right in ("read", "write", "create", "delete", "admin"):
        path = f"/e/{right}"
        client.create(path, acl=OPEN_ACL_UNSAFE)
        client.create(f"{path}/child", acl=OPEN_ACL_UNSAFE)
        client.set_acls(path, [make_acl("world", "anyone", **{right: True}), FRED])
        may = []
        for name, call in {
            "get": lambda: other.get(path), "get_children": lambda: other.get_children(path),
            "get_acls": lambda: other.get_acls(path), "set": lambda: other.set(path, b""),
            "create": lambda: other.create(f"{path}/new"), "delete": lambda: other.delete(f"{path}/child"),
            "set_acls": lambda: other.set_acls(path, OPEN_ACL_UNSAFE),
        }.items():
            try:
                call()
                may.append(name)
            except errors.NoAuthError:
                pass
        expected = {
            "read": ["get", "get_children", "get_acls"], "write": ["set"], "create": ["create"],
            "delete": ["delete"], "admin": ["get_acls", "set_acls"],
        }
        check(f"who may {right}", may, expected[right])
    close(client, other)


def masking():
    client, other = proven(), connect()
    client.create("/m", acl=[make_acl("world", "anyone", read=True),
                             make_digest_acl("joe", "pw", write=True, admin=True)])
    check("read for all", other.get("/m")[0], b"")
    raises("but not write", errors.NoAuthError, other.set, "/m", b"x")
    check("others do not see the digest", sorted(acl.id.id for acl in other.get_acls("/m")[0]), ["anyone", "joe:x"])
    check("another one's add_auth", other.add_auth("digest", "joe:pw"), True)
    check("and now write", other.set("/m", b"x").version, 1)
    check("and the digest is seen", sorted(acl.id.id for acl in other.get_acls("/m")[0]),
          ["anyone", make_digest_acl_credential("joe", "pw")])
    check("set_acls", other.set_acls("/m", READ_ACL_UNSAFE, version=0).aversion, 1)
    raises("set_acls without admin", errors.NoAuthError, other.set_acls, "/m", OPEN_ACL_UNSAFE)
    wrong = connect()
    check("a password that is wrong is another identity", wrong.add_auth("digest", "fred:wrong"), True)
    client.create("/m2", acl=[FRED])
    raises("which may nothing", errors.NoAuthError, wrong.get, "/m2")
    check("until the right one is added", wrong.add_auth("digest", "fred:secret"), True)
    check("then it may", wrong.get("/m2")[0], b"")
    refused = connect()
    raises("a scheme that the server does not know", errors.AuthFailedError, refused.add_auth, "none", "x:y")
    # The first state leads to the second.
    ends = (KeeperState.AUTH_FAILED, KeeperState.CLOSED)
    until("the client has failed", lambda: refused.client_state in ends, True)
    close(client, other, wrong)


run(lists, strangers, each_right, masking)

"""Makes kazoo's calls: python calls.py HOST:PORT. See record.py."""

import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, RolledBackError, NoNodeError
from kazoo.security import make_digest_acl

client = KazooClient(sys.argv[1], timeout=30)
client.start()
client.add_auth("digest", "user:secret")
client.create("/kazoo", b"some data")
path, stat = client.create("/kazoo/e-", ephemeral=True, sequence=True, include_data=True)
client.create("/kazoo/own", b"", acl=[make_digest_acl("user", "secret", all=True)])
fired = threading.Event()
client.get("/kazoo", watch=lambda event: fired.set())
client.set("/kazoo", b"other data")
fired.wait()
client.exists("/kazoo/missing")
client.get_children("/kazoo")
client.get_children("/kazoo", include_data=True)
acl, stat = client.get_acls("/kazoo/own")
client.set_acls("/kazoo/own", acl, version=0)
client.sync("/kazoo")
transaction = client.transaction()
transaction.check("/kazoo", 1)
transaction.create("/kazoo/m", b"data", sequence=True)
transaction.set_data("/kazoo", b"third")
transaction.delete(path)
results = transaction.commit()
assert not any(isinstance(result, Exception) for result in results), results
transaction = client.transaction()
transaction.check("/kazoo", 2)
transaction.delete("/kazoo/missing")
transaction.delete("/kazoo")
results = transaction.commit()
assert isinstance(results[0], RolledBackError), results
assert isinstance(results[1], NoNodeError), results
try:
    client.delete("/kazoo")
    raise AssertionError("it has children")
except KazooException:
    pass
with client.Lock("/kazoo/lock", "me"):
    pass
client.stop()
client.close()

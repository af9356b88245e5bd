#!/usr/bin/env python3
"""kazoo over TLS: calls.py HOST:PORT FOLDER

FOLDER has ca.pem, stranger-ca.pem, and the certificates and keys of alice, bob, expired (alice's, long expired) and
stranger (alice, signed by another authority). Exits with 1 at the first wrong answer.
"""

import os
import socket
import ssl
import sys
import threading
import warnings

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_acl

SERVER, FOLDER = sys.argv[1:]
PATIENCE = 60


def client(who, authority="ca"):
    own = os.path.join(FOLDER, who)
    return KazooClient(
        hosts=SERVER, timeout=20, use_ssl=True, verify_certs=True, ca=os.path.join(FOLDER, f"{authority}.pem"),
        certfile=f"{own}.pem" if who else None, keyfile=f"{own}.key" if who else None)


def started(who):
    kazoo = client(who)
    kazoo.start(timeout=PATIENCE)
    return kazoo


def right_certificates():
    alice, bob = started("alice"), started("bob")
    large = os.urandom(900_000)
    alice.create("/kazoo/large", large, makepath=True)
    assert bob.get("/kazoo/large")[0] == large

    own = make_acl("x509", "CN=alice,O=Example", all=True)
    alice.create("/kazoo/own", b"secret", acl=[own])
    assert alice.get("/kazoo/own")[0] == b"secret"
    try:
        bob.get("/kazoo/own")
        raise AssertionError("bob reads what is alice's")
    except NoAuthError:
        pass

    seen = threading.Event()
    bob.exists("/kazoo/later", watch=lambda event: seen.set())
    alice.create("/kazoo/later", ephemeral=True)
    assert seen.wait(PATIENCE)

    lock, other = alice.Lock("/kazoo/lock", "alice"), bob.Lock("/kazoo/lock", "bob")
    assert lock.acquire(timeout=PATIENCE) and not other.acquire(blocking=False)
    waiting = threading.Thread(target=lambda: other.acquire(timeout=PATIENCE))
    waiting.start()
    lock.release()
    waiting.join()
    assert other.is_acquired
    other.release()

    # Many concurrent requests, and then the connection is cut.
    pending = [alice.create_async(f"/kazoo/many-{number}", b"x" * 500) for number in range(500)]
    for one in pending:
        one.get(timeout=PATIENCE)
    session = alice.client_id[0]
    alice._connection._socket.shutdown(socket.SHUT_RDWR)
    assert alice.retry(alice.get, "/kazoo/own")[0] == b"secret" and alice.client_id[0] == session
    for kazoo in (alice, bob):
        kazoo.stop()
        kazoo.close()


def wrong_certificates():
    for who, authority in (("", "ca"), ("expired", "ca"), ("stranger", "ca"), ("alice", "stranger-ca")):
        kazoo = client(who, authority)
        try:
            kazoo.start(timeout=3)
            raise AssertionError(f"{who or 'nobody'} was let in, believing {authority}")
        except KazooTimeoutError:
            pass
        finally:
            kazoo.stop()
            kazoo.close()


def versions_and_words():
    """Both supported TLS versions, no older one, and a four-letter word."""
    host, port = SERVER.split(":")

    def asked(version):
        context = ssl.create_default_context(cafile=os.path.join(FOLDER, "ca.pem"))
        context.load_cert_chain(os.path.join(FOLDER, "alice.pem"), os.path.join(FOLDER, "alice.key"))
        # Otherwise Python itself refuses old versions.
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), PATIENCE) as plain:
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.sendall(b"srvr")
                answer = b""
                while piece := secured.recv(4096):
                    answer += piece
                return answer

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert asked(version).startswith(b"Zookeeper version"), version
    try:
        asked(ssl.TLSVersion.TLSv1_1)
        raise AssertionError("TLS 1.1 was spoken")
    except ssl.SSLError as error:
        assert "ALERT" in error.reason, error


warnings.simplefilter("ignore", DeprecationWarning)
right_certificates()
wrong_certificates()
versions_and_words()
print("all done")

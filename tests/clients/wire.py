"""A proxy between the clients and the server, and a port for commands.

Each command is a line, and is answered with `ok` or an error:

    drop      closes all connections, and accepts new ones
    cut       closes all connections, and accepts none until `heal`
    heal
    stop      ends the server with SIGTERM
    kill      ends it with SIGKILL
    start

ZooKeeper never answers a client that connects while it starts. So the proxy accepts no connections before the server is
ready, and scripts that restart the server connect through the proxy.
"""

import socket
import threading


class Proxy:
    """Carries bytes between clients and the server."""

    def __init__(self, port):
        self.server = port
        self.lock = threading.Lock()
        self.open = set()
        self.is_cut = False
        self.has_server = True
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.join, args=(client,), daemon=True).start()

    def join(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.server))
        except OSError:
            client.close()
            return
        with self.lock:
            welcome = not self.is_cut and self.has_server
            if welcome:
                self.open |= {client, server}
        if not welcome:
            client.close()
            server.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=carry, args=(server, client), daemon=True)
        back.start()
        carry(client, server)
        back.join()
        with self.lock:
            self.open -= {client, server}
        client.close()
        server.close()

    def cut(self, lasting):
        with self.lock:
            self.is_cut = lasting
            for end in self.open:
                shut(end)

    def heal(self):
        with self.lock:
            self.is_cut = False

    def hold(self, held):
        with self.lock:
            self.has_server = not held

    def close(self):
        self.listener.close()
        self.cut(True)


def carry(source, sink):
    try:
        while some := source.recv(1 << 16):
            sink.sendall(some)
    except OSError:
        pass
    shut(source)
    shut(sink)


def shut(end):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Control:
    """Executes the commands of a script."""

    def __init__(self, server, proxy):
        self.orders = {
            "drop": lambda: proxy.cut(False),
            "cut": lambda: proxy.cut(True),
            "heal": proxy.heal,
            "stop": lambda: (proxy.hold(True), server.end(False)),
            "kill": lambda: (proxy.hold(True), server.end(True)),
            "start": lambda: (server.start(), proxy.hold(False)),
        }
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                script = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.obey, args=(script,), daemon=True).start()

    def obey(self, script):
        with script, script.makefile("rw") as lines:
            for line in lines:
                try:
                    self.orders[line.strip()]()
                    answer = "ok"
                except Exception as error:
                    answer = f"{line.strip()}: {error!r}".replace("\n", " | ")
                print(answer, file=lines, flush=True)

    def close(self):
        self.listener.close()

"""ZooKeeper's own shell, Debian's zkCli.sh: all of its commands and their output."""

import os
import queue
import re
import subprocess
import threading
import time

from checks import HOSTS, PATIENCE, WIRE, check, fail, known, order, run, say

SHELL = "/usr/share/zookeeper/bin/zkCli.sh"
# The shell's classpath contains no logger, and the shell complains about that at length.
NOISE = re.compile(r"SLF4J: |Connecting to |Welcome to ZooKeeper!|JLine support is disabled|WATCHER::|$")
# A command that always fails without the server, even without a connection.
ASK, MARK = "redo 999999", "Command index out of range"

VERSION = "ZooKeeper CLI version"


class Shell:
    """A shell without a terminal, which reads commands from stdin."""

    def __init__(self, *options, hosts=HOSTS):
        self.process = subprocess.Popen(
            [SHELL, "-server", hosts, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.lines = queue.Queue()
        self.events = []
        threading.Thread(target=self.read, daemon=True).start()
        self.said = self.until_mark()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip())
        self.lines.put(None)

    def until_mark(self):
        """Returns the output of all commands so far."""
        self.write(ASK)
        said = []
        while True:
            try:
                line = self.lines.get(timeout=PATIENCE)
            except queue.Empty:
                fail(f"the shell does not answer: {said}")
            if line is None or line == MARK:
                return said
            if event := re.fullmatch(r"WatchedEvent state:(\w+) type:(\w+) path:(.*)", line):
                state, kind, path = event.groups()
                self.events.append(f"{kind} {path}" if kind != "None" else state)
            elif not NOISE.match(line):
                said.append(masked(line))

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tell(self, command, *expected):
        self.write(command)
        check(command, self.until_mark(), list(expected))

    def tell_apart(self, command, expected):
        """Like `tell`, where servers are known to differ. Ignores output beyond `expected`."""
        self.write(command)
        said = self.until_mark()
        if said[:len(expected)] != expected or not expected and said:
            fail(f"{command}: got {said!r}, expected {expected!r}")
        say("~", command, said)

    def tells_of(self, *expected):
        """Polls until the events have arrived."""
        end = time.monotonic() + PATIENCE
        while len(self.events) < len(expected) and time.monotonic() < end:
            time.sleep(0.01)
            self.until_mark()
        check("events", self.events, list(expected))
        self.events.clear()

    def quit(self):
        # It exits with the status of its last command.
        self.write("printwatches on")
        self.write("quit")
        check("quit", self.process.wait(PATIENCE), 0)
        self.process.stdin.close()


def masked(line):
    line = re.sub(r"^([cmp]Zxid = )0x[1-9a-f][0-9a-f]*$", r"\g<1>0x#", line)
    line = re.sub(r"^([cm]time = ).*20\d\d$", r"\1now", line)
    line = re.sub(r"^ZooKeeper CLI version: .*", VERSION, line)
    return re.sub(r"^(ephemeralOwner = )0x[1-9a-f][0-9a-f]+$", r"\1session", line)


def stat(version=0, cversion=0, acl=0, owner="0x0", length=0, children=0):
    return ["cZxid = 0x#", "ctime = now", "mZxid = 0x#", "mtime = now", "pZxid = 0x#", f"cversion = {cversion}",
            f"dataVersion = {version}", f"aclVersion = {acl}", f"ephemeralOwner = {owner}",
            f"dataLength = {length}", f"numChildren = {children}"]


def creating(shell):
    shell.tells_of("SyncConnected")
    shell.tell("ls /", "[zookeeper]")
    shell.tell("create /x data", "Created /x")
    shell.tell("create /x", "Node already exists: /x")
    shell.tell("create /no/x", "Node does not exist: /no/x")
    shell.tell("create -s /n-", "Created /n-0000000001")
    shell.tell("create -e /e", "Created /e")
    shell.tell("create -s -e /n- data", "Created /n-0000000003")
    shell.tell("create /e/x", "Ephemerals cannot have children: /e/x")
    shell.tell("create -c /c", "Created /c")
    shell.tell("create -t 60000 /t data", "Created /t")
    shell.tell("create -s -t 60000 /t-", "Created /t-0000000006")
    shell.tell("create -e -t 5 /q", "TTLs cannot be used with Ephemeral znodes")
    shell.tell("create /acl data world:anyone:cr", "Created /acl")
    shell.tell("create /acl2 data auth::cdrwa", "KeeperErrorCode = InvalidACL for /acl2", "Acl is not valid : /acl2")
    shell.tell("create bad", "Path must start with / character")
    for path in ("/c", "/t-0000000006"):
        shell.tell(f"stat {path}", *stat())
    shell.tell("stat /e", *stat(owner="session"))


def reading_and_writing(shell):
    shell.tell("get /x", "data")
    shell.tell("get -s /x", "data", *stat(length=4))
    shell.tell("version", VERSION)
    shell.tell("get /none", "Node does not exist: /none")
    shell.tell("set /x more")
    shell.tell("set -s -v 1 /x another", *stat(version=2, length=7))
    shell.tell("set -v 1 /x late", "version No is not valid : /x")
    shell.tell("set /none x", "Node does not exist: /none")
    shell.tell("create /x/a", "Created /x/a")
    shell.tell("create /x/b", "Created /x/b")
    shell.tell("create /x/a/deep", "Created /x/a/deep")
    shell.tell("ls /x", "[a, b]")
    shell.tell("ls -s /x", "[a, b]", *stat(version=2, cversion=2, length=7, children=2))
    shell.tell("ls -R /x", "/x", "/x/a", "/x/b", "/x/a/deep")
    shell.tell("ls /none", "Node does not exist: /none")
    shell.tell("stat /none", "Node does not exist: /none")
    shell.tell("sync /x", "Sync is OK")
    shell.tell("getAllChildrenNumber /x", "3")
    shell.tell("getAllChildrenNumber /none", "Node does not exist: /none")
    shell.tell("getEphemerals", "[/e, /n-0000000003]")
    shell.tell("getEphemerals /n", "[/n-0000000003]")
    shell.tell("getEphemerals /none", "[]")


def deleting(shell):
    shell.tell("delete /x", "Node not empty: /x")
    shell.tell("delete -v 5 /x/b", "version No is not valid : /x/b")
    shell.tell("delete -v 0 /x/b")
    shell.tell("delete /x/b", "Node does not exist: /x/b")
    shell.tell("deleteall /x")
    shell.tell("deleteall /x", "Node does not exist: /x")
    shell.tell("create /many", "Created /many")
    for number in range(10):
        shell.write(f"create /many/{number}")
    shell.until_mark()
    shell.tell("deleteall /many -b 3")
    shell.tell("ls /many", "Node does not exist: /many")


def watching(shell):
    shell.tell("create /w", "Created /w")
    shell.tell("get -w /w", "null")
    shell.tell("set /w 1")
    shell.tells_of("NodeDataChanged /w")
    shell.tell("set /w 2")
    shell.tell("ls -w /w", "[]")
    shell.tell("create /w/c", "Created /w/c")
    shell.tells_of("NodeChildrenChanged /w")
    shell.write("stat -w /w/c")
    shell.until_mark()
    shell.tell("delete /w/c")
    shell.tells_of("NodeDeleted /w/c")
    shell.tell("addWatch /tree")
    shell.tell("create /tree", "Created /tree")
    shell.tell("create /tree/x", "Created /tree/x")
    shell.tell("create /tree/x/y", "Created /tree/x/y")
    shell.tell("set /tree/x/y 1")
    shell.tell("set /tree/x/y 2")
    shell.tell("delete /tree/x/y")
    shell.tells_of("NodeCreated /tree", "NodeCreated /tree/x", "NodeCreated /tree/x/y", "NodeDataChanged /tree/x/y",
                   "NodeDataChanged /tree/x/y", "NodeDeleted /tree/x/y")
    shell.tell("removewatches /tree")
    shell.tells_of("PersistentWatchRemoved /tree")
    shell.tell("set /tree/x 1")
    shell.tell("addWatch -m PERSISTENT /w")
    shell.tell("set /w 3")
    shell.tell("set /w 4")
    shell.tell("create /w/c", "Created /w/c")
    shell.tell("create /w/c/d", "Created /w/c/d")
    shell.tell("delete /w/c/d")
    shell.tell("delete /w/c")
    shell.tells_of("NodeDataChanged /w", "NodeDataChanged /w", "NodeChildrenChanged /w", "NodeChildrenChanged /w")
    shell.tell("removewatches /w -d", "KeeperErrorCode = No such watcher for /w")
    shell.tell("removewatches /w -a")
    shell.tells_of("PersistentWatchRemoved /w")
    shell.tell("removewatches /w", "KeeperErrorCode = No such watcher for /w")
    shell.tell("get -w /w", "4")
    shell.tell("removewatches /w -c", "KeeperErrorCode = No such watcher for /w")
    shell.tell("removewatches /w -d")
    shell.tells_of("DataWatchRemoved /w")
    shell.tell("ls -w /w", "[]")
    shell.tell("removewatches /w -c -l")
    shell.tells_of("ChildWatchRemoved /w")
    shell.tell("set /w 5")
    shell.tells_of()


def rights(shell):
    shell.tell("whoami", "Auth scheme: User", "ip: 127.0.0.1")
    shell.tell("addauth digest fred:secret")
    shell.tell("whoami", "Auth scheme: User", "ip: 127.0.0.1", "digest: fred")
    shell.tell("getAcl /acl", "'world,'anyone", ": cr")
    shell.tell("getAcl -s /acl", "'world,'anyone", ": cr", *stat(length=4))
    shell.tell("create /mine data auth::cdrwa", "Created /mine")
    shell.tell("getAcl /mine", "'digest,'fred:lVt6OABBJX49qC19kt5J5OU3Neo=", ": cdrwa")
    shell.tell("set /acl no", "Insufficient permission : /acl")
    shell.tell("create /rw", "Created /rw")
    shell.tell("create /rw/x", "Created /rw/x")
    shell.tell("create /rw/x/y", "Created /rw/x/y")
    shell.tell("setAcl -R /rw world:anyone:cdra")
    shell.tell("getAcl /rw/x/y", "'world,'anyone", ": cdra")
    shell.tell("setAcl -s -v 1 /rw world:anyone:rwa", *stat(acl=2, cversion=1, children=1))
    shell.tell("setAcl -v 1 /rw world:anyone:rwa", "version No is not valid : /rw")
    shell.tell("setAcl /rw digest:joe:x:r")
    shell.tell("setAcl /none world:anyone:r", "Node does not exist: /none")
    shell.tell("getAcl /none", "Node does not exist: /none")


def quotas(shell):
    """Quotas are znodes. ZooKeeper's server also counts in them, and ours refuses them."""
    shell.tell("create /quota", "Created /quota")
    shell.tell("listquota /quota", "absolute path is /zookeeper/quota/quota/zookeeper_limits",
               "quota for /quota does not exist.")
    shell.tell("setquota -n 5 /none", "/none does not exist.")
    if known("SETS_QUOTAS") == "yes":
        set_quotas(shell)
    else:
        refused = ["KeeperErrorCode = Unimplemented for /zookeeper/quota/quota"]
        shell.tell_apart("setquota -n 5 /quota", refused)
    shell.tell("ls -R /zookeeper", "/zookeeper", "/zookeeper/config", "/zookeeper/quota")


def set_quotas(shell):
    shell.tell_apart("setquota -n 5 /quota", [])
    shell.tell_apart("setquota -b 1000 /quota", [])
    # It also prints the usage, which only ZooKeeper's server counts.
    shell.tell_apart("listquota /quota", [
        "absolute path is /zookeeper/quota/quota/zookeeper_limits",
        "Output quota for /quota count=5,bytes=1000=;byteHardLimit=-1;countHardLimit=-1"])
    shell.tell_apart("ls /zookeeper/quota/quota", ["[zookeeper_limits, zookeeper_stats]"])
    for what in ("-n ", "-b ", ""):
        shell.tell_apart(f"delquota {what}/quota", [])


def the_rest(shell):
    shell.tell("config")
    shell.tell("getAcl /zookeeper/config", "'world,'anyone", ": r")
    shell.tell("reconfig -remove 3", "KeeperErrorCode = Unimplemented")
    shell.tell("printwatches off")
    shell.tell("printwatches on")
    shell.write("history")
    check("history", len(shell.until_mark()), 11)
    shell.write("bogus")
    check("a command that is none", shell.until_mark()[-1], "Command not found: Command not found bogus")
    shell.tell("close")
    shell.tells_of("Closed")
    shell.tell("ls /", "Not connected")
    shell.write(f"connect {HOSTS}")
    check("connect", shell.until_mark(), [])
    shell.tells_of("SyncConnected")
    shell.tell("getEphemerals", "[]")
    shell.tell("get /quota", "null")


def interactive():
    shell = Shell()
    for part in (creating, reading_and_writing, deleting, watching, rights, quotas, the_rest):
        say(f"= {part.__name__}")
        part(shell)
    shell.quit()


def one_command():
    """Each in a separate process: what it prints last, and its exit status."""
    for command, expected in {
        "create /one data": (0, "Created /one"), "get /one": (0, "data"), "get /none": (1, "Node does not exist: /none"),
        "delete /one": (0, None),
    }.items():
        done = subprocess.run([SHELL, "-server", HOSTS, *command.split()], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        said = [line for line in (done.stdout + done.stderr).splitlines()
                if not NOISE.match(line) and not line.startswith("WatchedEvent")]
        check(command, (done.returncode, said[-1] if said else None), expected)


def cut_and_restart():
    """The Java client re-arms its watches automatically."""
    shell = Shell("-timeout", "50000", hosts=WIRE)
    shell.tells_of("SyncConnected")
    shell.tell("create /cut", "Created /cut")
    shell.tell("create -e /cut-e", "Created /cut-e")
    shell.tell("get -w /cut", "null")
    shell.tell("ls -w /cut", "[]")
    shell.tell("addWatch /cut/tree")
    for end in ("drop", "stop", "kill"):
        order(end)
        if end != "drop":
            order("start")
        shell.tells_of("Disconnected", "SyncConnected")
        shell.tell("stat /cut-e", *stat(owner="session"))
    shell.tell("set /cut x")
    shell.tell("create /cut/tree", "Created /cut/tree")
    shell.tells_of("NodeDataChanged /cut", "NodeCreated /cut/tree", "NodeChildrenChanged /cut")
    shell.quit()


os.environ.pop("CLASSPATH", None)
run(interactive, one_command, cut_and_restart)

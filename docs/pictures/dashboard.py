#!/usr/bin/env python3
"""Makes dashboard.png and dashboard-lock.png: a real dashboard of a real store, in headless Chromium (Debian: chromium).

    docs/pictures/dashboard.py [FOLDER]   builds the command, runs locks for some minutes, and takes the pictures

The locks are held by `lockkeeper run`; a few are passed on all the time, for the plot of the hand-overs.
"""

import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COMMAND = TARGET / "debug" / "lockkeeper"
SECONDS = 240
# Name, label, expected time, number of waiters, further options.
HELD = [
    ("jobs/backup", "backup db1", "2s", 14, []),
    ("jobs/reindex", "reindex", "30m", 2, []),
    ("jobs/invoices", "invoices of November", "1h", 0, []),
    ("jobs/thumbnails", "resize queue", None, 5, []),
    ("jobs/reports", "weekly report", "10m", 1, []),
    ("orders/eu", "import eu", "5m", 0, []),
    ("orders/us", "import us", "1s", 3, []),
    ("catalog", "catalog reader", None, 0, ["--shared"]),
    ("geocoder", "geocoder", None, 4, ["--permits", "2/2"]),
    ("mailer", "mailer", "15m", 0, []),
    ("/app/scheduler", "scheduler", None, 2, []),
    ("/app/migrations", "schema 118", "20m", 6, []),
    ("payments/settlement", "settlement", "10m", 1, []),
]
CYCLED = ["cache/warm", "queue/ingest", "queue/ship"]


class Chromium:
    """A browser that is told what to do over a pipe, and ends with it."""

    def __init__(self, profile):
        # The file descriptors 3 and 4 are Chromium's, with this option.
        shell = 'exec "$@" 3<&0 4>&1 >/dev/null 2>&1 </dev/null'
        options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
                   f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(["sh", "-c", shell, "sh", "chromium", *options],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number, self.text, self.session = 0, b"", None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while (answer := self.receive()).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self):
        while b"\0" not in self.text:
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                raise RuntimeError("Chromium has ended")
            self.text += part
        message, self.text = self.text.split(b"\0", 1)
        return json.loads(message)

    def wait(self, condition):
        """Waits until a condition holds on the page."""
        check = f"new Promise(done => {{ const check = () => ({condition}) ? done(true) : setTimeout(check, 50); check(); }})"
        answer = self.send("Runtime.evaluate", expression=check, awaitPromise=True, timeout=60_000)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{condition}: {answer['exceptionDetails']['text']}")

    def picture(self, url, size, scheme, condition, to):
        width, height = size
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        # Another fragment alone would be the same page.
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait(condition)
        to.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
        print(f"{to}: {to.stat().st_size:,} bytes")


def started(processes, arguments, **options):
    process = subprocess.Popen([COMMAND, *arguments], text=True, stderr=subprocess.DEVNULL, **options)
    processes.append(process)
    return process


def stop(process):
    """Ends a process; of a loop, which has a process group of its own, with its children."""
    is_loop = os.getpgid(process.pid) == process.pid if process.poll() is None else False
    if is_loop:
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()


def hold(processes, url):
    """Starts holders and waiters, and returns when all locks are held."""
    environment = {**os.environ, "LOCKKEEPER_URL": url}

    def run(name, label, options, script="echo; exec sleep 600"):
        arguments = ["run", *options, "--label", label, name, "--", "sh", "-c", script]
        return started(processes, arguments, env=environment, stdout=subprocess.PIPE)

    for name, label, expected, waiters, options in HELD:
        options = options + (["--expect", expected] if expected else [])
        run(name, label, options).stdout.readline()
        for number in range(waiters):
            run(name, f"{label.split()[0]} {number + 2}", options)
    run("catalog", "catalog reader 2", ["--shared"]).stdout.readline()
    for number in range(8):
        run("catalog", "catalog writer" if number % 3 == 0 else f"catalog reader {number + 3}",
            ["--exclusive" if number % 3 == 0 else "--shared"])
    # Each waits for its turn again and again.
    again = 'while :; do "$0" run --label "$2" "$1" -- sleep 0.2; sleep "$(shuf -n1 -e 0 0 0.5 3 6)"; done'
    for name in CYCLED:
        for number in range(3):
            loop = ["sh", "-c", again, COMMAND, name, f"worker {number + 1}"]
            processes.append(subprocess.Popen(loop, env=environment, stderr=subprocess.DEVNULL, start_new_session=True))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/pictures")
    subprocess.run(["cargo", "build", "--quiet", "-p", "lockkeeper-cli", "--bin", "lockkeeper"], cwd=ROOT, check=True)
    processes = []
    with tempfile.TemporaryDirectory(prefix="lockkeeper-pictures-") as scratch:
        chromium = None
        try:
            serve = started(processes, ["serve", "--listen", "127.0.0.1:0", "--data", "memory"], stdout=subprocess.PIPE)
            store = f"lockkeeper://{serve.stdout.readline().split()[2]}"
            arguments = ["dashboard", "--url", store, "--listen", "127.0.0.1:0", "--allow-revoke"]
            dashboard = started(processes, arguments, stdout=subprocess.PIPE)
            page = dashboard.stdout.readline().split()[2].split("#")[0]
            hold(processes, store)
            # So long is the part of the plot that has something to show.
            time.sleep(SECONDS)
            chromium = Chromium(scratch)
            rows = f"document.querySelectorAll('tr.overdue').length >= 2 && document.querySelectorAll('#locks tbody tr').length >= {len(HELD)}"
            chromium.picture(page, (1180, 830), "light", rows, folder / "dashboard.png")
            queue = "document.querySelectorAll('#queue li').length === 15 && !document.querySelector('[data-revoke]').hidden"
            lock = f"{page}#/lock/%2Flocks%2Fjobs%252Fbackup"
            chromium.picture(lock, (1180, 640), "dark", queue, folder / "dashboard-lock.png")
        finally:
            if chromium:
                chromium.close()
            # The loops first, or they would start others.
            for process in reversed(processes):
                stop(process)
            for process in processes:
                process.wait()


if __name__ == "__main__":
    main()

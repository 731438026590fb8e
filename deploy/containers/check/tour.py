"""Calls of the gateway from outside, by the program `microblog`."""

import json
import os
import subprocess
import threading
from pathlib import Path

from podman import Failed
from processes import TIMEOUT_S, eventually

# The tour makes about seventy calls in sequence, and repeats those that are UNAVAILABLE.
TOUR_S = 5 * TIMEOUT_S

ACCOUNT = {
    "email": "ada@check.invalid", "name": "ada", "password": "a password of the check",
    "display_name": "Ada",
}
TEXT = "survives"

# In the errors of calls that may be repeated.
UNAVAILABLE = "error: Unavailable", "error: nothing answers"
REPEATS_MAX = 5


class Caller:
    """Calls a gateway, over TLS if this has certificates. The directory keeps the session token."""

    def __init__(self, program, address, directory, tls_files=None):
        self._program = program
        self._url = f"https://{address}" if tls_files else f"http://{address}"
        self._environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(directory)}
        self._options = []
        if tls_files:
            file = Path(directory) / "ca.crt"
            file.write_text(tls_files["ca.crt"])
            self._options = ["--ca-file", file]

    def tour(self):
        """The tour of all services, which checks every response."""
        self._run(TOUR_S, "demo")

    def call(self, method, **request):
        """Calls a method, and returns its answer."""
        output = self._run(TIMEOUT_S, "call", method, json.dumps(request))
        return json.loads(output) if output else {}

    def _run(self, timeout_s, command, *words):
        try:
            done = subprocess.run(
                [self._program, *self._options, command, "--gateway-url", self._url, *words],
                env=self._environment, capture_output=True, text=True, timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"`microblog {command}` takes more than {timeout_s} s") from late
        if done.returncode != 0:
            end = "\n  ".join(["", *(done.stdout + done.stderr).splitlines()[-6:]])
            raise Failed(f"`microblog {command} {' '.join(words[:1])}` fails:{end}")
        return done.stdout

    def write(self):
        """Creates an account with a post."""
        self.call("Register", **ACCOUNT)
        self._log_in()
        self.call("Publish", text=TEXT)

    def read(self):
        """Checks that the account and its post exist, for a new session."""
        self._log_in()
        answer = json.dumps(self.call("ViewUserTimeline", user={"name": ACCOUNT["name"]}))
        if TEXT not in answer:
            raise Failed(f"the post is missing: {answer}")

    def _log_in(self):
        self.call("Login", login=ACCOUNT["name"], password=ACCOUNT["password"])


class Load:
    """Repeats the calls of a reader in the background, for the duration of a block."""

    def __init__(self, caller):
        self._caller = caller
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._repeat)
        self.calls = 0
        self.repeated = 0
        self.failures = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()

    def more(self, count):
        """Waits until so many more calls have an answer."""
        wanted = self.calls + count
        if not eventually(lambda: self.calls >= wanted or not self._thread.is_alive()):
            self.failures.append(f"the load makes no {count} calls in {TIMEOUT_S} s")

    def _repeat(self):
        try:
            while not self._ends.is_set():
                self._call("ViewHome")
                self._call("ViewUser", user={"name": ACCOUNT["name"]})
        except Exception as error:
            self.failures.append(f"the load ends: {error!r}")

    def _call(self, method, **request):
        """Makes a call, and repeats it while the answer is UNAVAILABLE."""
        for _ in range(REPEATS_MAX):
            try:
                self._caller.call(method, **request)
                self.calls += 1
                return
            except Failed as failure:
                text = str(failure)
            if not any(error in text for error in UNAVAILABLE):
                break
            self.repeated += 1
            self._ends.wait(0.2)
        self.failures.append(text)

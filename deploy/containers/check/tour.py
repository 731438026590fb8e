"""Calls of the gateway from outside, by the program `microblog`."""

import json
import os
import subprocess
import threading
from pathlib import Path

from processes import TIMEOUT_S

# The tour makes about seventy calls in sequence, and repeats those that are UNAVAILABLE.
TOUR_S = 5 * TIMEOUT_S

ACCOUNT = {
    "email": "ada@check.invalid", "name": "ada", "password": "a password of the check",
    "display_name": "Ada",
}
TEXT = "survives"


class Failed(Exception):
    """A call failed; its text has the end of the output."""


class Caller:
    """Calls a gateway. The directory keeps the session token."""

    def __init__(self, program, url, directory, authority=None):
        self._program = program
        self._url = url
        self._environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(directory)}
        self._options = []
        if authority:
            file = Path(directory) / "ca.crt"
            file.write_text(authority)
            self._options = ["--ca-file", file]

    def tour(self):
        """The tour of all services, which checks every response."""
        self._run(TOUR_S, "demo")

    def call(self, method, **request):
        """Calls a method, and returns its answer."""
        output = self._run(TIMEOUT_S, "call", method, json.dumps(request))
        return json.loads(output) if output else {}

    def _run(self, timeout_s, command, *words):
        done = subprocess.run(
            [self._program, *self._options, command, "--gateway-url", self._url, *words],
            env=self._environment, capture_output=True, text=True, timeout=timeout_s,
        )
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

    def _repeat(self):
        while not self._ends.is_set():
            self.calls += 2
            failure = None
            for attempt in range(5):
                self.repeated += attempt > 0
                failure = self._try()
                if failure is None:
                    break
                self._ends.wait(0.2)
            if failure:
                self.failures.append(failure)

    def _try(self):
        try:
            self._caller.call("ViewHome")
            self._caller.call("ViewUser", user={"name": ACCOUNT["name"]})
        except (Failed, subprocess.TimeoutExpired) as failure:
            return str(failure)
        return None

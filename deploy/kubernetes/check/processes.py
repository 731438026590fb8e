"""Processes that end with the check, and waiting for what takes a while."""

import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

# How long anything that a check waits for may take: far longer than it does, since machines are
# shared. A check waits for the thing itself, and this only bounds the wait for what never comes.
PATIENCE_S = 60

# Where there is one that can (util-linux's), a check that is killed leaves nothing behind.
BOUND = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

_given = set()


@contextmanager
def running(command, directory, **options):
    """Runs a program in a directory, with its output in a file there, for as long as a block. What
    it is yielded as has that file's path as `log`."""
    log = directory / f"log-{len(list(directory.glob('log-*')))}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*BOUND, *command], cwd=directory, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, **options,
        )
    process.log = log
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def end_of(log):
    """The last lines of a log, as part of a finding."""
    return "\n  ".join(["", *log.read_text().splitlines()[-6:]])


def eventually(holds, within_s=PATIENCE_S, every_s=0.25):
    """Waits until something holds. False if it does not within a time."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


def free_port():
    """A port of 127.0.0.1 that nobody listens on, and that was not given before. None of those
    that the system gives to connections, which come and go: 32768 and above on Linux, 49152
    elsewhere."""
    for port in random.sample(range(20000, 32768), 1000):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
    raise OSError("no port of 127.0.0.1 is free")

"""Child processes that end with the check, and waiting with a timeout."""

import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

# Timeout of everything that a check waits for. Far longer than needed, because machines are shared.
TIMEOUT_S = 60

# With setpriv of util-linux, child processes end even if the check is killed.
BOUND = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

_returned = set()


@contextmanager
def running(command, directory, **options):
    """Runs a program in a directory for the duration of a block. Its output goes to a file,
    whose path is the attribute `log` of the process."""
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
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def end_of(log):
    """The last lines of a log, as part of a finding."""
    return "\n  ".join(["", *log.read_text().splitlines()[-6:]])


def eventually(holds, within_s=TIMEOUT_S, every_s=0.25):
    """Waits until a condition holds. Returns False after the timeout."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


def free_port():
    """Returns an unused port of 127.0.0.1 that was not returned before. Below the ephemeral ports:
    32768 and above on Linux, 49152 elsewhere."""
    for port in random.sample(range(20000, 32768), 1000):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _returned:
            _returned.add(port)
            return port
    raise OSError("no port of 127.0.0.1 is free")

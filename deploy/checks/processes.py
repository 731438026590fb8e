"""Child processes that end with the check, waiting with a timeout, and free ports."""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

# Timeout of everything that a check waits for. Far longer than needed, because machines are shared.
TIMEOUT_S = 60

# With setpriv of util-linux, child processes end even if the check is killed.
BOUND = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

# Between the usual ports of other services and the usual ephemeral ports of Linux.
PORTS = range(10000, 32700)
# The ephemeral ports where the kernel does not say them.
EPHEMERAL = 49152, 65535
ATTEMPTS = 1000
# A lock on byte N of this file is a lock on port N. The tests in Rust lock theirs there too.
LOCKS = "/tmp/microblog-ports-{user}"

_locks, _chosen, _choosing = None, set(), threading.Lock()


class NotReady(OSError):
    """A process ended, or took too long."""


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


def until_ready(process, what, holds, **options):
    """Waits until a process of `running` is ready. Raises NotReady, with the end of its log, if it ends
    or after the timeout."""
    ended = lambda: process.poll() is not None
    if not eventually(lambda: ended() or holds(), **options) or ended():
        raise NotReady(f"{what} is not ready:{end_of(process.log)}")


def free_port():
    """Returns an unused port of 127.0.0.1: see `free_ports`."""
    return free_ports(1)


def free_ports(count):
    """Returns the first of consecutive unused ports of 127.0.0.1. They are locked until this process
    ends, so that no other check or test chooses them before their servers listen. Each is returned only
    once."""
    candidates = _candidates(count)
    for _ in range(ATTEMPTS):
        base = random.choice(candidates)
        ports = range(base, base + count)
        with _choosing:
            if _chosen.isdisjoint(ports) and all(_can_bind(port) for port in ports) and _lock(ports):
                _chosen.update(ports)
                return base
    raise OSError(f"127.0.0.1 has no {count} free ports in a row")


def _candidates(count):
    """The first ports of such rows below or above the ephemeral range, from which the kernel takes the
    ports of outgoing connections; all of them if that range has all ports."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except OSError:
        low, high = EPHEMERAL
    below = range(PORTS.start, min(PORTS.stop, low - count))
    return below or range(max(PORTS.start, high + 1), PORTS.stop) or PORTS


def _can_bind(port):
    with socket.socket() as listener:
        # As servers do: connections to an earlier server may be in TIME-WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock(ports):
    """Locks these ports. Returns False if another process has locked one of them."""
    global _locks
    # Opened once: closing any descriptor of the file would release all locks of this process.
    if _locks is None:
        _locks = os.open(LOCKS.format(user=os.geteuid()), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    except OSError:
        return False
    return True

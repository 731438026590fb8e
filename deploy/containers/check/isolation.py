"""Runs the containers in namespaces of their own: their ports and networks do not meet those of the
machine, so the files keep the ports that they name; and everything ends with the check, also if it
is killed."""

import os
import subprocess
import sys

from processes import BOUND

# Names the directory for sockets, locks and networks in the namespaces.
INSIDE = "MICROBLOG_CHECK_ISOLATED"

# /run and /dev/shm have the locks of podman, which are the machine's otherwise.
PREPARE = """\
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"
"""


def is_inside():
    return INSIDE in os.environ


def run_again():
    """Runs this program with the same arguments in new namespaces, and returns its exit code."""
    return subprocess.run(
        [*BOUND, "unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
         "sh", "-c", PREPARE, "sh", sys.executable, "-B", *sys.argv],
        env=os.environ | {INSIDE: "yes"},
    ).returncode

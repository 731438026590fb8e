"""Runs the containers in namespaces of their own: their ports and networks do not meet those of the
machine, so the files keep the ports that they name; and everything ends with the check, also if it
is killed."""

import os
import subprocess
import sys

from processes import BOUND

# Which namespaces this program is in: those of mounts, for images, or all, for pods.
STAGE = "MICROBLOG_CHECK_STAGE"

# /run and /dev/shm have the locks of podman, which are the machine's otherwise.
PREPARE = """\
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"
"""


def is_inside():
    return os.environ.get(STAGE) == "pods"


def hide_mounts():
    """Runs this program in mounts of its own: podman mounts its storage, whose directory nobody could
    remove afterwards."""
    if STAGE not in os.environ:
        os.environ[STAGE] = "images"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-B", *sys.argv])


def run_again():
    """Runs this program with the same arguments in new namespaces, and returns its exit code."""
    return subprocess.run(
        [*BOUND, "unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
         "sh", "-c", PREPARE, "sh", sys.executable, "-B", *sys.argv],
        env=os.environ | {STAGE: "pods"},
    ).returncode

"""How the kernel confines a process: what holds, whatever a manifest says and podman reports."""

from pathlib import Path

# In the file of sockets: the state of a listener.
LISTENS = "0A"
# Of both versions of cgroups, as the container sees them.
MEMORY_LIMITS = "memory/memory.limit_in_bytes", "memory.max"
# Version 1 has no word for "no limit", but a number of bytes that no machine has.
UNLIMITED = 2**62


def check(report, pid, ids, ports=None):
    """Checks that a process has this user and this group, each if not None, and no privileges; and
    that it listens on these ports, if not None."""
    status = _status(pid)
    for what, key, wanted in zip(("user", "group"), ("Uid", "Gid"), ids):
        # The real one, the effective one, the saved one, and the one for files.
        found = {int(number) for number in status[key].split()}
        if wanted is not None:
            report.same(f"the {what} of its process", found, {wanted})
        report.unless(0 not in found, f"the {what} of its process is root")
    held = sorted(key for key in status if key.startswith("Cap") and int(status[key], 16))
    report.unless(not held, f"its process has capabilities: {', '.join(held)}")
    report.unless(status["NoNewPrivs"] == "1", "its process may gain privileges")
    report.unless(status["Seccomp"] == "2", "its process may make all system calls")
    report.unless(_has_read_only_root(pid), "its root file system is writable")
    if ports is not None:
        report.same("the ports that it listens on", _listens_on(pid), ports)


def check_memory(report, pid, wanted):
    """Checks that a process has this limit of memory, in bytes."""
    found = _memory_limit(pid)
    if report.unless(found, "has no limit of memory"):
        report.same("its limit of memory", found, wanted)


def _status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _has_read_only_root(pid):
    mounts = (line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return any("ro" in fields[5].split(",") for fields in mounts if fields[4] == "/")


def _listens_on(pid):
    """The ports of all listeners in the network namespace of a process."""
    lines = [
        line.split() for file in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]
    ]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == LISTENS}


def _memory_limit(pid):
    """The limit in bytes, or None."""
    for name in MEMORY_LIMITS:
        path = Path(f"/proc/{pid}/root/sys/fs/cgroup/{name}")
        if path.exists():
            text = path.read_text().strip()
            return None if text == "max" or int(text) > UNLIMITED else int(text)
    return None

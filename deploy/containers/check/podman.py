"""podman and buildah with storage and settings of their own, so that nothing of the check shows
elsewhere on the machine: neither images under the names of others, nor containers."""

import json
import os
import subprocess

from processes import eventually

# Most machines allow this; the limits of podman are above those of some.
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
# crun does not start containers on a machine with both versions of cgroups.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{run}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{state}/storage"
runroot = "{run}/storage"
"""

# Of a build, which compiles all programs.
TIMEOUT_S = 3 * 3600


class Failed(Exception):
    """A command failed; its text has the end of the output."""


class Podman:
    """Storage in the directory `state`, and what need not outlive a run in `run`."""

    def __init__(self, state, run):
        for path in state, run / "networks":
            path.mkdir(parents=True, exist_ok=True)
        self.run_directory = run
        self.environment = os.environ | {
            "CONTAINERS_CONF": self._write("containers.conf", SETTINGS, state),
            "CONTAINERS_STORAGE_CONF": self._write("storage.conf", STORAGE, state),
        }

    def _write(self, name, text, state):
        path = self.run_directory / name
        path.write_text(text.format(state=state, run=self.run_directory))
        return str(path)

    def command(self, *words, **options):
        """Runs a program with these settings, and returns its output."""
        words = [str(word) for word in words]
        done = subprocess.run(
            words, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, **options,
        )
        if done.returncode != 0:
            end = "\n  ".join(["", *done.stdout.splitlines()[-12:]])
            raise Failed(f"`{' '.join(words[:4])} …` fails:{end}")
        return done.stdout.strip()

    def podman(self, *words, **options):
        return self.command("podman", *words, **options)

    def buildah(self, *words, **options):
        return self.command("buildah", *words, **options)

    def image(self, name):
        """The properties of an image, or None if there is none of this name."""
        try:
            return json.loads(self.buildah("inspect", "--type", "image", name))
        except Failed:
            return None

    def container(self, name):
        """The properties of a container."""
        return json.loads(self.podman("container", "inspect", name))[0]

    def address(self, name):
        """The address of a container in its network."""
        found = self.container(name)
        networks = found["NetworkSettings"]["Networks"]
        return next(iter(networks.values()))["IPAddress"]

    def pod_address(self, name):
        """The address of a pod, which its containers share."""
        return self.address(json.loads(self.podman("pod", "inspect", name))["InfraContainerID"])

    def has_ended(self, name):
        """Whether a container has ended, also if it was started again."""
        found = self.container(name)
        return found["RestartCount"] > 0 or not found["State"]["Running"]

    def eventually(self, name, holds, within_s):
        """Waits until a condition holds. Returns False after the timeout, and if the container has
        ended, because waiting for one that fails is useless."""
        is_known = eventually(lambda: holds() or self.has_ended(name), within_s)
        return is_known and not self.has_ended(name)

    def end_of_log(self, name):
        """The last lines of a container's log, as part of a finding."""
        return "\n  ".join(["", *self.podman("logs", "--tail", "6", name).splitlines()])

    def remove_all(self):
        """Removes all containers, networks and volumes, also those of an earlier run that was
        killed. Images stay."""
        def removes_pods():
            try:
                self.podman("pod", "rm", "--all", "--force", "--time", "0")
            except Failed:
                return False
            return True

        # It fails if it meets a container between its end and its next start.
        if not eventually(removes_pods):
            raise Failed("pods cannot be removed")
        self.podman("rm", "--all", "--force", "--time", "0")
        self.podman("volume", "rm", "--all", "--force")
        self.podman("network", "prune", "--force")
